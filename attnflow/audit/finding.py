"""What an experiment found: a table, a plot, a verdict in words, and what the verdict cannot say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnflow.formats import POLICY, as_written, figure_bytes, frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class Finding:
    """The result of one experiment of the debate.

    Attributes:
        experiment: its name: "correlation", "permutation", "adversary", "uniform", "seeds", "guide" or "imposter".
        table: the summary, as it would stand in a paper.
        records: one row for each instance (or run), from which the table was made.
        verdict: what follows for this model and these data, in plain words, with its figures.
        limits: what the verdict cannot say, one sentence each.
        settings: everything that was chosen, also what was chosen for the user.
        draw: draws the figure into axes.
        examples: a few instances as tables, by a line that says which.
        tests: the p-value of each claim that the verdict rests on, uncorrected, by the name of the claim. A report
            corrects all tests of all its findings together.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"attention": ["uniform"], "F1": [0.5]})
    >>> found = Finding("uniform", table, pd.DataFrame(), "No.", ("One.",))
    >>> print(found.to_markdown())
    ### uniform
    <BLANKLINE>
    No.
    <BLANKLINE>
    | attention | F1 |
    |---|---|
    | uniform | 0.500 |
    <BLANKLINE>
    What this cannot say:
    <BLANKLINE>
    - One.
    """

    experiment: str
    table: pd.DataFrame
    records: pd.DataFrame
    verdict: str
    limits: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    draw: Callable[[Axes], None] | None = None
    examples: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    tests: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Finding({self.experiment}: {self.verdict})"

    def plot(self, ax: Axes | None = None) -> Axes:
        """The figure of the experiment; into ``ax`` if given. No pyplot state is left behind."""
        from attnflow.figures import new_axes, new_figure

        if ax is None:
            ax = new_axes(new_figure(6, 4))
        if self.draw is not None:
            self.draw(ax)
        return as_written(ax)  # type: ignore[no-any-return]

    def to_markdown(self) -> str:
        """The verdict, the table, the examples and the limits."""
        limits = "\n".join(f"- {limit}" for limit in self.limits)
        examples = [part for title, table in self.examples.items() for part in (title, markdown(table))]
        parts = [f"### {self.experiment}", self.verdict, markdown(self.table), *examples]
        return "\n\n".join([*parts, f"What this cannot say:\n\n{limits}"])

    def to_html(self) -> str:
        """The same as a part of a page, with the figure inside as SVG; every text is escaped."""
        from html import escape

        limits = "".join(f"<li>{escape(limit)}</li>" for limit in self.limits)
        examples = "".join(f"<p>{escape(title)}</p>{html_table(table)}" for title, table in self.examples.items())
        return (
            f"<section><h2>{escape(self.experiment)}</h2><p>{escape(self.verdict)}</p>"
            f"{html_table(self.table)}{self._svg()}{examples}<p>What this cannot say:</p><ul>{limits}</ul></section>"
        )

    def _repr_html_(self) -> str:
        head = f'<!doctype html><html lang="en"><head><meta charset="utf-8">{POLICY}</head>'
        return frame(f"{head}<body>{self.to_html()}</body></html>", 700)

    def _svg(self) -> str:
        if self.draw is None:
            return ""
        svg = figure_bytes(self.plot().figure, "svg").decode()
        return svg[svg.index("<svg") :]


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def html_table(table: pd.DataFrame) -> str:
    """A frame as an HTML table, every text escaped, numbers to three digits."""
    return table.to_html(index=False, escape=True, float_format=_cell, border=0)


def markdown(table: pd.DataFrame) -> str:
    """A frame as a Markdown table, numbers to three digits."""
    head = "| " + " | ".join(map(str, table.columns)) + " |"
    rule = "|" + "---|" * len(table.columns)
    # Column by column, because a row of mixed types would be made one type.
    columns = [[_cell(v).replace("|", "\\|") for v in table[c].tolist()] for c in table.columns]
    return "\n".join([head, rule, *("| " + " | ".join(row) + " |" for row in zip(*columns, strict=True))])
