"""Figures that a notebook shows without pyplot, so that no state is left behind.

A notebook shows pyplot's figures by itself. These figures and their axes give it their own pixels, so that
``relevance.plot()`` at the end of a cell is a picture.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

DOTS = 110  # per inch, in a notebook
NOTE_LETTERS = 72  # in a line of a footnote: what fits below the axes of a narrow figure


class ShownFigure(Figure):
    """A figure that a notebook shows."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=DOTS)
        return buffer.getvalue()


class ShownAxes(Axes):
    """Axes that a notebook shows as the figure that they are in."""

    def _repr_png_(self) -> bytes | None:
        show: Any = getattr(self.figure, "_repr_png_", None)
        return show() if show is not None else None


def new_figure(width: float, height: float) -> ShownFigure:
    """An empty figure of this size in inches.

    >>> figure = new_figure(2, 1)
    >>> new_axes(figure)._repr_png_()[1:4]
    b'PNG'
    """
    return ShownFigure(figsize=(width, height), layout="constrained")


def new_axes(figure: Figure, place: Any = 111) -> Axes:
    """The axes at a place of the figure, by default all of it."""
    axes: Axes = figure.add_subplot(place, axes_class=ShownAxes)
    return axes


def footnote(axes: Axes, notes: Sequence[str]) -> None:
    """Small lines below the axes and the name that stands along them; nothing where there are no notes."""
    if not notes:
        return
    text = "\n".join(fill(note, NOTE_LETTERS) for note in notes)
    place: Any = ("axes fraction", axes.xaxis.label)  # wherever the layout puts that name
    axes.annotate(
        text, (0, 0), xycoords=place, xytext=(0, -4), textcoords="offset points", ha="left", va="top", fontsize=7
    )
