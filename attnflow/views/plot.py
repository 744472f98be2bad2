"""Plots with matplotlib, for papers: heat-maps, tinted text, the graph of one flow. No pyplot, so no state is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.attention import outputs_of
from attnflow.errors import SelectionError, ShapeError
from attnflow.figures import new_axes, new_figure
from attnflow.flowgraph.image import patches, pixels
from attnflow.flowgraph.records import FLOW, FlowGraph, PairFlow
from attnflow.formats import as_written
from attnflow.relevance import Relevance
from attnflow.select import pick_position
from attnflow.tokens import Tokens
from attnflow.views.colours import blend, weights
from attnflow.views.fonts import in_fonts
from attnflow.views.names import show, show_ahead

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"flow": "#0072b2", "residual": "#d55e00", "cross": "#007a5a", "capacity": "#d5dae0", "cut": "#1b1f24"}
# Points of line width for the widest capacity.
WIDEST = 7.0
GAP = 1.2
# Names that fit along an axis, and letters of one.
NAMES = 60
LONGEST = 18


def plot(
    relevance: Relevance,
    ax: Axes | None = None,
    cmap: str = "Blues",
    scale_without: str | None = None,
    image: Any = None,
    grid: tuple[int, int] | None = None,
    **options: Any,
) -> Axes:
    """A heat-map on ``ax`` (or a new figure): layers × inputs for one position, else outputs × inputs.

    Rows are layers (highest on top) or output positions, columns are input positions; the outputs of a model that
    generates are named with the token that they predict. Of many names some are shown. The scores of an image for one
    position are a grid of its patches at the last layer.

    Args:
        ax: where to draw. The figure is ``ax.figure``: ``relevance.plot().figure.savefig("scores.pdf")``.
        cmap: the colours of scores that are not negative.
        scale_without: "first" or "special": leave the first input, or special tokens, out of the colour scale. They
            often take most of the mass, so that all others look alike; they are then drawn as beyond the scale.
        image: the picture (PIL or an array), to draw the grid of its patches over.
        grid: rows and columns of patches, where the names of the tokens do not tell.
        options: go to ``Axes.imshow``.
    """
    if image is not None or grid is not None or (relevance.scores.ndim == 2 and _is_image(relevance.tokens)):
        return plot_image(relevance, image, ax, grid, **options)
    if relevance.scores.ndim == 2:
        matrix, names, label = relevance.scores[::-1], [str(n) for n in relevance.layers][::-1], "layer"
    else:
        matrix, names = relevance.scores[-1], row_names(relevance)
        label = f"output at layer {relevance.layers[-1]}{' → what it predicts' if _ahead(relevance) else ''}"
    columns = [show(t) for t in relevance.tokens]
    ax = new_axes(_figure(len(columns), len(names))) if ax is None else ax
    top, beyond = _top(relevance, matrix, scale_without)
    signed = np.nanmin(matrix) < 0
    scale = {"cmap": "RdBu_r", "vmin": -top, "vmax": top} if signed else {"cmap": cmap, "vmin": 0.0, "vmax": top}
    drawn = ax.imshow(matrix, aspect="auto", **{**scale, **options})
    across, down = thinned(len(columns)), thinned(len(names))
    ax.set_xticks(across, [clipped(columns[j]) for j in across], rotation=60, ha="right", rotation_mode="anchor")
    ax.set_yticks(down, [clipped(names[i], 2 * LONGEST) for i in down])
    ax.set_xlabel("input")
    ax.set_ylabel(label)
    ax.set_title(_title(relevance))
    ax.figure.colorbar(drawn, ax=ax, label=f"score{beyond}", extend="max" if beyond else "neither")
    return _finished(ax)


def plot_image(
    relevance: Relevance,
    image: Any = None,
    ax: Axes | None = None,
    grid: tuple[int, int] | None = None,
    cmap: str = "inferno",
    **options: Any,
) -> Axes:
    """The scores of the patches at the last layer, as a grid over the picture; for a result of one output position.

    >>> import numpy as np
    >>> tokens = Tokens(["[CLS]", "patch 0,0", "patch 0,1"], special=[True, False, False])
    >>> plot_image(Relevance(np.array([[0.4, 0.1, 0.5]]), tokens, (0,), "raw")).get_title()
    'raw at layer 0 (40% on [CLS])'
    """
    if relevance.scores.ndim != 2:
        raise ShapeError(
            f"A picture is tinted for one output position, and {relevance.method} holds {len(relevance.rows)}. "
            "Choose one:  relevance.at(position='cls').plot(image=picture)"
        )
    (rows, columns), where = patches(relevance.tokens, grid)
    scores = relevance.scores[-1][list(where)].reshape(rows, columns)
    picture = None if image is None else pixels(image)
    height, width = (rows, columns) if picture is None else picture.shape[:2]
    ax = new_axes(new_figure(1.4 + 4 * min(width / height, 2.5), 4.4)) if ax is None else ax
    extent = (0, width, height, 0)
    if picture is not None:
        ax.imshow(picture.mean(-1), cmap="gray", extent=extent)
    signed = np.nanmin(scores) < 0
    top = float(np.nanmax(np.abs(scores))) or 1.0
    scale = {"cmap": "RdBu_r", "vmin": -top} if signed else {"cmap": cmap, "vmin": 0.0}
    alpha = 1.0 if picture is None else 0.62
    drawn = ax.imshow(
        scores, extent=extent, interpolation="nearest", **{**scale, "vmax": top, "alpha": alpha, **options}
    )
    ax.set_xticks([])
    ax.set_yticks([])
    outside = [t for t, special in zip(relevance.tokens, relevance.tokens.special, strict=True) if special]
    share = f" ({relevance.special_share:.0%} on {', '.join(outside[:2])})" if outside else ""
    layer = "" if relevance.layers == ("input",) else f" at layer {relevance.layers[-1]}"
    ax.set_title(f"{_title(relevance)}{layer}{share}")
    ax.figure.colorbar(drawn, ax=ax, label="score of a patch")
    return _finished(ax)


def _is_image(tokens: Tokens) -> bool:
    return any(t.startswith("patch ") for t in tokens)


def row_names(r: Relevance) -> list[str]:
    """Names of the outputs; those of a model that generates with the token that they predict, which is the next one."""
    names, ahead = [show(t) for t in r.rows], _ahead(r)
    return names if ahead is None else [f"{name} → {t}" for name, t in zip(names, show_ahead(ahead), strict=True)]


def _ahead(r: Relevance) -> Sequence[str] | None:
    """What each output predicts; None where that is not known."""
    if r.attention is None or not r.attention.generates:
        return None
    if r.kept_rows is None:
        # Of words it is not known which special tokens stood between them.
        return r.attention.predicts(r.rows) if r.unit == "token" or r.dropped is None else None
    block = outputs_of(r.attention)
    every = r.attention.predicts(block.keys.take(range(len(block.keys) - block.sink))) or ()
    return [every[i] for i in r.kept_rows]


def thinned(count: int) -> list[int]:
    """Which of many places get a name: about ``NAMES`` of them, evenly spread.

    >>> thinned(4), thinned(512)[:3], len(thinned(512))
    ([0, 1, 2, 3], [0, 9, 18], 57)
    """
    return list(range(0, count, -(-count // NAMES)))


def clipped(name: str, most: int = LONGEST) -> str:
    """A name that does not push the picture away.

    >>> clipped("a" * 40, 6)
    'aaaaa…'
    """
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _top(r: Relevance, matrix: Any, without: str | None) -> tuple[float, str]:
    """The highest magnitude of the colour scale, and a note where inputs were left out of it."""
    if without not in (None, "first", "special"):
        raise SelectionError(f"scale_without={without!r} is not known. Use 'first', 'special' or None.")
    out = np.zeros(len(r.tokens), bool)
    if without == "special":
        out |= np.array(r.tokens.special, bool)
    elif without == "first":
        out[0] = True
    if out.all() or not out.any():
        return float(np.nanmax(np.abs(matrix))) or 1.0, ""
    return float(np.nanmax(np.abs(matrix[:, ~out]))) or 1.0, f" ({without} left out of the scale)"


def _finished(ax: Axes) -> Axes:
    return as_written(in_fonts(ax))  # type: ignore[no-any-return]


def plot_all(results: Sequence[Relevance], **options: Any) -> Figure:
    """One heat-map below the other, one per result; ``options`` as for :func:`plot`."""
    rows = [len(r.layers) if r.scores.ndim == 2 else len(r.rows) for r in results]
    figure = _figure(len(results[0].tokens), sum(rows) + 5 * (len(results) - 1))
    places = figure.add_gridspec(len(results), 1, height_ratios=[n + 1 for n in rows])
    for i, r in enumerate(results):
        plot(r, ax=new_axes(figure, places[i, 0]), **options)
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
    words = relevance.words() if relevance.has_words else relevance
    names = [show(t) for t in words.tokens]
    places = _lines(names, width)
    rows = places[-1][1] + 1
    ax = new_axes(new_figure(width * size * 0.62 / 72, rows * size * 2.2 / 72 + 0.4)) if ax is None else ax
    before: Any = None
    for name, weight, (x, y) in zip(names, weights(words.scores[-1]), places, strict=True):
        # A word stands behind the one before it, however wide that comes out.
        where = {"xy": (1, 0), "xycoords": before, "xytext": (6, 0)} if x else _line_start(y, size)
        box = {"facecolor": tuple(c / 255 for c in blend(weight)), "edgecolor": "none", "pad": 2}
        before = ax.annotate(name, **where, textcoords="offset points", size=size, va="bottom", bbox=box)
    ax.set_axis_off()
    ax.set_title(_title(relevance), loc="left", size=size)
    return _finished(ax)


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


def _figure(columns: float, rows: float) -> Figure:
    """A new figure with room for these columns and rows."""
    return new_figure(min(24.0, 2.5 + 0.42 * columns), min(24.0, 1.8 + 0.32 * rows))


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
    ax = new_axes(_figure(grid.width, grid.height)) if ax is None else ax
    _edges(ax, graph, pair, grid)
    _cut(ax, pair, grid)
    _nodes(ax, graph, grid)
    top, row = graph.net.tops[graph.net.layers.index(output.layer)], graph.net.rows[output.row]
    ax.plot(*grid.at(top, row), "o", ms=9, color=COLOURS["cut"], zorder=5)
    ax.plot(*grid.at(0, sink), "s", ms=9, mfc="none", mec=COLOURS["cut"], mew=1.6, zorder=5)
    names = show(graph.net.queries[output.row]), show(graph.net.tokens[sink])
    ax.set_title(f"{names[0]} at layer {output.layer} draws on {names[1]}: flow {pair.value:.4f}")
    return _finished(ax)


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
    some = thinned(graph.net.size)
    ticks = [grid.at(0, j)[0] for j in some]
    ax.set_xticks(ticks, [clipped(names[j]) for j in some], rotation=60, ha="right", rotation_mode="anchor")
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
