"""The flow on every edge for one source and one sink, and its two extreme minimum cuts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.errors import SelectionError
from attnflow.reprs import one_line
from attnflow.scoring.flow.integers import Capacities, Ints, Words, integers, unpack
from attnflow.scoring.flow.search import orders
from attnflow.scoring.flow.workspace import Work, workspace
from attnflow.scoring.network import F64

Mask = npt.NDArray[np.bool_]


@one_line
@dataclass(frozen=True, eq=False)
class EdgeFlow:
    """A maximum flow from node ``(height, row)`` to input ``sink``.

    Attributes:
        value: the flow.
        flow: ``[height, n, n]``: ``flow[h, i, k]`` is what runs from node *i* at height *h* + 1 to node *k* below it.
        units: the same in integers, as exact as the engine.
        near_source: ``[height + 1, n]``: which nodes are on the sink's side of the minimum cut nearest to the source.
        near_sink: the same for the minimum cut nearest to the sink. The two differ where the bottleneck is not unique.
    """

    value: float
    flow: F64
    units: Ints
    near_source: Mask
    near_sink: Mask

    def cut_edges(self, nearest: str = "source") -> list[tuple[int, int, int]]:
        """The full edges ``(h, i, k)`` that cross a minimum cut, from the source's side to the sink's."""
        if nearest not in ("source", "sink"):
            raise SelectionError(f"nearest={nearest!r} is not known. Use 'source' or 'sink'.")
        side = self.near_source if nearest == "source" else self.near_sink
        used = np.argwhere(self.units > 0)
        h, i, k = used.T
        return [(a, b, c) for a, b, c in used[~side[h + 1, i] & side[h, k]].tolist()]


def edge_flow(stack: Any, height: int, row: int, sink: int) -> EdgeFlow:
    """A maximum flow, edge by edge: the same one on every call.

    Maximum flows are not unique; this one fills edges in the order of the tokens, as the engine does.

    >>> half = [[0.5, 0.5], [0.5, 0.5]]
    >>> e = edge_flow([half, half], height=2, row=0, sink=1)
    >>> e.value, e.flow[0].tolist()
    (1.0, [[0.0, 0.5], [0.0, 0.5]])
    >>> e.cut_edges("sink"), e.cut_edges("source")
    ([(0, 0, 1), (0, 1, 1)], [(1, 0, 0), (1, 0, 1)])
    """
    return EdgeFlows(stack).pair(height, row, sink)


class EdgeFlows:
    """Flows of many pairs of one network: what they share is made once.

    >>> flows = EdgeFlows([[[0.5, 0.5], [0.5, 0.5]]] * 2)
    >>> [flows.pair(2, 0, sink).value for sink in (0, 1)]
    [1.0, 1.0]
    """

    def __init__(self, stack: Any) -> None:
        caps = stack if isinstance(stack, Capacities) else integers(stack)
        self.caps = caps.replaced(np.ascontiguousarray(caps.cap))
        self._orders: dict[int, Words] = {}
        self._spaces: dict[int, Work] = {}

    def pair(self, height: int, row: int, sink: int) -> EdgeFlow:
        """The flow from node ``(height, row)`` to input ``sink``: the same as by :func:`edge_flow`."""
        steps, n = self.caps.steps, self.caps.n
        if not (1 <= height <= steps and 0 <= row < n and 0 <= sink < n):
            raise SelectionError(
                f"height={height}, row={row}, sink={sink}, but there are heights 1 to {steps} and nodes 0 to {n - 1}."
            )
        caps = self.caps.upto(height)
        flow = _conserved(self._preflow(caps, row, sink), caps, row, sink)
        value = caps.floats(flow[0, :, sink].sum())
        near_source, near_sink = _cuts(caps.cap, flow, row, sink)
        return EdgeFlow(float(value), caps.floats(flow), flow, near_source, near_sink)

    def _order(self, sink: int, steps: int) -> Words:
        """The engine's order of the nodes; that of a height depends on the steps below it only."""
        if sink not in self._orders:
            self._orders[sink] = orders(self.caps, np.array([sink], np.uint64))
        order = self._orders[sink][:, : steps + 1].copy()
        order[0, steps] = np.arange(self.caps.n)
        return order

    def _preflow(self, caps: Capacities, row: int, sink: int) -> Ints:
        """The preflow of one pair, without the source's own edges: ``[height, n, n]``."""
        from attnflow.scoring.flow.compiled import columns

        n, steps = caps.n, caps.steps
        wanted = np.full(steps + 1, -1, np.int64)
        wanted[steps] = 0
        others = np.full((1, n), 2**62, np.int64)  # a lower bound that settles all rows but one
        others[0, row] = -1
        if steps not in self._spaces:
            self._spaces[steps] = workspace(n, steps)
        space = self._spaces[steps]
        order = self._order(sink, steps)
        columns(
            np.ascontiguousarray(caps.cap), np.ascontiguousarray(caps.rowsum), np.array([sink], np.uint64), order,
            wanted, others, np.zeros((1, 1, n), np.int64), np.zeros((1, 1, n), np.int8),
            np.zeros((1, 1, n, (steps - 1) * ((n + 63) // 64)), np.uint64), space, explicit=True,
        )  # fmt: skip
        used = unpack(space.used.reshape(steps, n, -1)[: steps - 1], n)
        at = np.flatnonzero(used)
        h, i, k = np.unravel_index(at, used.shape)
        preflow = np.zeros(caps.cap.shape, np.int64)
        preflow[h, order[0, h + 1, i], order[0, h, k]] = space.flow[at]
        return preflow


def _conserved(flow: Ints, caps: Capacities, row: int, sink: int) -> Ints:
    """Give back what is stuck, from the inputs up, so that every node sends what it gets."""
    steps = caps.steps
    if steps == 1:
        flow[0, row, sink] = caps.cap[0, row, sink]
        return flow
    for h in range(1, steps - 1):
        sent = flow[h - 1].sum(1)
        stuck = np.flatnonzero(flow[h].sum(0) > sent)
        if len(stuck):
            gets = flow[h][:, stuck]
            flow[h][:, stuck] = np.clip(sent[stuck] - (np.cumsum(gets, 0) - gets), 0, gets)
    flow[steps - 1, row] = flow[steps - 2].sum(1)
    return flow


def _cuts(cap: Ints, flow: Ints, row: int, sink: int) -> tuple[Mask, Mask]:
    """Sink sides of the cut nearest to the source (what it cannot reach) and to the sink (what can reach it)."""
    steps, n, _ = cap.shape
    down, up = cap > flow, flow > 0
    start, end = np.zeros((2, steps + 1, n), bool)
    start[steps, row] = end[0, sink] = True
    reached = _closure(start, down, up)
    reaching = _closure(end, up, down)
    return ~reached, reaching


def _closure(nodes: Mask, down: Mask, up: Mask) -> Mask:
    """All nodes joined to ``nodes``: from above by the edges ``down``, from below by the edges ``up``."""
    steps = len(down)
    sent_down, sent_up = np.zeros((2, *nodes.shape), bool)  # whose edges were followed already

    def follow(h: int, sent: Mask, edges: Mask, to: int, axis: int) -> None:
        new = np.flatnonzero(nodes[h] & ~sent[h])
        if len(new):
            sent[h, new] = True
            nodes[to] |= edges.take(new, axis).any(axis)

    while not (sent_down[1:] | ~nodes[1:]).all() or not (sent_up[:-1] | ~nodes[:-1]).all():
        for h in range(steps, 0, -1):
            follow(h, sent_down, down[h - 1], h - 1, 0)
        for h in range(steps):
            follow(h, sent_up, up[h], h + 1, 1)
    return nodes
