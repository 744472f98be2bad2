"""A network of few edges, solved for one set of capacities at its end after another.

To sort the edges takes as long as to find a flow, so that is done once: only what the last node takes from each of the
others changes from flow to flow. Capacities are 29-bit integers, as in thin.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attnflow.scoring.flow.thin import MOST, Small


class Sparse:
    """Edges from ``heads`` to ``tails`` with capacities ``units``, between ``nodes`` nodes.

    >>> net = Sparse(np.array([2, 2, 0, 1]), np.array([0, 1, 3, 3]), np.array([5, 7, 9, 2]), 4)
    >>> net.flow(2, 3, 100), net.flow(2, 3, 3), net.flow(2, 3, 100, np.array([1, 9]))
    (7, 5, 8)
    """

    def __init__(
        self, heads: npt.NDArray[np.integer], tails: npt.NDArray[np.integer], units: npt.NDArray[np.integer], nodes: int
    ) -> None:
        count = len(heads)
        ends = np.concatenate([heads, tails]).astype(np.int32)
        order = np.argsort(ends, kind="stable")
        place = np.empty(2 * count, np.int32)
        place[order] = np.arange(2 * count, dtype=np.int32)
        self.nodes = nodes
        self.first = np.searchsorted(ends[order], np.arange(nodes + 1)).astype(np.int32)
        self.to: Small = np.concatenate([tails, heads]).astype(np.int32)[order]
        self.pair: Small = place[np.where(order < count, order + count, order - count)]
        self.given: Small = np.concatenate([units, np.zeros(count)]).astype(np.int32)[order]
        self.place = place[:count]
        self._space = [np.empty(nodes + 1, np.int32) for _ in range(4)]
        self._into = self.place[np.asarray(tails) == nodes - 1]

    def near_sink(self) -> npt.NDArray[np.bool_]:
        """Which nodes can still reach the sink of the last flow, ``[nodes]``, if no larger flow was there.

        This is the sink's side of a minimum cut, the smallest that there is.
        """
        return self._space[0][: self.nodes] < MOST

    @staticmethod
    def bytes_for(edges: int) -> int:
        """Bytes that a network of so many edges takes, with those that it takes to sort them."""
        return 2 * edges * (4 * 4 + 3 * 8)

    def flow(self, source: int, sink: int, enough: int, last: npt.NDArray[np.integer] | None = None) -> int:
        """A flow between two nodes: the largest, or the first that is found of at least ``enough`` units.

        ``last`` are other capacities for the edges into the last node, in the order in which these were given.
        """
        room = self.given.copy()
        if last is not None:
            room[self._into] = last
        return self.more(source, sink, enough, room)

    def more(self, source: int, sink: int, enough: int, room: Small, flows: int = 0) -> int:
        """The size of a flow that begins with one of size ``flows``, which has left ``room`` on each edge."""
        from attnflow.scoring.flow import compiled

        return compiled.paths(source, sink, enough, self.first, self.to, self.pair, room, self._space, flows)
