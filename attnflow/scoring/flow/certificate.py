"""Proof that each flow is maximal: a cut of the same integer value, checked by code that knows no kernel.

Any cut's capacity is an upper bound of the flow (Ford & Fulkerson 1956). The lower bound is the preflow that the
kernel found, checked edge by edge before it was dropped. Pairs that the engine settled by a bound or a theorem are
solved again here, and must come out the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.errors import AttnFlowError, SelectionError
from attnflow.scoring.flow.integers import Capacities, Ints, unpack
from attnflow.scoring.flow.solver import FAILED, Solution, solve

Mask = npt.NDArray[np.bool_]

_HALF = 30


@dataclass(frozen=True, eq=False)
class Certificate:
    """A minimum cut for every pair of a :class:`Solution`.

    >>> half = [[0.5, 0.5], [0.5, 0.5]]
    >>> c = certify([half, half])
    >>> c
    Certificate(8 pairs, each with a cut of its own value)
    >>> c.cut(height=2, row=0, sink=1).tolist()
    [[False, True], [False, False]]
    """

    solution: Solution

    def __repr__(self) -> str:
        return f"Certificate({self.solution.units.size} pairs, each with a cut of its own value)"

    def cut(self, height: int, row: int, sink: int) -> Mask:
        """The sink's side of the minimum cut, ``[height, n]``: ``cut[h, i]`` for node *i* at height *h*."""
        s = self.solution
        if height not in s.tops or row not in s.rows or not 0 <= sink < s.capacities.n:
            raise SelectionError(
                f"no certificate for height {height}, row {row}, sink {sink}: there are heights {s.tops}, "
                f"rows {s.rows} and sinks 0 to {s.capacities.n - 1}."
            )
        side: Mask = _sides(s, s.tops.index(height), s.rows.index(row))[sink]
        return side

    def check(self) -> int:
        """Compute the capacity of every cut anew and compare it with the flow; the number of pairs checked."""
        s = self.solution
        for a, height in enumerate(s.tops):
            for b, row in enumerate(s.rows):
                capacity = cut_capacity(s.capacities, height, row, _sides(s, a, b))
                wrong = np.flatnonzero(capacity != s.units[a, b])
                if len(wrong):
                    j = wrong[0]
                    raise AttnFlowError(
                        f"the flow from node {row} at height {height} to input {j} is {s.units[a, b, j]} units, but "
                        f"its cut has {capacity[j]}. Please report this with the attention that caused it."
                    )
        return int(s.units.size)


def _sides(s: Solution, a: int, b: int) -> Mask:
    """Sink sides of the cuts of one source to every sink: ``[n, height, n]``."""
    n, height = s.capacities.n, s.tops[a]
    sides = np.zeros((n, height, n), bool)
    sides[:, 0] = np.eye(n, dtype=bool)
    if height > 1 and s.cuts is not None:
        sides[:, 1:] = unpack(s.cuts[a, b, :, : height - 1], n)
    return sides


def cut_capacity(caps: Capacities, height: int, row: int, sides: npt.NDArray[np.bool_]) -> Ints:
    """Capacity of cuts of one source: all that leads from the other side into the sink's."""
    total: Ints = cut_by_step(caps, height, row, sides).sum(0)
    return total


def cut_by_step(caps: Capacities, height: int, row: int, sides: npt.NDArray[np.bool_]) -> Ints:
    """What each step adds to the capacity of cuts of one source: ``[height, cuts]``.

    ``sides[c, h, i]`` says whether node *i* at height *h* is on the sink's side of cut *c*. The sums are taken in
    float64 on two halves of each integer: all partial sums stay below 2**53, so they are exact, and fast.
    """
    source = np.zeros((len(sides), 1, caps.n), bool)
    source[:, 0, row] = True
    above = np.concatenate([~sides[:, 1:], source], axis=1).astype(np.float64)
    below = sides.astype(np.float64)
    total = np.zeros((height, len(sides)), np.int64)
    for h in range(height):
        for part, shift in ((caps.cap[h] >> _HALF, _HALF), (caps.cap[h] & (2**_HALF - 1), 0)):
            crossing = ((above[:, h] @ part.astype(np.float64)) * below[:, h]).sum(-1)
            total[h] += crossing.astype(np.int64) << shift
    return total


def cut_shares(solution: Solution) -> npt.NDArray[np.float64]:
    """Which share of the minimum cuts from the highest sources each step holds: ``[steps]``, summing to one.

    Of several minimum cuts of a pair one counts: the one nearest to the sink or, where few sources were asked for and
    the network was solved upside down, to the source.
    """
    a = int(np.argmax(solution.tops))
    height = solution.tops[a]
    by_step = np.zeros(height)
    for b, row in enumerate(solution.rows):
        by_step += cut_by_step(solution.capacities, height, row, _sides(solution, a, b)).sum(1, dtype=np.float64)
    total = float(by_step.sum())
    return by_step / total if total else by_step


def certify(
    stack: Any, tops: Sequence[int] | None = None, rows: Sequence[int] | None = None, threads: int | None = None
) -> Certificate:
    """Solve every pair in full, keep a minimum cut of each, and check all of them.

    The engine's own answer, with its bounds, must be the same to the last bit.
    """
    full = solve(stack, tops, rows, explicit=True, threads=threads)
    fast = solve(full.capacities, full.tops, full.rows, threads=threads)
    if (full.proofs == FAILED).any() or (full.units != fast.units).any():
        a, b, j = np.argwhere((full.proofs == FAILED) | (full.units != fast.units))[0]
        raise AttnFlowError(
            f"flow from node {full.rows[b]} at height {full.tops[a]} to input {j}: {fast.units[a, b, j]} units by the "
            f"engine, {full.units[a, b, j]} solved in full. Please report this with the attention that caused it."
        )
    certificate = Certificate(full)
    certificate.check()
    return certificate
