"""The flow graph for papers: the pruned network of one flow, with matplotlib and without pyplot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnflow.errors import SelectionError
from attnflow.flowgraph import PairFlow, Picture
from attnflow.select import pick_position
from attnflow.views.names import show
from attnflow.views.plot import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"flow": "#0072b2", "residual": "#d55e00", "cross": "#007a5a", "capacity": "#d5dae0", "cut": "#1b1f24"}
# Points of line width for the widest capacity.
WIDEST = 7.0
GAP = 1.2


def plot_flow(
    picture: Picture,
    layer: int = -1,
    position: int | str | None = None,
    source: int | str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The maximum flow from one output down to one input, over its capacities, and its minimum cut.

    Columns are tokens, rows levels from the inputs up. Line widths are capacities (pale) and what flows through them.

    Args:
        picture: what :func:`attnflow.flowgraph.picture` gave.
        layer, position: the output; by default the picture's first.
        source: the input that it draws on; by default the one with the highest flow.
        ax: where to draw; by default a new figure, ``ax.figure``.

    >>> from attnflow import Attention
    >>> from attnflow.flowgraph import picture
    >>> p = picture(Attention.of([[[0.2, 0.8], [0.5, 0.5]]] * 2, tokens=["a", "b"]))
    >>> plot_flow(p, source=0).get_title()
    'b at layer 1 draws on a: flow 0.5000'
    """
    t = picture.find(layer, position)
    target = picture.targets[t]
    sink = int(np.argmax(target.scores["flow"])) if source is None else pick_position(source, picture.net.tokens)
    if (t, sink) not in picture.pairs:
        raise SelectionError(
            f"The flow from layer {target.layer}, position {target.row} to input {sink} is not one of the "
            f"{len(picture.pairs)} of this picture. Ask for more:  picture(attention, pairs=…)"
        )
    pair = picture.pairs[t, sink]
    grid = _Grid(picture)
    ax = new_axes(grid.width, grid.height) if ax is None else ax
    _edges(ax, picture, pair, grid)
    _cut(ax, pair, grid)
    _nodes(ax, picture, grid)
    top, row = picture.net.tops[picture.net.layers.index(target.layer)], picture.net.rows[target.row]
    ax.plot(*grid.at(top, row), "o", ms=9, color=COLOURS["cut"], zorder=5)
    ax.plot(*grid.at(0, sink), "s", ms=9, mfc="none", mec=COLOURS["cut"], mew=1.6, zorder=5)
    names = show(picture.net.queries[target.row]), show(picture.net.tokens[sink])
    ax.set_title(f"{names[0]} at layer {target.layer} draws on {names[1]}: flow {pair.value:.4f}")
    return ax


class _Grid:
    """Where nodes are drawn: the encoder beside the decoder, each from its own foot."""

    def __init__(self, picture: Picture) -> None:
        self.encoder = sum(level.tower == "encoder" for level in picture.levels)
        self.first = picture.net.rows[0] if self.encoder else 0
        self.width = picture.net.size + GAP * bool(self.encoder)
        self.height = max(self.encoder, len(picture.levels) - self.encoder)

    def at(self, height: int, node: int) -> tuple[float, float]:
        """The point of a node."""
        if not self.encoder:
            return float(node), float(height)
        if node < self.first:
            return float(node), float(min(height, self.encoder))
        return node + GAP, float(max(height - self.encoder, 0))


def _edges(ax: Axes, picture: Picture, pair: PairFlow, grid: _Grid) -> None:
    capacities = [float(picture.capacities[h, i, k]) for h, i, k in pair.edges]
    scale = WIDEST / max(capacities, default=1.0)
    for (h, i, k), capacity, flow in zip(pair.edges.tolist(), capacities, pair.flow.tolist(), strict=True):
        (x1, y1), (x2, y2) = grid.at(h + 1, i), grid.at(h, k)
        kind = "residual" if i == k else "cross" if picture.levels[h].tower == "cross" else "flow"
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


def _nodes(ax: Axes, picture: Picture, grid: _Grid) -> None:
    points = {grid.at(h, j) for h in range(len(picture.levels) + 1) for j in range(picture.net.size)}
    ax.plot(*zip(*points, strict=True), "o", ms=3, color="#8b949e", zorder=4, ls="none")
    names = [show(t) for t in picture.net.tokens]
    ticks = [grid.at(0, j)[0] for j in range(picture.net.size)]
    ax.set_xticks(ticks, names, rotation=60, ha="right", rotation_mode="anchor")
    if grid.encoder:
        ax.set_yticks(range(grid.height + 1))
        ax.set_ylabel("level")
    else:
        ax.set_yticks(range(grid.height + 1), ["input", *(str(level.layer) for level in picture.levels)])
        ax.set_ylabel("layer")
    for side in ("top", "right", "left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=0)
    ax.margins(x=0.08)
