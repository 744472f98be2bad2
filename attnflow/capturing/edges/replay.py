"""One layer, run again with the value of one input position set to zero in one of its calls of attention.

What a value brings to the output of attention is a difference: out − α_h[i, j]·v_h[j]. So only what comes after
attention is run for each input position, several of them at once. Three things are spared where the layer allows it:

- The output projection is linear. What is missing after it is Σ_h α_h[i, j]·v_h[j]·W_O^h, which takes n·H·e
  multiplications instead of n·e².
- Linear maps that read a norm of the residual stream, such as the first half of a feed-forward part, need no matrix
  product for each input position, and those before attention none at all (:mod:`attnflow.capturing.edges.products`).
- Output positions that do not see any of the input positions, as in causal models, do not change. If the layer gives
  the same when it is given the later positions only, the earlier ones are left out.

Each is tried on the layer itself before it is used.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from attnflow.capturing.edges.decompose import limit
from attnflow.capturing.edges.products import (
    Missing,
    NormedMaps,
    Ran,
    Remembered,
    matrix_of,
    normed_maps,
    noted,
    remembered,
)
from attnflow.capturing.session import ACTIVE, Call, Session
from attnflow.capturing.survey import Site
from attnflow.capturing.tap import Tap
from attnflow.errors import CaptureError

CHUNK = 1 << 19
"""How many numbers of layer outputs are computed at once."""

STARTS, NARROW = 8, 16
"""In how many steps earlier output positions are left out, and of how many positions a step is at least: each takes two
more runs of the layer, which short texts do not repay."""


@dataclass(eq=False)
class Attended:
    """One call inside a layer: ``numbers`` says how many its module had made before, in this entry of the layer.

    These are several where a module calls attention more than once with the same weights, for parts of the values.
    ``values`` and ``out`` are known of calls through the interface.
    """

    call: Call
    site: Site
    numbers: list[int]
    weights: torch.Tensor
    values: torch.Tensor | None
    out: torch.Tensor | None
    source: str


@dataclass(eq=False)
class Entry:
    """A layer while it runs: what it was given and which calls it made."""

    layer: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    calls: list[Attended] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Trial:
    """A layer's output with all input positions, ``whole``, and ``wanted``, without ``column``."""

    column: int
    whole: torch.Tensor
    wanted: torch.Tensor

    def passed(self, after: torch.Tensor) -> bool:
        """True if ``after`` is ``wanted``: as a whole, and at each position beside what the column changes there.

        The change may be far smaller than the output, and is what counts.
        """
        if distance(after, self.wanted) > limit(self.wanted.dtype) / 10:
            return False
        far, change, size = (t.abs().amax(-1) for t in (after - self.wanted, self.wanted - self.whole, self.wanted))
        return bool((far <= change / 100 + 64 * torch.finfo(far.dtype).eps * size).all())


