"""Value zeroing: each layer is run again with the value of one input position set to zero, for each position in turn.

Mohebbi et al. (2023), equations 5 and 6: the score of input position *j* for output position *i* is the cosine distance
between the layer's output at *i* with and without the value of *j*; rows are divided by their sums. Nothing is taken
apart, so any layer will do that gives the same output when it is run again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from attnflow.capturing.edges.decompose import limit, own_positions, settled
from attnflow.capturing.edges.replay import Attended, Entry, Replay, copied, distance, refusal, states
from attnflow.capturing.session import ACTIVE, Call, Computed, Projection, Record, Session
from attnflow.capturing.survey import Site


class ValueZeroing:
    """Notes what every layer is given, and runs it again as soon as it is through."""

    by_rows = False

    def __init__(self, model: nn.Module, session: Session) -> None:
        self.session = session
        self.layers = {id(s.module): _layer_of(model, s) for s in session.survey.sites.values()}
        self.open: list[Entry] = []
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

    def lend(self, query: torch.Tensor, key: torch.Tensor) -> None:
        """The weights are needed until the layer is through."""

    def attended(self, call: Call, site: Site, given: Computed) -> None:
        """A call through transformers' interface."""
        self._note(call, site, given.weights, given.values, given.out, "interface")

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
            raise refusal(call, site, "it stands in no layer that could be run again")
        of_site = [c for c in entry.calls if c.site is site]
        number = sum(len(c.numbers) for c in of_site)
        twin = next((c for c in of_site if c.call.entry == call.entry and _equal(c.weights, weights)), None)
        if twin is not None:
            twin.numbers.append(number)
        else:
            entry.calls.append(Attended(call, site, [number], weights.detach(), values, out, source))

    def _enter(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._mine():
            self.open.append(Entry(layer, copied(args), copied(kwargs)))

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
                self._zero(entry, seen, states(output))

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

    def _zero(self, entry: Entry, seen: Attended, output: torch.Tensor | None) -> None:
        batch, _, n, m = seen.weights.shape
        if output is None or _by_position(output, batch, n) is None:
            shape = None if output is None else tuple(output.shape)
            raise refusal(
                seen.call, seen.site,
                f"its layer gives {shape} and attends in {batch} × {n} positions, as with windows, so that the output "
                "of a position is not known",
            )  # fmt: skip
        replay = Replay(self.session, entry, seen)
        base = replay.base()
        error = distance(base, output)
        if error > limit(output.dtype):
            raise refusal(seen.call, seen.site, f"its layer gives something else when run again (error {error:.1g})")
        first = _by_position(base, batch, n)
        assert first is not None
        raw = torch.empty(batch, n, m, dtype=torch.float64 if first.dtype == torch.float64 else torch.float32)
        for start, columns in replay.chunks(output):
            rest = first[:, start:]
            raw[:, :start, columns] = 0
            for j, out in zip(columns, self._outputs(replay, columns, start), strict=True):
                changed = _by_position(out, batch, n - start)
                assert changed is not None
                raw[:, start:, j] = cosine_distance(rest, changed).to(raw)
        self._keep(seen, raw, error, output.dtype)

    def _outputs(self, replay: Replay, columns: list[int], start: int) -> Iterator[torch.Tensor]:
        """The layer's outputs without each of ``columns``: all at once, or one after the other where that fails."""
        if replay.several:
            try:
                with warnings.catch_warnings():
                    # torch says of every operation that it has to take apart that this is slow.
                    warnings.filterwarnings("ignore", "There is a performance drop")
                    found = replay.run_all(columns, start)
                yield from found
                return
            except Exception:  # whatever the layer's code does that does not take several at once
                replay.several = False
                self.slowly.add(replay.seen.call.name)
        for j in columns:
            yield replay.run(j, start)

    def _keep(self, seen: Attended, raw: torch.Tensor, error: float, precision: torch.dtype) -> None:
        n, m = raw.shape[1:]
        past = self.session.given[seen.call.run].past
        own = own_positions(seen.call, seen.site, n, m, past, raw.device)
        weights = settled(raw, raw.sum(-1), own)
        reduction = self.session.reduction
        weights = weights.to(reduction.device or weights.device, reduction.dtype)
        self.session.keep(Record(seen.call, seen.site, weights, n, m, seen.source, precision, error=error))


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


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
    out: torch.Tensor = found.masked_fill(far <= rounding * long, 0)
    return out


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
