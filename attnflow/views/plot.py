"""Plots with matplotlib, for papers: heat-maps, tinted text, the graph of one flow. No pyplot, so no state is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.errors import SelectionError, ShapeError
from attnflow.flowgraph.records import FLOW, FlowGraph, PairFlow
from attnflow.formats import as_written
from attnflow.relevance import Relevance
from attnflow.select import pick_position
from attnflow.views.colours import blend, weights
from attnflow.views.names import show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"flow": "#0072b2", "residual": "#d55e00", "cross": "#007a5a", "capacity": "#d5dae0", "cut": "#1b1f24"}
# Points of line width for the widest capacity.
WIDEST = 7.0
GAP = 1.2


def plot(relevance: Relevance, ax: Axes | None = None, cmap: str = "Blues", **options: Any) -> Axes:
    """A heat-map on ``ax`` (or a new figure): layers × inputs for one position, else outputs × inputs.

    Rows are layers (highest on top) or output positions, columns are input positions. ``options`` go to
    ``Axes.imshow``. The figure is ``ax.figure``: ``relevance.plot().figure.savefig("scores.pdf")``.
    """
    if relevance.scores.ndim == 2:
        matrix, names, label = relevance.scores[::-1], [str(n) for n in relevance.layers][::-1], "layer"
    else:
        matrix, names = relevance.scores[-1], [show(t) for t in relevance.rows]
        label = f"output at layer {relevance.layers[-1]}"
    columns = [show(t) for t in relevance.tokens]
    ax = new_axes(len(columns), len(names)) if ax is None else ax
    signed = matrix.min() < 0
    top = float(abs(matrix).max()) or 1.0
    scale = {"cmap": "RdBu_r", "vmin": -top, "vmax": top} if signed else {"cmap": cmap, "vmin": 0.0, "vmax": top}
    image = ax.imshow(matrix, aspect="auto", **{**scale, **options})
    ax.set_xticks(range(len(columns)), columns, rotation=60, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(names)), names)
    ax.set_xlabel("input")
    ax.set_ylabel(label)
    ax.set_title(_title(relevance))
    ax.figure.colorbar(image, ax=ax, label="score")
    return as_written(ax)  # type: ignore[no-any-return]


def plot_all(results: Sequence[Relevance]) -> Figure:
    """One heat-map below the other, one per result."""
    rows = max(len(r.layers) if r.scores.ndim == 2 else len(r.rows) for r in results)
    figure = _figure(len(results[0].tokens), rows * len(results) + 2 * (len(results) - 1))
    axes = figure.subplots(len(results), 1, squeeze=False)
    for r, ax in zip(results, axes[:, 0], strict=True):
        plot(r, ax=ax)
    return figure


def plot_text(relevance: Relevance, ax: Axes | None = None, width: int = 72, size: float = 11) -> Axes:
    """The words of a result for one position, tinted by their scores at the last layer.

    Lines are broken after about ``width`` characters; ``size`` is that of the letters in points.

    >>> import numpy as np
    >>> r = Relevance(np.array([[0.2, 0.8]]), ["the", "key"], (0,), "raw", position=0)
    >>> [t.get_text() for t in plot_text(r).texts]
    ['the', 'key']
    """
    if relevance.scores.ndim != 2:
        raise ShapeError(
            f"A text is tinted for one output position, and {relevance.method} holds {len(relevance.rows)}. "
            "Choose one:  plot_text(relevance.at(position=-1))"
        )
    words = relevance.words()
    names = [show(t) for t in words.tokens]
    places = _lines(names, width)
    rows = places[-1][1] + 1
    ax = _figure_of(width * size * 0.62 / 72, rows * size * 2.2 / 72 + 0.4).add_subplot() if ax is None else ax
    before: Any = None
    for name, weight, (x, y) in zip(names, weights(words.scores[-1]), places, strict=True):
        # A word stands behind the one before it, however wide that comes out.
        where = {"xy": (1, 0), "xycoords": before, "xytext": (6, 0)} if x else _line_start(y, size)
        box = {"facecolor": tuple(c / 255 for c in blend(weight)), "edgecolor": "none", "pad": 2}
        before = ax.annotate(name, **where, textcoords="offset points", size=size, va="bottom", bbox=box)
    ax.set_axis_off()
    ax.set_title(_title(relevance), loc="left", size=size)
    return as_written(ax)  # type: ignore[no-any-return]


def _line_start(line: int, size: float) -> dict[str, Any]:
    """Lines follow each other from the top, whatever the height of the axes."""
    return {"xy": (0, 1), "xycoords": "axes fraction", "xytext": (0, 4 - (line + 1) * size * 2.2)}


def _lines(names: Sequence[str], width: int) -> list[tuple[int, int]]:
    """Column and line of each word."""
    from rich.cells import cell_len

    out, x, y = [], 0, 0
    for name in names:
        if x and x + cell_len(name) > width:
            x, y = 0, y + 1
        out.append((x, y))
        x += cell_len(name) + 1
    return out


def new_axes(columns: float, rows: float) -> Axes:
    """Axes of a new figure with room for these columns and rows."""
    axes: Axes = _figure(columns, rows).add_subplot()
    return axes


def _figure(columns: float, rows: float) -> Figure:
    return _figure_of(min(24.0, 2.5 + 0.42 * columns), min(24.0, 1.8 + 0.32 * rows))


def _figure_of(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _title(r: Relevance) -> str:
    return r.method if r.position_token is None else f"{r.method} from {show(r.position_token)}"


def plot_flow(
    graph: FlowGraph,
    layer: int = -1,
    position: int | str | None = None,
    source: int | str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The maximum flow from one output down to one input, over its capacities, and its minimum cut.

    Columns are tokens, rows levels from the inputs up. Line widths are capacities (pale) and what flows through them.

    Args:
        graph: what :func:`attnflow.flowgraph.flow_graph` gave.
        layer, position: the output; by default the graph's first.
        source: the input that it draws on; by default the one with the highest flow.
        ax: where to draw; by default a new figure, ``ax.figure``.

    >>> from attnflow import Attention
    >>> from attnflow.flowgraph import flow_graph
    >>> g = flow_graph(Attention.of([[[0.2, 0.8], [0.5, 0.5]]] * 2, tokens=["a", "b"]))
    >>> plot_flow(g, source=0).get_title()
    'b at layer 1 draws on a: flow 0.5000'
    """
    t = graph.find(layer, position)
    output = graph.outputs[t]
    sink = int(np.argmax(output.scores[FLOW])) if source is None else pick_position(source, graph.net.tokens)
    if (t, sink) not in graph.pairs:
        raise SelectionError(
            f"The flow from layer {output.layer}, position {output.row} to input {sink} is not one of the "
            f"{len(graph.pairs)} of this graph. Ask for more:  flow_graph(attention, pairs=…)"
        )
    pair = graph.pairs[t, sink]
    grid = _Grid(graph)
    ax = new_axes(grid.width, grid.height) if ax is None else ax
    _edges(ax, graph, pair, grid)
    _cut(ax, pair, grid)
    _nodes(ax, graph, grid)
    top, row = graph.net.tops[graph.net.layers.index(output.layer)], graph.net.rows[output.row]
    ax.plot(*grid.at(top, row), "o", ms=9, color=COLOURS["cut"], zorder=5)
    ax.plot(*grid.at(0, sink), "s", ms=9, mfc="none", mec=COLOURS["cut"], mew=1.6, zorder=5)
    names = show(graph.net.queries[output.row]), show(graph.net.tokens[sink])
    ax.set_title(f"{names[0]} at layer {output.layer} draws on {names[1]}: flow {pair.value:.4f}")
    return as_written(ax)  # type: ignore[no-any-return]


