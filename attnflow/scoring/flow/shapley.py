"""Attention flow as a game: when are flows Shapley values, and when are they not?

Ethayarajh & Jurafsky (2021) call attention flows Shapley values, for players within one layer and the total flow as
payoff. Here the players are the inputs, and the payoff v(S) of a set S is the maximum flow from one output into all of
S together. v is monotone and submodular, so with F_j = v({j}), the flow that :func:`attnflow.flow` gives,

    φ_j ≤ F_j for every input,   Σ φ_j = v(all),   and   φ = F exactly where  Σ F_j = v(all).

That is so for one layer, where v is additive; in deeper networks paths to different inputs share edges, each F_j counts
the shared capacity for itself, and the flows sum to more than can run at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from attnflow.errors import SelectionError
from attnflow.reprs import one_line
from attnflow.scoring.flow.integers import Capacities, Ints, integers
from attnflow.scoring.flow.solver import solve
from attnflow.scoring.network import F64

LARGEST = 14


@one_line
@dataclass(frozen=True, eq=False)
class Game:
    """The flow game of one output.

    Attributes:
        shapley: ``[n]``: φ_j, the Shapley value of input *j*.
        flows: ``[n]``: F_j, the flow to input *j* alone.
        total: v(all), the flow into all inputs together.
        additive: whether the flows are the Shapley values, decided in integers.
    """

    shapley: F64
    flows: F64
    total: float
    additive: bool


def shapley(stack: Any, height: int, row: int) -> Game:
    """Exact Shapley values of the inputs for the output ``(height, row)``, by all 2ⁿ sets of inputs.

    ``stack`` is ``[S, n, n]`` as for the solver: rows are outputs, columns inputs; n is at most 14.

    >>> one = shapley([[[0.75, 0.25], [0.5, 0.5]]], height=1, row=0)
    >>> one.shapley.tolist(), one.additive
    ([0.75, 0.25], True)
    >>> two = shapley([[[0.75, 0.25], [0.5, 0.5]]] * 2, height=2, row=0)
    >>> two.shapley.tolist(), two.flows.tolist(), two.additive
    ([0.75, 0.25], [1.0, 0.5], False)
    """
    caps = integers(stack, spare=4)
    if caps.n > LARGEST:
        raise SelectionError(f"{caps.n} inputs have 2**{caps.n} subsets, but at most {LARGEST} inputs are enumerated.")
    worth = payoffs(caps, height, row)
    n = caps.n
    alone = worth[1 << np.arange(n)]
    values = [float(_value(worth, n, j) / 2**caps.bits) for j in range(n)]
    additive = sum(int(x) for x in alone) == int(worth[-1])
    return Game(np.array(values), caps.floats(alone), float(caps.floats(worth[-1:])[0]), additive)


def payoffs(caps: Capacities, height: int, row: int) -> Ints:
    """v(S) of every set S of inputs, ``[2**n]`` in units; bit *j* of the index says whether input *j* is in S.

    Each set becomes a sink below its inputs, joined to them by edges that no flow can fill; n sets are solved at once.
    The sums of these edges need four bits more than those of the network.
    """
    n = caps.n
    sets = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    wide = int(caps.rowsum[height - 1, row])
    out = np.zeros(2**n, np.int64)
    for start in range(0, 2**n, n):
        part = sets[start : start + n]
        last = np.zeros((n, n), np.int64)
        last[:, : len(part)] = part.T * wide
        joined = caps.replaced(np.concatenate([last[None], caps.cap[:height]]))
        out[start : start + n] = solve(joined, [height + 1], [row]).units[0, 0, : len(part)]
    return out


def _value(worth: Ints, n: int, j: int) -> Fraction:
    """φ_j = Σ over sets S without j of |S|! (n−|S|−1)! / n! · (v(S ∪ {j}) − v(S))."""
    by_size = [0] * n
    for s in range(2**n):
        if not s >> j & 1:
            by_size[s.bit_count()] += int(worth[s | 1 << j]) - int(worth[s])
    return sum((Fraction(g, n * math.comb(n - 1, k)) for k, g in enumerate(by_size)), Fraction(0))
