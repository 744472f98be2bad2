"""Heat-maps with matplotlib, for papers: no pyplot, so no state is left behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnflow.relevance import Relevance
from attnflow.views.names import show

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
    if ax is None:
        ax = _figure(len(columns), len(names)).add_subplot()
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


def _figure(columns: int, rows: int) -> Figure:
    from matplotlib.figure import Figure

    size = (min(24.0, 2.5 + 0.42 * columns), min(24.0, 1.8 + 0.32 * rows))
    return Figure(figsize=size, layout="constrained")


def _title(r: Relevance) -> str:
    at = r.settings.get("position_token")
    return r.method if at is None else f"{r.method} from {show(str(at))}"
