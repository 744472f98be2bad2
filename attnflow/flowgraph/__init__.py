"""All that a page of attention flow shows, as a record: a view draws a :class:`FlowGraph` and computes nothing.

The network is that of :func:`attnflow.flow`. For an output (a position at a layer) there is one maximum flow to each
input, with an edge flow and a minimum cut of its own; a graph holds them one by one and adds none together, as a sum of
maximum flows is no flow. What is large is pruned, and every graph says what it kept.
"""

from typing import TYPE_CHECKING

from attnflow.flowgraph.graph import flow_graph, graph_at_once, graph_of
from attnflow.flowgraph.heads import ways
from attnflow.flowgraph.records import FLOW, Curve, FlowGraph, Level, Output, PairFlow, settings_line
from attnflow.lazy import on_first_use

__all__ = [
    "FLOW",
    "Curve",
    "FlowGraph",
    "Level",
    "Output",
    "PairFlow",
    "flow_graph",
    "graph_at_once",
    "graph_of",
    "settings_line",
    "ways",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
