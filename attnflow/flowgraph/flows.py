"""Edge flows and minimum cuts of the pairs that a graph shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from attnflow.flowgraph.heads import Room
from attnflow.flowgraph.records import FLOW, Output, PairFlow
from attnflow.scoring.flow.edges import EdgeFlow, EdgeFlows
from attnflow.scoring.network import F64, Network

EDGES_A_PAIR = 600
SHARE = 0.95
BEST = 32
# A small flow is shown whole: pruning is for what nobody could read.
WHOLE = 60
# What a pair costs in any case, in edges looked at.
EACH = 6e4


def pair_flows(
    net: Network,
    outputs: Sequence[Output],
    space: Room,
    limit: int | None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[tuple[int, int], PairFlow]:
    """Flows by (index of the output, input), the most interesting ones first, until ``limit`` or the page is full.

    ``progress`` is called with how many are done, and how many there will be at most.
    """
    flows = EdgeFlows(net.stack())
    caps = flows.caps
    capacities = caps.floats(caps.cap)
    limit = max(8, int(space.work / (caps.steps * caps.n**2 + EACH))) if limit is None else limit
    out: dict[tuple[int, int], PairFlow] = {}
    room = space.edges
    for t, sink in _interest(outputs):
        if len(out) >= limit or room <= 0:
            break
        top = net.tops[net.layers.index(outputs[t].layer)]
        row = net.rows[outputs[t].row]
        pair = _pruned(flows.pair(top, row, sink), capacities, top, row, sink)
        room -= len(pair.flow)
        out[t, sink] = pair
        if progress is not None:
            progress(len(out), min(limit, len(outputs) * net.size))
    return out


def _interest(outputs: Sequence[Output]) -> Iterator[tuple[int, int]]:
    """Pairs in the order in which they are wanted: the best of the first output, the best of each other, the rest."""
    orders = [np.argsort(-t.scores[FLOW], kind="stable").tolist() for t in outputs]
    yield from ((0, j) for j in orders[0][:BEST])
    yield from ((t, orders[t][0]) for t in range(1, len(outputs)))
    yield from ((0, j) for j in orders[0][BEST:])
    for rank in range(1, len(orders[0])):
        yield from ((t, orders[t][rank]) for t in range(1, len(outputs)))


def _pruned(found: EdgeFlow, capacities: F64, top: int, row: int, sink: int) -> PairFlow:
    where = np.argwhere(found.flow > 0)
    flows = found.flow[tuple(where.T)]
    order = np.argsort(-flows, kind="stable")
    mass = np.cumsum(flows[order])
    total = float(mass[-1]) if len(mass) else 0.0
    keep = min(EDGES_A_PAIR, int(np.searchsorted(mass, SHARE * total)) + 1) if total else 0
    keep = max(keep, min(len(order), WHOLE))
    cuts = {side: tuple(found.cut_edges(side)) for side in ("source", "sink")}
    leaves, enters = capacities[top - 1, row].sum(), capacities[0, :, sink].sum()
    close = [name for name, c in (("input", enters), ("output", leaves)) if abs(found.value - c) <= 1e-12 * abs(c)]
    return PairFlow(
        found.value, where[order[:keep]], flows[order[:keep]], len(order),
        float(mass[keep - 1]) / total if total else 1.0, cuts, close[0] if close else "between",
    )  # fmt: skip
