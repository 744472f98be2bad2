"""Edges of one small model: do the parts of every layer add up, can every layer run again, are the numbers right?"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnflow.attention import Attention
from attnflow.capturing.capture import capture
from attnflow.errors import AttnFlowError
from tests.capturing.edges import naive
from tests.zoo.build import Tiny, floats, run
from tests.zoo.check import differences, in_eager, owners, snapshot

ROUNDING = 2e-5
WIDE = 1e-5
"""Differences from the naive form that are allowed in single and, where that is too little, in double precision."""


@dataclass
class Report:
    """What the edges of one model came to; `parts` and `zeroed` are the largest error of a layer, or None."""

    parts: float | None = None
    zeroed: float | None = None
    layers: int = 0
    compared: str = ""
    zeroed_compared: str = ""
    parts_reason: str = ""
    zeroed_reason: str = ""
    owners: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_edges(tiny: Tiny) -> Report:
    """Decompose, run again with values of zero, and compare both with naive forms; traces are an error."""
    shake(tiny)
    report = Report()
    taken, report.parts_reason = _tried(tiny, "alti")
    if taken is not None:
        report.parts, report.layers = max((taken.certificate or {"": 0.0}).values()), _count(taken)
        report.owners, report.notes = owners(tiny.model, taken), [n for n in taken.notes if "layers add another" in n]
        report.compared = _compared(tiny, lambda t: [_difference(t, "alti"), _difference(t, "norm")])
    zeroed, report.zeroed_reason = _tried(tiny, "value_zeroing")
    if zeroed is not None:
        report.zeroed = max((zeroed.certificate or {"": 0.0}).values())
        report.layers, report.owners = _count(zeroed), report.owners or owners(tiny.model, zeroed)
        report.zeroed_compared = _compared(tiny, lambda t: [_zeroing_difference(t)])
    return report


def shake(tiny: Tiny) -> None:
    """Give norms gains and biases, so that leaving one out shows; back to what it was if that is no longer finite."""
    vectors = [p for p in tiny.model.parameters() if p.ndim == 1 and p.is_floating_point()]
    before = [p.detach().clone() for p in vectors]
    torch.manual_seed(1)
    with torch.no_grad():
        for p in vectors:
            p.add_(torch.randn_like(p) / 5)
    try:
        sound = all(bool(t.isfinite().all()) for t in floats(run(tiny.model, tiny.inputs)))
    except Exception:  # whatever a model raises
        sound = False
    if not sound:
        with torch.no_grad():
            for p, old in zip(vectors, before, strict=True):
                p.copy_(old)


def _tried(tiny: Tiny, edges: str) -> tuple[Attention | None, str]:
    """What was captured, or the reason why not."""
    traces = snapshot(tiny.model)
    try:
        taken, reason = _capture(tiny, edges), ""
    except AttnFlowError as error:
        taken, reason = None, f"{type(error).__name__}: {error}"
    left = differences(traces, snapshot(tiny.model))
    if left:
        raise AssertionError(f"edges={edges!r} left traces: {left}")
    return taken, reason


def _capture(tiny: Tiny, edges: str, **more: Any) -> Attention:
    torch.manual_seed(0)
    found = capture(tiny.model, inputs=copy.deepcopy(tiny.inputs), edges=edges, **more)
    return found[0] if isinstance(found, list) else found


def _count(taken: Attention) -> int:
    return sum(len(b.weights) for b in taken.blocks.values())


def _compared(tiny: Tiny, differ: Callable[[Tiny], list[tuple[int, float]]]) -> str:
    """ "equal, <calls>", "WRONG …", or why the naive form does not see this model."""
    try:
        found = differ(tiny)
        if max(far for _, far in found) < ROUNDING:
            return f"equal, {found[0][0]}"
        if not _same_in_eager(tiny):
            tiny = in_eager(tiny)  # the naive form runs in eager, where this model computes something else
        found = differ(doubled(tiny))
    except naive.NotSeen as error:
        return f"not seen: {error}"
    except Exception as error:  # the naive form takes ordinary models only
        return f"not seen: {type(error).__name__}"
    far = max(far for _, far in found)
    return f"equal, {found[0][0]}" if far < WIDE else f"WRONG by {far:.1g}"


def _difference(tiny: Tiny, edges: str) -> tuple[int, float]:
    """(calls that the naive form saw, their largest difference from the nearest captured matrix)."""
    torch.manual_seed(0)
    wanted = naive.naive(tiny.model, tiny.inputs, edges)
    return len(wanted), _furthest(wanted, _capture(tiny, edges, dtype=_precision(tiny)))


def _zeroing_difference(tiny: Tiny) -> tuple[int, float]:
    torch.manual_seed(0)
    entries = naive.entries_of_calls(tiny.model, tiny.inputs)
    wanted = naive.value_zeroing(tiny.model, tiny.inputs, entries)
    return len(wanted), _furthest(wanted, _capture(tiny, "value_zeroing", dtype=_precision(tiny)))


def _furthest(wanted: list[np.ndarray], taken: Attention) -> float:
    matrices = [w for block in taken.blocks.values() for w in block.weights]
    far = 0.0
    for one in wanted:
        rows = np.isfinite(one).all(-1)  # a row to which nothing contributes cannot be divided by its sum
        alike = [found for w in matrices if (found := _first_of(w, one.shape)) is not None]
        same = [float(np.abs(one - w)[rows].max(initial=0.0)) for w in alike]
        if not same:
            raise naive.NotSeen(f"no matrix of {one.shape[0]} × {one.shape[1]} positions")
        far = max(far, min(same))
    return far


def _first_of(w: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """A matrix of this shape: ``w``, or the first along its diagonal where one example ran as several sequences."""
    (n, m), (rows, columns) = shape, w.shape
    packed = rows > n and rows % n == 0 and rows // n * m == columns and not w[:n, m:].any()
    return w[:n, :m] if packed or w.shape == shape else None


def _same_in_eager(tiny: Tiny) -> bool:
    eager = in_eager(tiny)
    pairs = zip(floats(run(tiny.model, tiny.inputs)), floats(run(eager.model, eager.inputs)), strict=True)
    return all(torch.allclose(a.nan_to_num(), b.nan_to_num(), atol=1e-3, rtol=1e-3) for a, b in pairs)


def _precision(tiny: Tiny) -> str:
    return "float64" if next(tiny.model.parameters()).dtype == torch.float64 else "float32"


def doubled(tiny: Tiny) -> Tiny:
    inputs = {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in tiny.inputs.items()}
    return Tiny(copy.deepcopy(tiny.model).double(), inputs)