class Replay:
    """Runs a layer again without some input positions."""

    def __init__(self, session: Session, entry: Entry, seen: Attended) -> None:
        self.entry, self.seen = entry, seen
        self.several = True
        self.inner = Session(session.survey, layers=frozenset(), replace=self._replace, again=self._again)
        self.counts: Counter[int] = Counter()
        self.keep: torch.Tensor | None = None
        self.delta: torch.Tensor | None = None
        self.start = 0
        self.subtracts = _subtracts(seen)
        self.projection: OutputProjection | None = None
        self.before: Remembered | None = None
        self.ahead: NormedMaps | None = None
        self.whole = torch.empty(0)

    def base(self) -> torch.Tensor:
        """The layer's output with all input positions; what can be spared is found on the way."""
        if not self.subtracts:
            return self.run(None)
        assert self.seen.out is not None
        with noted(self.entry.layer) as calls:
            out = self.run(None)
        projections = projections_of(calls, self.seen.out)
        if len(projections) == 1 and self.several:
            with noted(self.entry.layer) as without:
                trial = Trial(column := self._telling(), out, self.run(column))
            self._try(trial, projection=projections[0])
            if self.projection is not None:
                missing = self._deltas([column], 0)[0][0]
                self._try(trial, before=remembered(calls, projections[0].module))
                self._try(trial, ahead=normed_maps(calls, projections[0].module, without, missing))
        # What is spared rounds otherwise, so what is compared with it is computed likewise.
        self.whole = out if self.ahead is None else self.run(None)
        return self.whole

    def _telling(self) -> int:
        """The input position that brings most: not just the one with most weight, as sinks have values near zero."""
        assert self.seen.values is not None
        sizes = self.seen.values.norm(dim=-1).repeat_interleave(
            self.seen.weights.shape[1] // self.seen.values.shape[1], 1
        )
        return int((self.seen.weights.sum(2) * sizes).sum((0, 1)).argmax())

    def _try(self, trial: Trial, **spared: Any) -> None:
        """Use what spares work if the layer's output without one input position is still what it was."""
        (name,) = spared
        setattr(self, name, spared[name])
        try:
            after = self.run(trial.column)
        except Exception:  # whatever the layer's code does
            after = trial.wanted.new_empty(0)
        if not trial.passed(after):
            setattr(self, name, None)

    def chunks(self, output: torch.Tensor) -> Iterator[tuple[int, list[int]]]:
        """(first output position that may change, input positions) for all of these."""
        n, m = self.seen.weights.shape[-2:]
        starts = self._starts(output) if self.subtracts and n == m else [0]
        for start, stop in zip(starts, [*starts[1:], m], strict=True):
            step = max(1, CHUNK // max(output.numel() * (n - start) // n, 1))
            for first in range(start, stop, step):
                yield start, list(range(first, min(stop, first + step)))

    def _starts(self, output: torch.Tensor) -> list[int]:
        batch, _, n, _ = self.seen.weights.shape
        starts = [0]
        if output.ndim != 3 or output.shape[:2] != (batch, n) or not self.several:
            return starts
        steps = min(STARTS, n // NARROW)
        for start in (n * k // steps for k in range(1, steps)):
            if bool(self.seen.weights[:, :, :start, start:].any()) or not self._positionwise(start):
                break
            starts.append(start)
        return starts

    def _positionwise(self, start: int) -> bool:
        """True if the layer gives the same for the output positions from ``start`` on when it is given no others."""
        try:
            return distance(self.run(None, start), self.whole[:, start:]) <= limit(self.whole.dtype) / 10
        except Exception:  # whatever the layer's code does with fewer positions
            return False

    def run(self, column: int | None, start: int = 0) -> torch.Tensor:
        """The layer's output from ``start`` on without ``column``; with all of them if None."""
        m = self.seen.weights.shape[-1]
        keep = torch.ones(m, dtype=self.seen.weights.dtype, device=self.seen.weights.device)
        if column is not None:
            keep[column] = 0
        if column is None or not self.subtracts:
            return self._forward(keep, None, start)
        delta, missing = self._deltas([column], start)
        first = None if missing is None else (missing[0][0], [p[0] for p in missing[1]])
        return self._forward(keep, delta[0], start, first)

    def run_all(self, columns: list[int], start: int = 0) -> torch.Tensor:
        """``[columns, …]``: the layer's output without each of them. What comes before attention is computed once."""
        if self.subtracts:
            ones = self.seen.weights.new_ones(self.seen.weights.shape[-1])
            delta, missing = self._deltas(columns, start)
            if missing is None:
                return torch.vmap(lambda d: self._forward(ones, d, start))(delta)
            return torch.vmap(lambda d, m: self._forward(ones, d, start, m))(delta, missing)
        chosen = torch.tensor(columns, device=self.seen.weights.device)
        keep = 1 - nn.functional.one_hot(chosen, self.seen.weights.shape[-1]).to(self.seen.weights.dtype)
        return torch.vmap(lambda k: self._forward(k, None, start))(keep)

    def _deltas(self, columns: list[int], start: int) -> tuple[torch.Tensor, Missing | None]:
        """What each of them brings: ``[columns, B, n, H, width]`` before the projection, ``[columns, …]`` after it."""
        seen = self.seen
        assert seen.values is not None and seen.out is not None
        weights = seen.weights[:, :, start:, columns].permute(3, 0, 2, 1)
        values = seen.values.repeat_interleave(seen.weights.shape[1] // seen.values.shape[1], 1)[:, :, columns]
        if self.projection is None:
            return (weights[..., None] * values.permute(2, 0, 1, 3)[:, :, None]).to(seen.out.dtype), None
        weights, heads = weights.to(values.dtype), self.projection.of_heads(values)
        return weights @ heads, None if self.ahead is None else self.ahead.missing_of(weights, heads)

    def _forward(
        self, keep: torch.Tensor, delta: torch.Tensor | None, start: int, missing: Missing | None = None
    ) -> torch.Tensor:
        self.keep, self.delta, self.start = keep, delta, start
        self.counts.clear()
        self.hit = self.due = False
        entry, inner = self.entry, self.inner
        n = self.seen.weights.shape[-2]
        args, kwargs = from_position(copied(entry.args), start, n), from_position(copied(entry.kwargs), start, n)
        token = ACTIVE.set(inner)
        try:
            with ExitStack() as stack:
                for site in inner.survey.sites.values():
                    if site.taps:
                        _stacked(stack, inner, site)
                if self.before is not None:
                    stack.enter_context(self.before.instead())
                if self.projection is not None:
                    stack.callback(self.projection.module.register_forward_hook(self._projected).remove)
                if self.ahead is not None:
                    stack.enter_context(self.ahead.instead(missing, start))
                stack.enter_context(Tap(inner))
                out = states(entry.layer.forward(*args, **kwargs))
        finally:
            ACTIVE.reset(token)
            inner.stack.clear()
        if out is None or not self.hit:
            raise refusal(self.seen.call, self.seen.site, "its attention was not seen in the second run")
        return out

    def _again(self, site: Site) -> torch.Tensor | None:
        """The output of the call that is changed, where it is a difference; None for all others."""
        if not self.subtracts or site is not self.seen.site:
            return None
        number = self.counts[id(site)]
        self.counts[id(site)] += 1
        if number not in self.seen.numbers or self.seen.out is None:
            return None
        self.hit = self.due = True
        out = self.seen.out[:, self.start :]
        return out if self.delta is None or self.projection is not None else out - self.delta

    def _projected(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor | None:
        """The output of the projection without what is missing."""
        if not self.due or self.delta is None:
            return None
        self.due = False
        return output - self.delta.reshape(output.shape)

    def _replace(self, call: Call, weights: torch.Tensor) -> torch.Tensor | None:
        """A weight of zero is a value of zero: rows are not divided by their sums again."""
        if self.subtracts or call.name != self.seen.call.name:
            return None
        number = self.counts[id(self.seen.site)]
        self.counts[id(self.seen.site)] += 1
        if number not in self.seen.numbers or self.keep is None:
            return None
        self.hit = True
        return weights * self.keep


@dataclass(frozen=True, eq=False)
class OutputProjection:
    """The output projection of attention: ``matrix`` [H · width, e]."""

    module: nn.Module
    matrix: torch.Tensor

    def of_heads(self, values: torch.Tensor) -> torch.Tensor:
        """``[columns, B, H, e]`` of ``values`` [B, H, columns, width]."""
        heads = self.matrix.reshape(values.shape[1], values.shape[-1], -1)
        return (values @ heads).permute(2, 0, 1, 3)


def projections_of(calls: list[Ran], out: torch.Tensor) -> list[OutputProjection]:
    """The linear modules that were given ``out`` [B, n, H, width], the output of attention."""
    found = []
    for ran in calls:
        matrix = matrix_of(ran.module)
        wide = ran.x.numel() == out.numel() and ran.x.shape[-1] == out.shape[2] * out.shape[3]
        if matrix is not None and wide and torch.equal(ran.x.reshape(out.shape), out):
            found.append(OutputProjection(ran.module, matrix))
    return found


def _subtracts(seen: Attended) -> bool:
    """True if attention's output is weights × values, so that a value of zero is a difference."""
    if seen.values is None or seen.out is None or seen.values.ndim != 4 or seen.out.ndim != 4:
        return False
    if len(seen.numbers) > 1:  # each has values of its own
        return False
    if seen.weights.shape[1] % seen.values.shape[1] or seen.weights.shape[-1] != seen.values.shape[2]:
        return False
    values = seen.values.repeat_interleave(seen.weights.shape[1] // seen.values.shape[1], 1)
    mixed = (seen.weights.to(values.dtype) @ values).transpose(1, 2)
    return mixed.shape == seen.out.shape and distance(mixed, seen.out) <= limit(seen.out.dtype)


def copied(given: Any) -> Any:
    """Arguments as they are before the layer runs: a cache is filled by it, so it is copied."""
    if isinstance(given, dict):
        return {name: copied(value) for name, value in given.items()}
    if type(given) in (tuple, list):
        return type(given)(copied(value) for value in given)
    return copy.deepcopy(given) if hasattr(given, "get_seq_length") else given


def from_position(given: Any, start: int, n: int) -> Any:
    """Arguments of a layer without the positions before ``start``: the second axis of what has ``n`` there."""
    if not start:
        return given
    if isinstance(given, dict):
        return {name: from_position(value, start, n) for name, value in given.items()}
    if type(given) in (tuple, list):
        return type(given)(from_position(value, start, n) for value in given)
    several = isinstance(given, torch.Tensor) and given.ndim > 1 and given.shape[1] == n
    return given[:, start:] if several else given


def states(output: Any) -> torch.Tensor | None:
    """The first tensor that a layer gives."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, dict):
        output = tuple(output.values())
    return next((t for t in output if isinstance(t, torch.Tensor)), None) if isinstance(output, tuple | list) else None


def distance(mine: torch.Tensor, model: torch.Tensor) -> float:
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


def refusal(call: Call, site: Site, why: str) -> CaptureError:
    """The error for a layer that cannot be run again."""
    return CaptureError(
        f"edges='value_zeroing': {call.name} ({type(site.module).__name__}, layer {call.layer}) cannot be run again "
        f"with values of zero: {why}. Use edges='attention', or 'alti'."
    )
