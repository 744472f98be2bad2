"""Bounds instead of exact values: leave out the smallest capacities and say what that can cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnflow.scoring.flow.integers import integers
from attnflow.scoring.flow.solver import Solution, solve
from attnflow.scoring.network import F64


def bracket(
    stack: F64,
    tolerance: float,
    tops: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    threads: int | None = None,
) -> tuple[Solution, F64, float]:
    """Lower and upper bounds of every flow, at most ``tolerance`` apart, and the share of edges left out.

    Each of the S steps loses its smallest capacities, up to a sum of ``tolerance / S``. The flow of what is left is a
    lower bound. A maximum flow of the whole network, less its paths over lost edges, is a flow of what is left; at the
    highest step it can use only the source's row, at the lowest only the sink's column, so

        F ≤ F_left + lost(row i of the highest step) + Σ lost(steps between) + lost(column j of the lowest step)

    >>> lower, upper, pruned = bracket(np.array([[[0.5, 0.5], [0.001, 0.999]]]), 0.01)
    >>> lower.scores[0, 1].tolist(), upper[0, 1].round(3).tolist(), pruned
    ([0.0, 0.999], [0.001, 0.999], 0.25)
    """
    whole = integers(stack)
    caps = whole.cap.copy()
    budget = int(tolerance * 2.0**whole.bits / whole.steps)
    for step in caps:
        flat = step.reshape(-1)
        order = np.argsort(flat, kind="stable")
        flat[order[: int(np.searchsorted(np.cumsum(flat[order]), budget, side="right"))]] = 0
    lost = whole.cap - caps
    share = float((lost > 0).sum() / max((whole.cap > 0).sum(), 1))
    lower = solve(whole.replaced(caps), tops, rows, threads=threads)
    upper = lower.units.copy()
    total = lost.sum((1, 2))
    for a, top in enumerate(lower.tops):
        row = lost[top - 1, list(lower.rows)]
        if top == 1:
            upper[a] += row
        else:
            upper[a] += row.sum(-1)[:, None] + total[1 : top - 1].sum() + lost[0].sum(0)
        bound = np.minimum(whole.rowsum[top - 1, list(lower.rows)][:, None], whole.cap[0].sum(0))
        upper[a] = np.minimum(upper[a], bound)
    return lower, whole.floats(upper), share
