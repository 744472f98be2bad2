"""Plots with matplotlib, for papers: no pyplot, so no state is left behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnflow.errors import ShapeError
from attnflow.relevance import Relevance
from attnflow.views.names import show
from attnflow.views.tints import blend, weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
    return ax


def plot_all(results: Sequence[Relevance]) -> Figure:
    """One heat-map below the other, one a result."""
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
    >>> r = Relevance(np.array([[0.2, 0.8]]), ["the", "key"], (0,), "raw", {"position": 0})
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
    return ax


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
    """Axes of a new figure with room for so many columns and rows."""
    axes: Axes = _figure(columns, rows).add_subplot()
    return axes


def _figure(columns: float, rows: float) -> Figure:
    return _figure_of(min(24.0, 2.5 + 0.42 * columns), min(24.0, 1.8 + 0.32 * rows))


def _figure_of(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _title(r: Relevance) -> str:
    return r.method if r.position_token is None else f"{r.method} from {show(r.position_token)}"