class _Grid:
    """Where nodes are drawn: the encoder beside the decoder, each from its own foot."""

    def __init__(self, graph: FlowGraph) -> None:
        self.encoder = sum(level.tower == "encoder" for level in graph.levels)
        self.first = graph.net.rows[0] if self.encoder else 0
        self.width = graph.net.size + GAP * bool(self.encoder)
        self.height = max(self.encoder, len(graph.levels) - self.encoder)

    def at(self, height: int, node: int) -> tuple[float, float]:
        """The point of a node."""
        if not self.encoder:
            return float(node), float(height)
        if node < self.first:
            return float(node), float(min(height, self.encoder))
        return node + GAP, float(max(height - self.encoder, 0))


def _edges(ax: Axes, graph: FlowGraph, pair: PairFlow, grid: _Grid) -> None:
    capacities = [float(graph.capacities[h, i, k]) for h, i, k in pair.edges]
    scale = WIDEST / max(capacities, default=1.0)
    for (h, i, k), capacity, flow in zip(pair.edges.tolist(), capacities, pair.flow.tolist(), strict=True):
        (x1, y1), (x2, y2) = grid.at(h + 1, i), grid.at(h, k)
        kind = "residual" if i == k else "cross" if graph.levels[h].tower == "cross" else "flow"
        ax.plot([x1, x2], [y1, y2], color=COLOURS["capacity"], lw=capacity * scale, zorder=1, solid_capstyle="butt")
        ax.plot([x1, x2], [y1, y2], color=COLOURS[kind], lw=flow * scale, zorder=2, solid_capstyle="butt")


def _cut(ax: Axes, pair: PairFlow, grid: _Grid) -> None:
    steps: dict[int, list[tuple[float, float]]] = {}
    for h, i, k in pair.cuts["source"]:
        (x1, y1), (x2, y2) = grid.at(h + 1, i), grid.at(h, k)
        steps.setdefault(h, []).append(((x1 + x2) / 2, (y1 + y2) / 2))
    for marks in steps.values():
        x, y = zip(*sorted(marks), strict=True)
        ax.plot([x[0] - 0.2, *x, x[-1] + 0.2], [y[0], *y, y[-1]], "--", color=COLOURS["cut"], lw=1.4, zorder=3)
        ax.plot(x, y, "|", color=COLOURS["cut"], ms=7, zorder=3)
    if steps:
        end = max(mark for marks in steps.values() for mark in marks)
        ax.annotate(f"cut {pair.value:.4f}", end, (14, 0), textcoords="offset points", va="center", weight="bold")


def _nodes(ax: Axes, graph: FlowGraph, grid: _Grid) -> None:
    points = {grid.at(h, j) for h in range(len(graph.levels) + 1) for j in range(graph.net.size)}
    ax.plot(*zip(*points, strict=True), "o", ms=3, color="#8b949e", zorder=4, ls="none")
    names = [show(t) for t in graph.net.tokens]
    ticks = [grid.at(0, j)[0] for j in range(graph.net.size)]
    ax.set_xticks(ticks, names, rotation=60, ha="right", rotation_mode="anchor")
    if grid.encoder:
        ax.set_yticks(range(grid.height + 1))
        ax.set_ylabel("level")
    else:
        ax.set_yticks(range(grid.height + 1), ["input", *(str(level.layer) for level in graph.levels)])
        ax.set_ylabel("layer")
    for side in ("top", "right", "left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=0)
    ax.margins(x=0.08)
