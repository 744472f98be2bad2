"""Norm, ALTI and mixing ratios of every layer while the model runs, each with its certificate."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from attnflow.capturing.edges import parts
from attnflow.capturing.edges.form import Open
from attnflow.capturing.edges.parts import Parts, Unsupported
from attnflow.capturing.edges.steps import Step, View
from attnflow.capturing.edges.trace import Trace
from attnflow.capturing.session import Call, Projection, Record, Session
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
        self.norms = 0
        self.beside: set[str] = set()

    def around(self) -> AbstractContextManager[object]:
        """While the model runs."""
        return self.trace

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
        self.trace.begin(call, site, weights, values, out, query, self._kept(weights), self._past(call), rows)

    def weighed(self, call: Call, site: Site, weights: torch.Tensor, four: torch.Tensor) -> None:
        """A softmax; the values are found where the weights are multiplied with them."""
        self.trace.begin_weights(call, site, weights, four, self._kept(four))

    def projected(self, call: Call, site: Site, weights: torch.Tensor, given: Projection) -> None:
        """``multi_head_attention_forward``, which projects what it gives."""
        self.trace.begin_projected(call, site, weights, given, self._kept(weights))

    def finish(self) -> None:
        """The run is over; an error if a call was not decomposed."""
        self.trace.finish()
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

    def _past(self, call: Call) -> int:
        return self.session.given[call.run].past

    def _close(self, opened: Open, steps: tuple[Step, ...], t: torch.Tensor, view: View) -> None:
        assert opened.weights is not None and opened.values is not None
        with torch.no_grad():
            try:
                n, m = opened.weights.shape[-2:]
                rows = None
                if opened.rows is not None:
                    n, rows = opened.positions, torch.tensor(opened.rows, device=opened.weights.device)
                own = own_positions(opened.call, opened.site, n, m, opened.past, opened.weights.device)
                own = own if own is None or rows is None else own[rows]
                whole = None if rows is None else (rows, n)
                found = parts.evaluate(opened.weights, opened.values, opened.out, own, steps, t, view, whole)
            except Unsupported as error:
                raise self._refusal(opened, str(error)) from error
            if found.error > limit(t.dtype):
                raise self._refusal(opened, f"{len(steps)} steps ({_names(steps)})", found.error)
            self._keep(opened, found, t.dtype)
        self.norms += found.norms
        if found.beside:
            self.beside.add(opened.call.name)

    def _keep(self, opened: Open, found: Parts, precision: torch.dtype) -> None:
        ratio = None
        if self.edges == "attention":
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
        assert weights is not None
        source = "interface" if opened.out is not None else "tap"
        size = found.sizes
        self.session.keep(
            Record(
                opened.call, opened.site, weights, size.positions if opened.rows is None else opened.positions,
                size.inputs, source, precision, mixing=ratio, error=found.error, rows=opened.rows,
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
