"""The first route: transformers' own attention interface.

A function under the key "eager" is called by every modelling file that uses the interface (transformers ≥ 5.1).
It runs the model's *own* eager function, so that sinks, soft-caps, biases, grouped heads and sliding windows are
right by construction, and hands the weights to the session of the calling thread. Where that function is nothing
but softmax(q·kᵀ·scale + mask)·v, the same is computed in place and without the keys that the mask hides.
"""

from __future__ import annotations

from typing import Any

import torch

from attnflow.capturing import gradient_edges, plain, rows
from attnflow.capturing.reduce import Reduction
from attnflow.capturing.session import Call, Computed, Lazy, Record, Session, watching
from attnflow.capturing.survey import Eager, Site, class_of, consumed, own_eager
from attnflow.capturing.swap import swapped

_sliced = {"position_bias"}


def dispatching(before: Eager | None) -> Eager:
    """What transformers calls: the module's own eager function, watched if this thread captures.

    ``before`` is what stood under the key "eager", for modules that have no function of their own.
    """

    def dispatch(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        eager: Any = own_eager(class_of(module)) or before
        session = watching(module)
        site = session.survey.sites.get(id(module)) if session is not None else None
        if session is None or site is None or session.quiet or session.route == "tap":
            return eager(module, query, key, value, attention_mask, *args, **kwargs)
        if session.again is not None:
            known = session.again(site)
            if known is not None:
                return known, None
        with session.hushed():
            return attend(session, site, eager, module, query, key, value, attention_mask, *args, **kwargs)

    return dispatch


def attend(
    session: Session, site: Site, eager: Eager, module: Any,
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, *args: Any, **kwargs: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Run one call of attention and record it."""
    call = session.call(site)
    mask = _as_loaded(module, query, key, mask, kwargs)
    if session.gradients and not query.requires_grad:
        # With frozen parameters nothing would be in the graph; this puts the weights into it.
        query = query.detach().requires_grad_()
    whole = session.replace is not None or session.want_weights
    fused = session.explains is not None and not whole
    if fused and plain.usable(eager, module, query, key, value, mask, args, kwargs, graph=True):
        return gradient_edges.attend(session, site, call, query, key, value, mask, kwargs.get("scaling")), None
    if session.gradients or whole:
        out, weights = eager(module, query, key, value, mask, *args, **kwargs)
        if session.replace is not None and weights is not None:
            changed = session.replace(call, weights)
            if changed is not None and changed is not weights:
                out, weights = swapped(eager, call, weights, changed, module, query, key, value, mask, *args, **kwargs)
        _keep_whole(session, site, call, weights, query.dtype)
        return out, weights if session.want_weights else None
    if not args and session.wants(call) and rows.limited(session, site, query):
        return _some_rows(session, site, call, eager, module, query, key, value, mask, **kwargs), None
    if session.watch is not None and session.wants(call):
        return _watched(session, site, call, eager, module, query, key, value, mask, *args, **kwargs), None
    if session.lazy is not None and not args:
        session.count += 1
        session.heard.add(id(module))
        session.lazy.append(Lazy(call, eager, module, query, key, value, mask, dict(kwargs)))
    if plain.usable(eager, module, query, key, value, mask, args, kwargs):
        wanted = session.reduction if session.wants(call) and session.lazy is None else None
        out, kept = plain.attention(
            query, key, value, mask, kwargs.get("scaling"), wanted, session.block, session.plans
        )
    else:
        out, kept = _in_blocks(session, call, eager, module, query, key, value, mask, *args, **kwargs)
    if kept is not None:
        session.keep(Record(call, site, kept, query.shape[-2], key.shape[-2], "interface", query.dtype))
    return out, None


def _some_rows(
    session: Session, site: Site, call: Call, eager: Eager, module: Any,
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    """The output of one call, of which only the weights of some rows are kept."""
    if plain.usable(eager, module, query, key, value, mask, (), kwargs):
        scaling = kwargs.get("scaling")
        out, _ = plain.attention(query, key, value, mask, scaling, None, session.block, session.plans)
    else:
        out, _ = _in_blocks(session, call, eager, module, query, key, value, mask, keep=False, **kwargs)
    wanted = session.rows or ()
    if not _sliceable(eager, kwargs):
        weights = _four(eager(module, query, key, value, mask, **kwargs)[1].detach(), query)[:, :, list(wanted)]
    else:
        weights = rows.weights_of(eager, module, query, key, value, mask, kwargs, wanted, False)
    rows.record(session, site, call, weights, value, out, query, wanted)
    return out


def _watched(
    session: Session, site: Site, call: Call, eager: Eager, module: Any,
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    """The output of one call, whose weights and values go to the session's watch."""
    assert session.watch is not None
    scaling = kwargs.get("scaling")
    weights: Any = None
    held = None
    with torch._C.DisableTorchFunction():  # or each shape that is read would ask the watch first, for nothing
        simple = plain.usable(eager, module, query, key, value, mask, args, kwargs)
        if simple:
            again = session.watch.by_rows and plain.many(query, key)
            every = None if again else Reduction("all", query.dtype)
            held = None if again else session.watch.lend(query, key)
            out, weights = plain.attention(query, key, value, mask, scaling, every, session.block, session.plans, held)
            weights = plain.Again(query, key, mask, scaling) if again else weights
    if not simple:
        out, weights = eager(module, query, key, value, mask, *args, **kwargs)
        weights = None if weights is None else _four(weights.detach(), query)
    if weights is not None:
        session.hear(site)
        with torch._C.DisableTorchFunction():
            session.watch.attended(call, site, Computed(weights, value, out, query, mixes=simple, held=held))
    return out


def _keep_whole(session: Session, site: Site, call: Call, weights: Any, dtype: Any) -> None:
    if weights is None or not session.wants(call):
        return
    record = Record(
        call, site, session.reduction.whole(weights), weights.shape[-2], weights.shape[-1], "interface", dtype
    )
    if session.gradients:
        record.live = weights
    session.keep(record)


def _as_loaded(module: Any, query: torch.Tensor, key: torch.Tensor, mask: Any, kwargs: dict[str, Any]) -> Any:
    """A causal mask where sdpa and flash would have masked by themselves and eager would not."""
    from attnflow.capturing.state import loaded_with

    if mask is not None or query.shape[-2] == 1 or loaded_with(getattr(module, "config", None)) in (None, "eager"):
        return mask
    if not rows.masks_itself(module, kwargs):
        return mask
    return rows.causal_mask(torch.arange(query.shape[-2], device=query.device), key, query.dtype)


def _in_blocks(
    session: Session, call: Call, eager: Eager, module: Any,
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, *args: Any, keep: bool = True,
    **kwargs: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """The model's own eager function, a block of query rows at a time: heads × block × keys are held at once."""
    keep = keep and session.wants(call) and session.lazy is None
    rows = query.shape[-2] if query.ndim == 4 else 0
    size = plain.block_rows(query, key, session.block) if query.ndim == 4 and key.ndim == 4 else 0
    if not 0 < size < rows or not _sliceable(eager, kwargs):
        out, weights = eager(module, query, key, value, mask, *args, **kwargs)
        _check_mixture(session, module, out, weights, value)
        keep = keep and weights is not None
        return out, session.reduction.whole(_four(weights, query)) if keep else None
    outs: list[torch.Tensor] = []
    kept = None
    for start in range(0, rows, size):
        stop = min(rows, start + size)
        part = {n: _rows(v, start, stop, rows) if n in _sliced else v for n, v in kwargs.items()}
        out, weights = eager(module, query[:, :, start:stop], key, value, _rows(mask, start, stop, rows), *args, **part)
        if weights is None or weights.ndim != 4 or out.ndim != 4 or out.shape[1] != stop - start:
            out, weights = eager(module, query, key, value, mask, *args, **kwargs)
            keep = keep and weights is not None
            return out, session.reduction.whole(_four(weights, query)) if keep else None
        _check_mixture(session, module, out, weights, value)
        outs.append(out)
        if keep:
            if kept is None:
                kept = session.reduction.buffer(
                    weights.shape[0], weights.shape[1], rows, weights.shape[-1], weights.device
                )
            session.reduction.put(kept, weights.detach(), start, 0)
    return torch.cat(outs, 1), kept


def _check_mixture(session: Session, module: Any, out: Any, weights: Any, value: torch.Tensor) -> None:
    """Say it if a module's output is not its weights times its values: then the weights are not all there is to it."""
    if id(module) in session.checked or weights is None or weights.ndim != 4 or value.ndim != 4:
        return
    session.checked.add(id(module))
    mine, shared = weights[:, :, -1:].detach(), value.detach()
    if weights.shape[1] % value.shape[1] or weights.shape[-1] != value.shape[2]:
        return
    with torch.autocast(value.device.type, enabled=False):
        mixed = mine.float() @ shared.repeat_interleave(weights.shape[1] // value.shape[1], 1).float()
    last = out[:, -1:].detach().float().transpose(1, 2) if out.ndim == 4 else mixed
    if not bool(mixed.isfinite().all()):
        return  # weights that are no numbers are refused later, with the reason
    if last.shape == mixed.shape and not torch.allclose(last, mixed, atol=2e-2 * float(mixed.abs().max()) + 1e-6):
        session.notes.append(
            f"{type(module).__name__} changes its output after mixing the values (weights × values is not the output), "
            "as gates and learned sinks outside the softmax do: the weights do not show that part."
        )


def _sliceable(eager: Eager, kwargs: dict[str, Any]) -> bool:
    """False if the function reads a tensor of which it is not known how it goes with the queries."""
    for name, value in kwargs.items():
        if name in consumed(eager) and name not in _sliced and isinstance(value, torch.Tensor) and value.ndim > 1:
            return False
    return True


def _rows(tensor: Any, start: int, stop: int, rows: int) -> Any:
    """The rows of a mask or bias that belong to a block of queries."""
    if isinstance(tensor, torch.Tensor) and tensor.ndim >= 3 and tensor.shape[-2] == rows:
        return tensor[..., start:stop, :]
    return tensor


def _four(weights: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """``[batch, heads, queries, keys]`` from the layouts that older code returns."""
    if weights.ndim == 4:
        return weights
    if weights.ndim == 3:
        return weights.reshape(query.shape[0], -1, *weights.shape[-2:])
    return weights.reshape(-1, *weights.shape[-3:])
