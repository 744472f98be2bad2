"""The second route: a tap on the softmax, for modelling files that do not use transformers' interface.

A ``TorchFunctionMode`` sees every softmax, fused attention and ``multi_head_attention_forward`` of the calling
thread; hooks on the attention modules (see :mod:`attnflow.capturing.state`) say inside which of them the run is.
A softmax outside any attention module (a router, a classifier) is left alone.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from attnflow.capturing import bands
from attnflow.capturing.layout import refusal, settled
from attnflow.capturing.session import Projection, Record, Session, watching
from attnflow.capturing.survey import Site
from attnflow.capturing.swap import SOFTMAXES, bound, check_shape
from attnflow.capturing.trail import Seen, Trail, foreign
from attnflow.errors import CaptureError


class Tap(TorchFunctionMode):
    """Sees the attention that a model computes by itself."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        session.settle = self._settle

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        site = self._site() if func in _SEEN else None
        if site is None:
            out = func(*args, **kwargs)
            self._pass(func, args, kwargs, out)
            return out
        if func is F.multi_head_attention_forward:
            return self._multi_head(site, func, args, kwargs)
        if func is F.scaled_dot_product_attention:
            return self._fused(site, func, args, kwargs)
        if self.session.gradients:
            args = _in_graph(args)
        out = func(*args, **kwargs)
        if out.ndim < 3:
            return out
        # A watch follows the weights itself, and adds up what it found: a wrong layout does not pass.
        if foreign(site) and self.session.layers != frozenset() and self.session.watch is None:
            return self._trace(site, out, _axis(args, kwargs, out))
        return self._see(site, out) if _axis(args, kwargs, out) == out.ndim - 1 else out

    def _pass(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Follow what becomes of weights, and count softmaxes that belong to no attention module."""
        session = self.session
        if session.quiet:
            return
        if session.trail is not None:
            session.trail.follow(func, args, kwargs, out)
        elif func in SOFTMAXES and out.ndim > 2 and not session.stack:
            session.outside.append(tuple(out.shape))

    def _blocks(self, site: Site, weights: torch.Tensor) -> torch.Tensor:
        """BigBird and LongT5: softmaxes over blocks of positions, which are put together."""
        session, module = self.session, site.module
        pieces = session.pieces[id(module)]
        pieces.append(weights.detach())
        if bands.sparse(module) and len(pieces) < 5:
            return weights
        parts, call = list(pieces), session.call(site)
        pieces.clear()
        needy = session.gradients or session.replace is not None or session.watch is not None
        changed = "replace=, gradients= and edges= need a matrix" if needy else ""
        why = "its keys are also summaries of blocks" if bands.with_summaries(module) else changed
        if why:
            where = f"{site.name} ({type(module).__name__})"
            session.refused.append(CaptureError(f"{where} attends in blocks of positions, and {why}."))
        elif session.wants(call):
            if bands.sparse(module):
                four = bands.five_parts(parts, session.padded(parts[0].shape[3]))
            else:
                four = bands.three_blocks(parts[0], session.sizes[id(module)][0][1])
            kept = session.reduction.whole(four)
            session.keep(Record(call, site, kept, four.shape[-2], four.shape[-1], "tap", weights.dtype))
        return weights

    def _trace(self, site: Site, weights: torch.Tensor, axis: int, result: Any = None) -> torch.Tensor:
        """Weights of code that nobody has checked: their layout is told by what becomes of them."""
        session, lengths, batch = self.session, self._lengths(site), self._batch(site)
        call = None
        if session.replace is not None or session.gradients:
            usual = weights.ndim == 4 and axis == 3 and weights.shape[0] == batch
            # A pooling layer has one row, over all positions.
            usual = usual and (weights.shape[2] in lengths or (weights.shape[2] == 1 and weights.shape[3] in lengths))
            if not usual:
                raise refusal(
                    [Seen(site, None, weights, axis)],
                    "replace= and gradients= need one softmax over [batch, heads, queries, keys]",
                )
            weights = self._see(site, weights)
        else:
            call = session.call(site)
        if session.trail is None:
            session.trail = Trail(batch)
        seen = Seen(site, call, weights, axis)
        if result is None:
            session.trail.begin(seen)
        else:
            session.trail.fused(seen, result)
        return weights

    def _settle(self) -> None:
        """The outermost attention module is over: keep what its softmaxes were, or why that cannot be told."""
        session, trail = self.session, self.session.trail
        session.trail = None
        groups: dict[tuple[int, int], list[Seen]] = {}
        for seen in trail.seen if trail is not None else ():
            entry = seen.call.entry if seen.call is not None else -1
            groups.setdefault((id(seen.site.module), entry), []).append(seen)
        for parts in groups.values():
            site, call = parts[0].site, parts[0].call
            past = session.given[session.runs].past
            try:
                four = settled(parts, self._batch(site), self._lengths(site), past)
            except CaptureError as error:
                session.refused.append(error)
                continue
            if call is not None and session.wants(call):
                kept = session.reduction.whole(four)
                session.keep(Record(call, site, kept, four.shape[-2], four.shape[-1], "tap", four.dtype))

    def _batch(self, site: Site) -> int:
        sizes = self.session.sizes.get(id(site.module), [])
        return self.session.batch() or next((s[0] for s in sizes if len(s) >= 3), 1)

    def _lengths(self, site: Site) -> set[int]:
        """How many positions the module may look from and at, by the sequences that it was given."""
        batch, given = self._batch(site), self.session.given[self.session.runs].inputs
        found: set[int] = set()
        for shape in self.session.sizes.get(id(site.module), []):
            if len(shape) == 3 and batch in shape[:2]:
                found.add(shape[1] if shape[0] == batch else shape[0])
        if not found:
            found = {int(t.shape[1]) for n, t in given.items() if n.endswith(("input_ids", "embeds")) and t.ndim > 1}
        return found

    def _site(self) -> Site | None:
        """The attention module that the run is in, if what it does is to be seen."""
        session = self.session
        if session.quiet or not session.stack:
            return None
        site = session.stack[-1][0]
        if watching(site.module) is not session:
            return None
        return site if site.taps or session.route == "tap" else None

    def _see(self, site: Site, weights: torch.Tensor) -> torch.Tensor:
        """Record weights of any layout; what comes back takes their place in the model."""
        session = self.session
        if bands.unusual(site.module):
            return self._blocks(site, weights)
        if getattr(site.module, "talking_head", False):
            session.note(
                f"{type(site.module).__name__} mixes its heads after the softmax (talking heads): these are the "
                "weights before that, and weights × values is not its output."
            )
        heads = _heads(site, weights)
        if heads is None:
            return weights
        four = weights.reshape(-1, heads, *weights.shape[-2:])
        call = session.call(site)
        if session.replace is not None:
            changed = session.replace(call, four)
            if changed is not None and changed is not four:
                check_shape(call, four, changed)
                four = changed.to(weights.dtype)
                weights = four.reshape(weights.shape)
        if session.watch is not None and session.wants(call):
            session.hear(site)
            session.watch.weighed(call, site, weights, four)
        elif session.wants(call):
            kept = session.reduction.whole(four)
            record = Record(call, site, kept, four.shape[-2], four.shape[-1], "tap", weights.dtype)
            if session.gradients:
                record.live, record.heads = weights, heads
            session.keep(record)
        return weights

    def _fused(self, site: Site, func: Any, args: Any, kwargs: Any) -> Any:
        """``scaled_dot_product_attention`` keeps its weights to itself: they are computed beside it."""
        given = bound(sdpa_weights, args, kwargs)  # as a builtin the function itself has no signature to read
        if self.session.gradients and not given["query"].requires_grad:
            given["query"] = given["query"].detach().requires_grad_()
        weights = sdpa_weights(**given)
        session = self.session
        if foreign(site) and not session.gradients and session.replace is None and session.watch is None:
            out = func(*args, **kwargs)
            self._trace(site, weights, weights.ndim - 1, out)
            return out
        before = weights
        weights = self._see(site, weights)
        if weights is before and not self.session.gradients and self.session.watch is None:
            return func(*args, **kwargs)
        value = given["value"]
        if value.shape[-3] != weights.shape[-3]:
            value = value.repeat_interleave(weights.shape[-3] // value.shape[-3], -3)
        return weights.to(value.dtype) @ value

    def _multi_head(self, site: Site, func: Any, args: Any, kwargs: Any) -> Any:
        """The function is opaque to a mode, so it is asked for the weights of all heads."""
        given = bound(func, args, kwargs)
        want, average = given["need_weights"], given["average_attn_weights"]
        given |= {"need_weights": True, "average_attn_weights": False}
        out, weights = func(**given)
        batched = weights if weights.ndim == 4 else weights[None]
        session = self.session
        call = session.call(site)
        if session.replace is not None:
            changed = session.replace(call, batched)
            if changed is not None and changed is not batched:
                check_shape(call, batched, changed)
                out, batched = _mixed(given, changed), changed
        if session.watch is not None and session.wants(call):
            session.hear(site)
            session.watch.projected(call, site, batched.detach(), _projection(given, out))
        elif session.wants(call):
            kept = session.reduction.whole(batched)
            record = Record(call, site, kept, batched.shape[-2], batched.shape[-1], "tap", weights.dtype)
            if session.gradients:
                record.live, record.heads = weights, weights.shape[-3]
            session.keep(record)
        weights = batched.reshape(weights.shape)
        return out, (weights.mean(-3) if average else weights) if want else None


_SEEN = {*SOFTMAXES, F.multi_head_attention_forward, F.scaled_dot_product_attention}


def tapped(session: Session) -> AbstractContextManager[object]:
    """The tap, where a module needs it."""
    wanted = session.route == "tap" or (session.route == "auto" and session.survey.tap)
    session.open_tap = (lambda: Tap(session)) if wanted else nullcontext
    return session.open_tap()


def sdpa_weights(
    query: torch.Tensor, key: torch.Tensor, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """The weights that ``F.scaled_dot_product_attention`` uses for the same arguments (without dropout).

    >>> q = torch.zeros(1, 1, 2, 4)
    >>> sdpa_weights(q, q, q, is_causal=True)[0, 0].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.transpose(-1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        else:
            scores = scores + attn_mask
    # A row that may see nothing gives NaN; the fused kernels give zeros for it.
    return torch.softmax(scores.float(), -1).nan_to_num(0.0).to(query.dtype)


def _axis(args: Any, kwargs: Any, out: torch.Tensor) -> int:
    """The axis that a softmax goes over; -1 where it is not said."""
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return -1 if not isinstance(dim, int) else dim % out.ndim


def _heads(site: Site, weights: torch.Tensor) -> int | None:
    """Number of heads, also of weights in which batch and heads are one axis; None if they are no attention."""
    if weights.ndim == 4:
        return int(weights.shape[1])
    if weights.ndim > 4:
        return int(weights.shape[-3])
    for name in ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads", "number_of_heads"):
        count = getattr(site.module, name, None)
        if isinstance(count, int) and count > 0 and weights.shape[0] % count == 0:
            return count
    return 1


def _in_graph(args: Any) -> Any:
    first = args[0]
    if isinstance(first, torch.Tensor) and not first.requires_grad:
        return (first.detach().requires_grad_(), *args[1:])
    return args


def _projection(given: dict[str, Any], out: torch.Tensor) -> Projection:
    """What ``multi_head_attention_forward`` does beside its weights; its output has the positions first."""
    values = _values(given)
    length, batch = (out.shape[0], 1) if out.ndim == 2 else out.shape[:2]
    where = torch.arange(out.numel(), device=out.device).view(batch, length, -1).transpose(0, 1).reshape(out.shape)
    return Projection(values, given["out_proj_weight"].T, given["out_proj_bias"], out, where, given["query"])


def _values(given: dict[str, Any]) -> torch.Tensor:
    """``[batch, heads, keys, width]``: the values inside ``multi_head_attention_forward``."""
    value = given["value"]
    if given["use_separate_proj_weight"]:
        projection = given["v_proj_weight"]
    else:
        projection = given["in_proj_weight"][2 * given["embed_dim_to_check"] :]
    bias = given["in_proj_bias"]
    projected = F.linear(value, projection, None if bias is None else bias[-projection.shape[0] :])
    if projected.ndim == 2:
        projected = projected[:, None]
    length, batch = projected.shape[:2]
    return projected.reshape(length, batch, given["num_heads"], -1).permute(1, 2, 0, 3)


def _mixed(given: dict[str, Any], weights: torch.Tensor) -> torch.Tensor:
    """The output of ``multi_head_attention_forward`` for other weights."""
    value = given["value"]
    flat, width = value.ndim == 2, value.shape[-1]
    split = _values(given)
    mixed = (weights.to(split.dtype) @ split).permute(2, 0, 1, 3).reshape(weights.shape[-2], len(split), width)
    out = F.linear(mixed, given["out_proj_weight"], given["out_proj_bias"])
    return out[:, 0] if flat else out
