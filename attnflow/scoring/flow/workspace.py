"""The arrays that one thread of the engine works on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnflow.scoring.flow.counting import PLACES

ENDLESS = 2**62
"""So much work that it never ends for that reason."""
SLOW = 12
"""Searches that a cut must have taken before its preflow is worth keeping for the next source."""


class Work(NamedTuple):
    """Flat arrays over S steps and n tokens, w words per set; to the kernel they are plain addresses."""

    cap: Any  # [S*n*n] capacities, renumbered for the sink
    fresh: Any  # [S*n*w] row (h, i): the edges with capacity
    flow: Any  # [S*n*n] preflow; counts only where ``used`` says so
    excess: Any  # [(S+1)*n] what came in and has not gone out
    room: Any  # [(S+1)*n] what a node may still take in the first wave
    limit: Any  # [(S+1)*n] upper bound of what can pass node (h, i) to this sink
    ahead: Any  # [S*n*w] row (h, i): the edges with capacity left
    used: Any  # [S*n*w] row (h, i): the edges with flow on them
    used_t: Any  # [S*n*w] the same by column
    ring: Any  # [((S-1)*n+3) * (S+1)*w] the nodes at each distance from the sink
    seen: Any  # [(S+1)*w] the nodes that can reach the sink
    active: Any  # [(S+1)*w] the nodes with excess
    useful: Any  # [(S+1)*w] the nodes with limit > 0
    alive: Any  # [(S+1)*w] those of them that may still reach the sink
    near: Any  # [(S+1)*w] those that were not farther from it in the search before
    beyond: Any  # [(S+1)*w] those that the search before did not come to
    lacking: Any  # [(S+1)*w] the nodes that hand on more than they have, see solve_next
    sums: Any  # [(S+1)*n] one number per node, for whoever needs it
    inside: Any  # [(S+1)*n] the same
    reads: Any  # [5] what a debug build has read, see counting.py


def words_of(n: int) -> int:
    """Words of a set of n nodes as the kernel holds it: as many as needed, beyond two made up to fours.

    >>> [words_of(n) for n in (1, 64, 65, 128, 129, 256, 257)]
    [1, 1, 2, 2, 4, 4, 8]
    """
    words = (n + 63) // 64
    return words if words <= 2 else 4 * ((words + 3) // 4)


def workspace(n: int, steps: int) -> Work:
    """Arrays for networks of ``steps`` steps over ``n`` tokens; they hold nothing yet."""
    words = words_of(n)
    rows, nodes, sets = steps * n * words, (steps + 1) * n, (steps + 1) * words

    def edges() -> Any:
        return np.empty(steps * n * n, np.int64)

    return Work._make(
        (
            *(edges(), np.empty(rows, np.uint64), edges()),
            *(np.zeros(nodes, np.int64) for _ in range(3)),
            *(np.empty(rows, np.uint64) for _ in range(3)),
            np.empty(((steps - 1) * n + 3) * sets, np.uint64),
            *(np.zeros(sets, np.uint64) for _ in range(7)),
            *(np.zeros(nodes, np.int64) for _ in range(2)),
            np.zeros(PLACES, np.uint64),
        )
    )
