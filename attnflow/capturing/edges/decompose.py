"""Norm, ALTI and mixing ratios of every layer while the model runs, each with its certificate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from attnflow.capturing.edges import chain, parts
from attnflow.capturing.edges.chain import Unsupported
from attnflow.capturing.edges.follow import Open
from attnflow.capturing.edges.parts import Parts
from attnflow.capturing.edges.steps import Step, View
from attnflow.capturing.edges.trace import Trace
from attnflow.capturing.plain import Again, Held
from attnflow.capturing.session import Call, Computed, Projection, Record, Session
from attnflow.capturing.survey import Site
from attnflow.errors import CaptureError

LIMIT = 1e-3
"""How far the sum of a layer's parts may be from what the model computed, relative to its size."""

_MEASURES = {"norm": parts.norm, "alti": parts.alti}


def limit(precision: torch.dtype) -> float:
    """The limit for a model of this precision: half precision rounds every step by more than the limit itself.

    >>> limit(torch.float32), limit(torch.bfloat16)
    (0.001, 0.03125)
    """
    return max(LIMIT, 4 * torch.finfo(precision).eps)


class Decomposition:
    """Takes the calls of attention in, follows each to the residual stream, and keeps a record of its edges.

    ``edges`` is "norm" or "alti", or "attention" where only the mixing ratios are wanted.
    """

    def __init__(self, model: nn.Module, session: Session, edges: str, mixing: bool) -> None:
        self.session, self.edges, self.mixing = session, edges, mixing
        buffers = frozenset(id(b) for b in model.buffers())
        self.trace = Trace(session, self._close, buffers)
        self.by_rows = edges != "attention"
        self.norms = 0
        self.beside: set[str] = set()
        self.free: list[Held] = []

    def around(self) -> AbstractContextManager[object]:
        """While the model runs."""
        return self.trace

    def lend(self, query: torch.Tensor, key: torch.Tensor) -> Held:
        """Memory for the weights of one call, which is free again as soon as the call is decomposed."""
        at = next((k for k, held in enumerate(self.free) if held.fits(query, key)), None)
        return Held.of(query, key) if at is None else self.free.pop(at)

    def attended(self, call: Call, site: Site, given: Computed) -> None:
        """A call through transformers' interface."""
        kept = None if isinstance(given.weights, Again) else self._kept(given.weights)
        self.trace.begin(call, site, given, kept, self.session.given[call.run].past)

    def weighed(self, call: Call, site: Site, weights: torch.Tensor, four: torch.Tensor) -> None:
        """A softmax; the values are found where the weights are multiplied with them."""
        self.trace.begin_weights(call, site, weights, four, self._kept(four))

    def projected(self, call: Call, site: Site, weights: torch.Tensor, given: Projection) -> None:
        """``multi_head_attention_forward``, which projects what it gives."""
        self.trace.begin_projected(call, site, weights, given, self._kept(weights))

    def finish(self) -> None:
        """The run is over; an error if a call was not decomposed."""
        self.trace.finish()
        parts.ROOM.tidy()
        for opened in self.trace.opened:
            if not opened.closed:
                raise self._refusal(opened, f"{opened.lost or 'no addition to the residual stream'} after attention")
        if self.norms:
            self.session.notes.append(
                f"{self.norms} norms were made linear: their mean and variance are held at the value of the whole sum."
            )
        if self.beside:
            shown = ", ".join(sorted(self.beside)[:3])
            self.session.notes.append(
                f"{len(self.beside)} layers add another part at the same place as attention (first: {shown}); the "
                "parts are those of attention and residual alone."
            )

    def _kept(self, weights: torch.Tensor) -> torch.Tensor | None:
        return self.session.reduction.whole(weights) if self.edges == "attention" else None

    def _close(self, opened: Open, steps: tuple[Step, ...], t: torch.Tensor, view: View) -> None:
        pieces, error = [], 0.0
        with torch.no_grad():
            for rows, weights in _pieces(opened):
                found = self._evaluated(opened, steps, t, view, rows, weights)
                error = max(error, found.error)
                if error > limit(t.dtype):
                    raise self._refusal(opened, f"{len(steps)} steps ({_names(steps)})", error)
                pieces.append(self._measured(opened, found))
                norms, beside = found.norms, found.beside
                del found, weights  # or they would be held while the next are computed
        self._keep(opened, pieces, error, t.dtype)
        if opened.held is not None and opened.held.weights is opened.weights:
            self.free = [opened.held]  # of the form that is used at present
        self.norms += norms
        if beside:
            self.beside.add(opened.call.name)

    def _evaluated(
        self, opened: Open, steps: tuple[Step, ...], t: torch.Tensor, view: View, rows: torch.Tensor | None,
        weights: torch.Tensor,
    ) -> Parts:  # fmt: skip
        """The parts of all output positions, or of ``rows``."""
        assert opened.values is not None
        n, m = weights.shape[-2:]
        n = n if rows is None else opened.positions
        try:
            own = own_positions(opened.call, opened.site, n, m, opened.past, weights.device)
            own = own if own is None or rows is None else own[rows]
            whole = None if rows is None else (rows, n)
            return chain.evaluate(
                weights, opened.values, opened.out, own, steps, t, view, whole, opened.mixes, parts.ROOM
            )  # fmt: skip
        except Unsupported as error:
            raise self._refusal(opened, str(error)) from error

    def _measured(self, opened: Open, found: Parts) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(edges in the form in which they are kept, mixing ratios if they are wanted) of the rows of ``found``."""
        ratio = None
        if self.edges == "attention":
            assert opened.kept is not None
            weights = opened.kept
        else:
            raw, aside = _MEASURES[self.edges](found)
            total = raw.sum(-1)
            weights = settled(raw, total, found.own)
            if aside is not None:
                ratio = total / (total + aside).clamp(min=torch.finfo(total.dtype).tiny)
            dtype, device = self.session.reduction.dtype, self.session.reduction.device
            weights = weights.to(device or weights.device, dtype)
        if self.mixing and ratio is None:
            ratio = parts.mixing(found)
        return weights, ratio

    def _keep(self, opened: Open, pieces: list[Any], error: float, precision: torch.dtype) -> None:
        weights = pieces[0][0] if len(pieces) == 1 else torch.cat([w for w, _ in pieces], -2)
        ratio = pieces[0][1] if len(pieces) == 1 or pieces[0][1] is None else torch.cat([r for _, r in pieces], -1)
        source = "interface" if opened.out is not None else "tap"
        assert opened.weights is not None
        _, _, n, m = opened.weights.shape
        self.session.keep(
            Record(
                opened.call, opened.site, weights, n if opened.rows is None else opened.positions, m, source, precision,
                mixing=ratio, error=error, rows=opened.rows,
            )
        )  # fmt: skip

    def _refusal(self, opened: Open, seen: str, error: float | None = None) -> CaptureError:
        what = f"edges={self.edges!r}" if self.edges != "attention" else "mixing=True"
        far = (
            "" if error is None else f" add up to something else than the model computed (relative error {error:.1g}):"
        )
        return CaptureError(
            f"{what}: the parts of {opened.call.name} ({type(opened.site.module).__name__}, layer {opened.call.layer})"
            f"{far or ' cannot be told apart:'} {seen}. Use edges='value_zeroing', which only runs the layer again, or "
            "edges='attention'."
        )


def _pieces(opened: Open) -> Iterator[tuple[torch.Tensor | None, torch.Tensor]]:
    """(output positions, their weights), all at once or as many as may be held; None for all positions."""
    weights = opened.weights
    assert weights is not None
    if isinstance(weights, Again):
        for first, last in weights.pieces():
            yield torch.arange(first, last, device=weights.device), weights.rows(first, last)
    else:
        yield None if opened.rows is None else torch.tensor(opened.rows, device=weights.device), weights


def own_positions(call: Call, site: Site, n: int, m: int, past: int, device: torch.device) -> torch.Tensor | None:
    """For each of ``n`` output positions its own among ``m`` input positions; None if it has none."""
    places = torch.arange(n, device=device)
    if "Merged" in type(site.module).__name__ and m > n:
        return places
    if call.kind == "cross":
        return None
    return places + past if m == n + past else None


def settled(raw: torch.Tensor, total: torch.Tensor, own: torch.Tensor | None) -> torch.Tensor:
    """Rows divided by their sums; a row to which nothing contributed is its own position's, or spread over all."""
    empty = total <= 0
    out = raw / torch.where(empty, 1.0, total)[..., None]
    if bool(empty.any()):
        spread = torch.full_like(raw, 1 / raw.shape[-1]) if own is None else torch.zeros_like(raw)
        if own is not None:
            spread[:, torch.arange(len(own)), own] = 1.0
        out = torch.where(empty[..., None], spread, out)
    return out


def _names(steps: tuple[Any, ...]) -> str:
    return ", ".join(getattr(s, "what", type(s).__name__.lower()) for s in steps)
