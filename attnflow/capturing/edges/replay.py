"""Value zeroing: each layer is run again with the value of one input position set to zero, for each position in turn.

Mohebbi et al. (2023), equations 5 and 6: the score of input position *j* for output position *i* is the cosine distance
between the layer's output at *i* with and without the value of *j*; rows are divided by their sums. Nothing is taken
apart, so any layer will do that gives the same output when it is run again.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from attnflow.capturing.edges.decompose import limit, own_positions, settled
from attnflow.capturing.session import ACTIVE, Call, Projection, Record, Session
from attnflow.capturing.survey import Site
from attnflow.capturing.tap import Tap
from attnflow.errors import CaptureError

CHUNK = 1 << 21
"""How many numbers of layer outputs are computed at once."""


@dataclass(eq=False)
class _Attended:
    """One call inside a layer: ``number`` says how many its module had made before, in this entry of the layer.

    ``values`` and ``out`` are known of calls through the interface.
    """

    call: Call
    site: Site
    number: int
    weights: torch.Tensor
    values: torch.Tensor | None
    out: torch.Tensor | None
    source: str


@dataclass(eq=False)
class _Entry:
    """A layer while it runs: what it was given and which calls it made."""

    layer: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    calls: list[_Attended] = field(default_factory=list)


class ValueZeroing:
    """Notes what every layer is given, and runs it again as soon as it is through."""

    def __init__(self, model: nn.Module, session: Session) -> None:
        self.session = session
        self.layers = {id(s.module): _layer_of(model, s) for s in session.survey.sites.values()}
        self.open: list[_Entry] = []
        self.slowly: set[str] = set()

    @contextmanager
    def around(self) -> Iterator[None]:
        """While the model runs: hooks on its layers."""
        layers = {id(layer): layer for layer in self.layers.values() if layer is not None}
        with ExitStack() as stack:
            for layer in layers.values():
                stack.callback(layer.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
                stack.callback(layer.register_forward_hook(self._leave).remove)
            yield

    def attended(
        self,
        call: Call,
        site: Site,
        weights: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        query: torch.Tensor,
        rows: tuple[int, ...] | None = None,
    ) -> None:
        """A call through transformers' interface."""
        self._note(call, site, weights, values, out, "interface")

    def weighed(self, call: Call, site: Site, weights: torch.Tensor, four: torch.Tensor) -> None:
        """A softmax."""
        self._note(call, site, four, None, None, "tap")

    def projected(self, call: Call, site: Site, weights: torch.Tensor, given: Projection) -> None:
        """``multi_head_attention_forward``."""
        self._note(call, site, weights, None, None, "tap")

    def finish(self) -> None:
        """The run is over."""
        if self.slowly:
            self.session.notes.append(
                f"{len(self.slowly)} layers were run again for one position after the other, because their code does "
                f"not take several at once (first: {min(self.slowly)})."
            )

    def _note(self, call: Call, site: Site, weights: Any, values: Any, out: Any, source: str) -> None:
        layer = self.layers[id(site.module)]
        entry = next((e for e in reversed(self.open) if e.layer is layer), None)
        if entry is None:
            raise _refusal(call, site, "it stands in no layer that could be run again")
        number = sum(c.site is site for c in entry.calls)
        entry.calls.append(_Attended(call, site, number, weights.detach(), values, out, source))

    def _enter(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._mine():
            self.open.append(_Entry(layer, _kept(args), _kept(kwargs)))

    def _leave(self, layer: nn.Module, args: Any, output: Any) -> None:
        if not self._mine():
            return
        while self.open:
            entry = self.open.pop()
            if entry.layer is layer:
                break
        else:
            return
        for seen in entry.calls:
            with torch.no_grad(), self._quietly():
                self._zero(entry, seen, _states(output))

    def _mine(self) -> bool:
        return ACTIVE.get() is self.session

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """The session that is open hears nothing of what is run again."""
        before, token = self.session.quiet, ACTIVE.set(None)
        self.session.quiet = True
        try:
            yield
        finally:
            ACTIVE.reset(token)
            self.session.quiet = before

    def _zero(self, entry: _Entry, seen: _Attended, output: torch.Tensor | None) -> None:
        batch, _, n, m = seen.weights.shape
        if output is None or _by_position(output, batch, n) is None:
            shape = None if output is None else tuple(output.shape)
            raise _refusal(
                seen.call, seen.site,
                f"its layer gives {shape} and attends in {batch} × {n} positions, as with windows, so that the output "
                "of a position is not known",
            )  # fmt: skip
        replay = _Replay(self.session, entry, seen)
        base = replay.run(None)
        error = _far(base, output)
        if error > limit(output.dtype):
            raise _refusal(seen.call, seen.site, f"its layer gives something else when run again (error {error:.1g})")
        first = _by_position(base, batch, n)
        assert first is not None
        raw = torch.empty(batch, n, m, dtype=torch.float64 if first.dtype == torch.float64 else torch.float32)
        step = max(1, CHUNK // max(output.numel(), 1))
        for start in range(0, m, step):
            columns = torch.arange(start, min(m, start + step), device=seen.weights.device)
            for j, out in zip(columns.tolist(), self._outputs(replay, columns), strict=True):
                changed = _by_position(out, batch, n)
                assert changed is not None
                raw[:, :, j] = cosine_distance(first, changed).to(raw)
        self._keep(seen, raw, error, output.dtype)

    def _outputs(self, replay: _Replay, columns: torch.Tensor) -> Iterator[torch.Tensor]:
        """The layer's outputs without each of ``columns``: all at once, or one after the other where that fails."""
        if replay.several:
            try:
                with warnings.catch_warnings():
                    # torch says of every operation that it has to take apart that this is slow.
                    warnings.filterwarnings("ignore", "There is a performance drop")
                    found = replay.run_all(columns)
                yield from found
                return
            except Exception:  # whatever the layer's code does that does not take several at once
                replay.several = False
                self.slowly.add(replay.seen.call.name)
        for j in columns.tolist():
            yield replay.run(j)

    def _keep(self, seen: _Attended, raw: torch.Tensor, error: float, precision: torch.dtype) -> None:
        n, m = raw.shape[1:]
        past = self.session.given[seen.call.run].past
        own = own_positions(seen.call, seen.site, n, m, past, raw.device)
        weights = settled(raw, raw.sum(-1), own)
        reduction = self.session.reduction
        weights = weights.to(reduction.device or weights.device, reduction.dtype)
        self.session.keep(Record(seen.call, seen.site, weights, n, m, seen.source, precision, error=error))


class _Replay:
    """One layer, run again with the values of some input positions at zero in one of its calls of attention."""

    def __init__(self, session: Session, entry: _Entry, seen: _Attended) -> None:
        self.entry, self.seen = entry, seen
        self.several = True
        self.inner = Session(session.survey, layers=frozenset(), replace=self._replace, again=self._again)
        self.counts: Counter[int] = Counter()
        self.keep: torch.Tensor | None = None
        self.delta: torch.Tensor | None = None
        self.subtracts = _subtracts(seen)

    def run(self, column: int | None) -> torch.Tensor:
        """The layer's output without ``column``; with all of them if None."""
        m = self.seen.weights.shape[-1]
        keep = torch.ones(m, dtype=self.seen.weights.dtype, device=self.seen.weights.device)
        if column is not None:
            keep[column] = 0
        delta = None
        if self.subtracts:
            assert self.seen.out is not None
            delta = torch.zeros_like(self.seen.out) if column is None else self._deltas(torch.tensor([column]))[0]
        return self._forward(keep, delta)

    def run_all(self, columns: torch.Tensor) -> torch.Tensor:
        """``[columns, …]``: the layer's output without each of them. What comes before attention is computed once."""
        m = self.seen.weights.shape[-1]
        keep = 1 - torch.nn.functional.one_hot(columns, m).to(self.seen.weights.dtype)
        if self.subtracts:
            return torch.vmap(lambda d: self._forward(keep[0], d))(self._deltas(columns))
        return torch.vmap(lambda k: self._forward(k, None))(keep)

    def _deltas(self, columns: torch.Tensor) -> torch.Tensor:
        """``[columns, B, n, H, width]``: what each of them brings to the output of attention."""
        seen = self.seen
        assert seen.values is not None and seen.out is not None
        weights = seen.weights[..., columns].permute(3, 0, 2, 1)
        values = seen.values.repeat_interleave(seen.weights.shape[1] // seen.values.shape[1], 1)[:, :, columns]
        return (weights[..., None] * values.permute(2, 0, 1, 3)[:, :, None]).to(seen.out.dtype)

    def _forward(self, keep: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        self.keep, self.delta = keep, delta
        self.counts.clear()
        self.hit = False
        entry, inner = self.entry, self.inner
        args, kwargs = _kept(entry.args), _kept(entry.kwargs)
        token = ACTIVE.set(inner)
        try:
            with ExitStack() as stack:
                for site in inner.survey.sites.values():
                    if site.taps:
                        _stacked(stack, inner, site)
                stack.enter_context(Tap(inner))
                out = _states(entry.layer.forward(*args, **kwargs))
        finally:
            ACTIVE.reset(token)
            inner.stack.clear()
        if out is None or not self.hit:
            raise _refusal(self.seen.call, self.seen.site, "its attention was not seen in the second run")
        return out

    def _again(self, site: Site) -> torch.Tensor | None:
        """The output of the call that is changed, where it is a difference; None for all others."""
        if not self.subtracts or site is not self.seen.site or self.delta is None:
            return None
        number = self.counts[id(site)]
        self.counts[id(site)] += 1
        if number != self.seen.number or self.seen.out is None:
            return None
        self.hit = True
        return self.seen.out - self.delta

    def _replace(self, call: Call, weights: torch.Tensor) -> torch.Tensor | None:
        """A weight of zero is a value of zero: rows are not divided by their sums again."""
        if self.subtracts or call.name != self.seen.call.name:
            return None
        number = self.counts[id(self.seen.site)]
        self.counts[id(self.seen.site)] += 1
        if number != self.seen.number or self.keep is None:
            return None
        self.hit = True
        return weights * self.keep


def cosine_distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """1 − cos of the last axis, without the loss of digits of that difference; 0 for what is no more than rounding.

    >>> cosine_distance(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]))
    tensor(1.)
    """
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    rounding = 4 * torch.finfo(a.dtype).eps
    a, b = a.to(wide), b.to(wide)
    long, other, far = a.norm(dim=-1), b.norm(dim=-1), (a - b).norm(dim=-1)
    product = (2 * long * other).clamp(min=torch.finfo(wide).tiny)
    found = ((far.square() - (long - other).square()) / product).clamp(min=0)
    distance: torch.Tensor = found.masked_fill(far <= rounding * long, 0)
    return distance


def _subtracts(seen: _Attended) -> bool:
    """True if attention's output is weights × values, so that a value of zero is a difference."""
    if seen.values is None or seen.out is None or seen.values.ndim != 4 or seen.out.ndim != 4:
        return False
    if seen.weights.shape[1] % seen.values.shape[1] or seen.weights.shape[-1] != seen.values.shape[2]:
        return False
    values = seen.values.repeat_interleave(seen.weights.shape[1] // seen.values.shape[1], 1)
    mixed = (seen.weights.to(values.dtype) @ values).transpose(1, 2)
    return mixed.shape == seen.out.shape and _far(mixed, seen.out) <= limit(seen.out.dtype)


def _layer_of(model: nn.Module, site: Site) -> nn.Module | None:
    """The layer in which a module stands: what checkpoints as a whole, else the item of its list of layers.

    A module that stands in no list is run again with the module around it, if that is not the whole model.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    path = site.name.split(".")
    above = [(".".join(path[:k]), model.get_submodule(".".join(path[:k]))) for k in range(len(path), 0, -1)]
    found: nn.Module | None = next((m for _, m in above if isinstance(m, GradientCheckpointingLayer)), None)
    depth = len(site.tower.split("."))
    if found is None and site.tower and depth < len(path):
        found = next((m for name, m in above if name == f"{site.tower}.{path[depth]}"), None)
    if found is None:
        found = next((m for name, m in above[1:] if name.rpartition(".")[2].isdigit()), None)
    return found or (above[1][1] if len(above) > 1 else None)


def _kept(given: Any) -> Any:
    """Arguments as they are before the layer runs: a cache is filled by it, so it is copied."""
    if isinstance(given, dict):
        return {name: _kept(value) for name, value in given.items()}
    if type(given) in (tuple, list):
        return type(given)(_kept(value) for value in given)
    return copy.deepcopy(given) if hasattr(given, "get_seq_length") else given


def _states(output: Any) -> torch.Tensor | None:
    """The first tensor that a layer gives."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, dict):
        output = tuple(output.values())
    return next((t for t in output if isinstance(t, torch.Tensor)), None) if isinstance(output, tuple | list) else None


def _by_position(output: torch.Tensor, batch: int, n: int) -> torch.Tensor | None:
    """``[batch, n, width]`` of a layer's output; None if its axes are others."""
    if output.ndim == 3 and output.shape[:2] == (batch, n):
        return output
    if output.ndim == 3 and output.shape[:2] == (n, batch):
        return output.transpose(0, 1)
    if output.ndim == 2 and output.shape[0] == batch * n:
        return output.view(batch, n, -1)
    if output.ndim == 4 and output.shape[0] == batch and output.shape[1] * output.shape[2] == n:
        return output.flatten(1, 2)
    return None


def _far(mine: torch.Tensor, model: torch.Tensor) -> float:
    """The largest difference, relative to the largest number."""
    size = model.abs().max().clamp(min=torch.finfo(model.dtype).tiny)
    return float((mine - model).abs().max() / size) if mine.shape == model.shape else float("inf")


def _stacked(stack: ExitStack, session: Session, site: Site) -> None:
    """Tell a session when the run is inside a module."""

    def enter(module: nn.Module, args: Any) -> None:
        session.stack.append((site, False, ()))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        session.stack.pop()

    stack.callback(site.module.register_forward_pre_hook(enter).remove)
    stack.callback(site.module.register_forward_hook(leave).remove)


def _refusal(call: Call, site: Site, why: str) -> CaptureError:
    return CaptureError(
        f"edges='value_zeroing': {call.name} ({type(site.module).__name__}, layer {call.layer}) cannot be run again "
        f"with values of zero: {why}. Use edges='attention', or 'alti'."
    )
