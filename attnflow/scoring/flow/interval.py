"""Bounds instead of exact values, at most a tolerance apart.

An interval needs a bound on the *cut*, not on the sum of what was left out. The cuts at both ends of the network
(relay.py) are cuts of the whole network, whatever a search leaves out, and on deep attention they are nearly always the
narrowest. So for few outputs of a deep network only the lower bound is searched for: by laying flows in hops, by
drawing them up from many inputs at once (draw.py), then in a thinned network (thin.py). Where the narrowest cut lies
between the ends, few edges give both bounds (cutting.py). Where the window between the two tokens is small, or nothing
else helps, the search is in full.

Where the ends do not bound enough (shallow networks, all outputs), the smallest capacities are left out of every step,
and what they could have carried is added to the upper bound.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.errors import AttnFlowWarning
from attnflow.scoring.flow.cutting import Cutting
from attnflow.scoring.flow.draw import Draw
from attnflow.scoring.flow.integers import Capacities, Ints
from attnflow.scoring.flow.relay import Bounds, relayable, relayed
from attnflow.scoring.flow.room import check_room, free_bytes
from attnflow.scoring.flow.search import finish, room_to_search
from attnflow.scoring.flow.solver import DRAWN, FEW, THIN, WIDE, Solution, capacities, solve
from attnflow.scoring.flow.thin import Places, Thin
from attnflow.scoring.network import F64

# Thinned networks: edges of each row, and tokens of a window up to which a search in full is as quick. More edges make
# the search itself quicker, because fewer flows have to be taken back.
_THIN = ((24, 128), (96, 1024))
_DRAW = (12, 64, 256)  # the same for drawing: few edges first, more for what they leave open
_MANY = 32  # inputs of one output that pay for the sums that drawing needs
_FAR = (24, 1024)  # edges of each row where a cut is sought between the ends, and tokens from which that is done


def bracket(
    source: Any,
    tolerance: float,
    tops: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    threads: int | None = None,
) -> tuple[Solution, F64, float]:
    """Lower and upper bounds of every flow, at most ``tolerance`` apart, and the share of edges left out.

    Where the search that would bring them so near does not fit in memory they stay farther apart, with a warning.

    ``source`` is what :func:`attnflow.scoring.flow.solver.solve` takes.

    >>> lower, upper, pruned = bracket(np.array([[[0.5, 0.5], [0.001, 0.999]]]), 0.01)
    >>> lower.scores[0, 1].tolist(), upper[0, 1].round(3).tolist(), pruned
    ([0.0, 0.999], [0.001, 0.999], 0.25)
    """
    caps = source if isinstance(source, Capacities) else capacities(source, rows)
    heights = list(range(1, caps.steps + 1)) if tops is None else list(tops)
    few = rows is not None and len(rows) < caps.n
    if rows is None or not few or not all(relayable(caps.upto(top)) for top in heights):
        return _pruned(caps.upto(max(heights)), tolerance, heights, rows, threads)
    causal = caps.is_causal()
    if not causal and 2 * len(rows) >= caps.n:
        return _pruned(caps.upto(max(heights)), tolerance, heights, rows, threads)
    found = [_narrowed(caps.upto(top), rows, tolerance, causal, threads or 1) for top in heights]
    lower = Solution(
        caps.upto(max(heights)),
        tuple(heights),
        tuple(rows),
        np.stack([s.units[0] for s, _, _ in found]),
        np.stack([s.proofs[0] for s, _, _ in found]),
    )
    return lower, np.stack([upper for _, upper, _ in found]), max(share for _, _, share in found)


def _narrowed(
    caps: Capacities, rows: Sequence[int], tolerance: float, causal: bool, threads: int
) -> tuple[Solution, F64, float]:
    """The flows from ``rows`` at the top: by the ends, drawn, among few edges, and in full, in this order."""
    most = int(tolerance * 2.0**caps.bits)
    known = _Known(caps, rows, causal, most, relayed(caps, rows, causal, threads, most))
    for a in range(len(rows)):
        known.narrow(a)
    lower, upper, left = known.lower, known.upper, known.upper - known.lower > most
    wide = left & ~_fits(caps, rows, causal, threads)
    found = finish(caps, rows, Bounds(lower, np.where(left & ~wide, upper, lower)), causal, threads)
    upper = np.where(left & ~wide, found.units, upper)
    if wide.any():
        _warn(caps, int(wide.sum()), float(caps.floats((upper - lower)[wide]).max()), tolerance)
    proofs = np.where(wide, WIDE, np.where((known.by > 0) & ~left, known.by, found.proofs)).astype(np.int8)
    solution = Solution(caps, (caps.steps,), tuple(rows), found.units[None], proofs[None])
    return solution, caps.floats(upper), known.share


class _Known:
    """What is known of the flows from ``rows``: bounds ``[rows, n]``, which come nearer, and what brought them."""

    def __init__(self, caps: Capacities, rows: Sequence[int], causal: bool, most: int, laid: Bounds) -> None:
        self.caps, self.rows, self.causal, self.most = caps, rows, causal, most
        self.lower, self.upper = laid.lower.copy(), laid.upper.copy()
        self.by = np.zeros(self.lower.shape, np.int8)
        self.share = 0.0
        """Of the edges, the largest that a thinned network did without."""

    def narrow(self, a: int) -> None:
        """Bring the bounds of one row nearer, from what serves many inputs at once to what serves single ones."""
        t = self.rows[a]
        many = len(sinks := self._far(a, _DRAW[-1])) >= _MANY
        if many:
            draw = Draw(self.caps, t, sinks, self.causal, *_DRAW[:2])
            self._raise(a, sinks, draw.lower(self.upper[a, sinks], self.most), DRAWN)
        # Few edges in few steps would not do for inputs far away that were drawn in vain.
        self._thin(a, max(0, t + 1 - _FAR[1]) if many and self.causal else 0)
        self._cut(a)

    def _cut(self, a: int) -> None:
        """Both bounds from few edges for inputs far away, if there is memory for it."""
        t, (keep, near), free = self.rows[a], _FAR, free_bytes()
        if not len(sinks := self._far(a, near)):
            return
        start, stop = self._window(t, sinks)
        if free is not None and Cutting.bytes_for(self.caps.steps, stop - start, keep) > free:
            return
        cutting = Cutting(self.caps.view(start, stop), t - start, self.causal, keep)
        for j in sinks.tolist():
            least, self.upper[a, j] = cutting.bounds(j - start, int(self.upper[a, j]), self.most)
            self._raise(a, np.array([j]), np.array([least]), FEW)

    def _thin(self, a: int, first: int) -> None:
        """Lower bounds in a thinned network for inputs from ``first`` on."""

        def far(near: int) -> Places:
            sinks = self._far(a, near)
            return sinks[sinks >= first]

        if not len(sinks := far(min(near for _, near in _THIN))):
            return
        start, stop = self._window(self.rows[a], sinks)
        view, t = self.caps.view(start, stop), self.rows[a] - start
        thin = Thin(view, t, sinks - start, self.causal, max(keep for keep, _ in _THIN))
        for keep, near in _THIN:
            if len(sinks := far(near)):
                found = [thin.lower(j - start, keep) for j in sinks.tolist()]
                self._raise(a, sinks, np.array(found, np.int64), THIN)
                self.share = max(self.share, thin.left_out(keep))

    def _far(self, a: int, near: int) -> Places:
        """The inputs of a row that are open, and ``near`` tokens or more from the output."""
        sinks, t = np.flatnonzero(self.upper[a] - self.lower[a] > self.most), self.rows[a]
        if self.causal:
            return sinks[t - sinks >= near]
        return sinks[sinks != t] if self.caps.n > near else sinks[:0]

    def _raise(self, a: int, sinks: Places, to: Ints, code: int) -> None:
        self.lower[a, sinks] = np.maximum(self.lower[a, sinks], to)
        self.by[a, sinks[self.upper[a, sinks] - self.lower[a, sinks] <= self.most]] = code

    def _window(self, t: int, sinks: Places) -> tuple[int, int]:
        """The tokens that paths from an output to some inputs lead through."""
        return (int(sinks.min()), t + 1) if self.causal else (0, self.caps.n)


def _fits(caps: Capacities, rows: Sequence[int], causal: bool, threads: int) -> npt.NDArray[np.bool_]:
    """Which pairs can be searched for in full, in the memory that is free: ``[rows, n]``."""
    free = free_bytes()
    if free is None:
        return np.ones((len(rows), caps.n), bool)
    tokens = np.array(rows)[:, None] + 1 - np.arange(caps.n) if causal else np.full((len(rows), caps.n), caps.n)
    return np.asarray(room_to_search(caps.steps, np.maximum(tokens, 0), threads)) <= free


def _warn(caps: Capacities, count: int, width: float, tolerance: float) -> None:
    warnings.warn(
        f"{count} of {caps.n:,} flows have an interval wider than {tolerance:g}, the widest {width:.2g}: the search "
        "for them does not fit in the memory that is free. Their bounds hold all the same.",
        AttnFlowWarning,
        stacklevel=2,
    )


def _pruned(
    given: Capacities, tolerance: float, tops: Sequence[int], rows: Sequence[int] | None, threads: int | None
) -> tuple[Solution, F64, float]:
    """Each of the S steps loses its smallest capacities, up to a sum of ``tolerance / S``.

    The flow of what is left is a lower bound. A maximum flow of the whole network, less its paths over lost edges, is a
    flow of what is left; at the highest step it can use only the source's row, at the lowest only the sink's column, so

        F ≤ F_left + lost(row i of the highest step) + Σ lost(steps between) + lost(column j of the lowest step)
    """
    check_room(3 * 8 * given.steps * given.n**2, f"{given.steps} steps of {given.n:,} tokens without their least edges")
    whole = Capacities(given.cap, given.bits, given.rowsum)
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
