"""One flow after another through a network of few edges: each begins with the flow before it.

What the last node may take from each token differs from flow to flow, but little between neighbours. So the flow before
is kept. Where a token brought more than may be taken from it now, the rest stands on the token: it is pushed down other
edges as far as they lead, or taken back along the edges that it came by, step by step up to the source
(reroute_kernel.py). No search for distances is needed for that, as all edges lead down. Only where it does not bring
enough are paths sought that also lead back up (paths_kernel.py).

What still stands somewhere once enough has arrived stays there for the next flow. So this is a preflow: no edge carries
more than it can, and no node but the source hands on more than it gets. If all that stands somewhere went back to the
source, what the last node gets would not change: it is the value of a flow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attnflow.scoring.flow.sparse import Sparse
from attnflow.scoring.flow.thin import Small


class Rerouted:
    """Flows from ``source`` into the last of ``nodes`` nodes, along edges from ``heads`` to ``tails``.

    Each edge leads from a node to one of a lower number, or into the last node; none leads out of that or of a node of
    a higher number than the source.

    >>> net = Rerouted(np.array([2, 2, 0, 1]), np.array([0, 1, 3, 3]), np.array([5, 7, 1, 1]), 4, 2)
    >>> [net.flow(np.array(last), 100) for last in ([9, 2], [1, 9], [0, 3])], net.flow(np.array([1, 9]), 4)
    ([7, 8, 3], 4)
    """

    def __init__(
        self,
        heads: npt.NDArray[np.integer],
        tails: npt.NDArray[np.integer],
        units: npt.NDArray[np.integer],
        nodes: int,
        source: int,
    ) -> None:
        into = np.flatnonzero(np.asarray(tails) == nodes - 1)
        self._net, self._source, self._end = Sparse(heads, tails, units, nodes), source, nodes - 1
        self._into, self._tokens = self._net.place[into], np.asarray(heads)[into]
        # An edge comes before those that are its node's only the other way round: see Sparse.
        self._split = (self._net.first[:-1] + np.bincount(heads, minlength=nodes)).astype(np.int32)
        self._room, self._excess = self._net.given.copy(), np.zeros(nodes, np.int32)
        self._room[self._into] = 0
        self._space = [np.empty(nodes, np.int32) for _ in range(4)]
        self.left: Small = np.zeros(len(into), np.int32)
        """What the last node would have taken from each token beyond what it got in the last flow."""

    def flow(self, last: npt.NDArray[np.integer], enough: int) -> int:
        """The largest flow, or the first that is found of at least ``enough`` units.

        ``last`` is how much may go along each edge into the last node, in the order in which these were given; in all
        less than 2**31. So no more than that leaves the source, as it hands out more only once nothing stands anywhere.
        """
        from attnflow.scoring.flow import compiled

        room, net, into = self._room, self._net, self._into
        came = room[net.pair[into]]  # an edge's other way round holds what flows
        taken = np.minimum(came, last)
        room[into], room[net.pair[into]] = last - taken, taken
        self._excess[self._tokens] += came - taken
        value = compiled.reroute(
            self._source, self._end, enough, net.first, self._split, net.to, net.pair, room, self._excess, self._space,
            int(taken.sum(dtype=np.int64)),
        )  # fmt: skip
        if value < enough:  # all that stood somewhere is back at the source
            value = net.more(self._source, self._end, enough, room, value)
        self.left = room[into]
        return value
