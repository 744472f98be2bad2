"""Attention flow by networkx: the readable reference, and the export of the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.errors import SelectionError
from attnflow.heads import Heads
from attnflow.scoring.flow.integers import Capacities, integers
from attnflow.scoring.flow.solver import CUT, Solution
from attnflow.scoring.network import Network, Residual, network
from attnflow.scoring.source import attentions, ready
from attnflow.select import pick_layer, pick_position

if TYPE_CHECKING:
    import networkx as nx


def graph(caps: Capacities) -> nx.DiGraph[tuple[int, int]]:
    """Nodes ``(height, i)``; an edge from ``(h + 1, i)`` to ``(h, k)`` with capacity ``cap[h, i, k]``, in units."""
    import networkx as nx

    g: nx.DiGraph[tuple[int, int]] = nx.DiGraph()
    g.add_nodes_from((h, i) for h in range(caps.steps + 1) for i in range(caps.n))
    for h, i, k in np.argwhere(caps.cap > 0).tolist():
        g.add_edge((h + 1, i), (h, k), capacity=int(caps.cap[h, i, k]))
    return g


def solve_networkx(stack: Any, tops: Sequence[int], rows: Sequence[int]) -> Solution:
    """The same as :func:`attnflow.scoring.flow.solver.solve`, one ``networkx.maximum_flow_value`` per pair.

    >>> solve_networkx([[[0.5, 0.5], [0.5, 0.5]]] * 2, [2], [0]).scores
    array([[[1., 1.]]])
    """
    import networkx as nx

    caps = integers(stack).upto(max(tops))
    g = graph(caps)
    units = np.zeros((len(tops), len(rows), caps.n), np.int64)
    for a, top in enumerate(tops):
        for b, row in enumerate(rows):
            for j in range(caps.n):
                units[a, b, j] = nx.maximum_flow_value(g, (top, row), (0, j))
    return Solution(caps, tuple(tops), tuple(rows), units, np.full(units.shape, CUT, np.int8))


def to_networkx(
    source: Any,
    tokenizer: Any = None,
    text: Any = None,
    *,
    layer: int = -1,
    position: int | str | None = None,
    target: int | str | None = None,
    residual: Residual = None,
    start_layer: int = 0,
    heads: Heads | None = None,
    **options: Any,
) -> nx.DiGraph[tuple[int, int]]:
    """The flow network as a ``networkx.DiGraph``; with ``position`` and ``target``, the flow between these two.

    Nodes are ``(level, index)``, level 0 the inputs, with the attribute ``token``; an edge leads from an output to the
    input it looks at (from row to column), with the attribute ``capacity``. With ``position`` (an output of ``layer``)
    and ``target`` (an input), edges also have ``flow``, and nodes ``near_source`` and ``near_sink``: whether they are
    on the sink's side of the minimum cut nearest to the source, and nearest to the sink. The graph has ``value``,
    ``source`` and ``sink``.

    >>> g = to_networkx([[[0.0, 1.0], [1.0, 0.0]]], position=0, target=1)
    >>> g.edges[(1, 0), (0, 1)]
    {'capacity': 0.5, 'flow': 0.5}
    >>> g.graph["value"]
    0.5
    """
    source, tokenizer, text = ready(source, tokenizer, text, "to_networkx")
    found, single = attentions(source, tokenizer, text, heads=heads, **options)
    if not single:
        raise SelectionError(f"A network is exported for one example at a time, and {len(found)} were given.")
    net = network(found[0], residual, start_layer)
    caps = integers(net.stack())
    g = _named(caps, net)
    if position is None and target is None:
        return g
    if position is None or target is None:
        raise SelectionError(f"A flow needs both ends: position={position!r}, target={target!r}.")
    top = net.tops[pick_layer(layer, net.layers)]
    row = net.rows[pick_position(position, net.queries)]
    _mark(g, caps, top, row, pick_position(target, net.tokens))
    return g


def _named(caps: Capacities, net: Network) -> nx.DiGraph[tuple[int, int]]:
    g = graph(caps)
    for _, _, edge in g.edges(data=True):
        edge["capacity"] = edge["capacity"] * 2.0**-caps.bits
    for node, data in g.nodes(data=True):
        data["token"] = net.tokens[node[1]]
    return g


def _mark(g: nx.DiGraph[tuple[int, int]], caps: Capacities, top: int, row: int, sink: int) -> None:
    from attnflow.scoring.flow.edges import edge_flow

    found = edge_flow(caps, top, row, sink)
    for (h, i), (_, k), edge in g.edges(data=True):
        edge["flow"] = float(found.flow[h - 1, i, k]) if h <= top else 0.0
    for (h, i), data in g.nodes(data=True):
        data["near_source"] = bool(h <= top and found.near_source[h, i])
        data["near_sink"] = bool(h <= top and found.near_sink[h, i])
    g.graph.update(value=found.value, source=(top, row), sink=(0, sink))
