"""A league for readers: the verdict in words, the table, the figure, the page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.comparing.comparison import booktabs, pipes, rounding_notes
from attnflow.faithfulness.plan import LENGTH, RANDOM
from attnflow.faithfulness.registry import MEASURES
from attnflow.formats import as_written, figure_bytes, page
from attnflow.significance import LEVEL

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from attnflow.faithfulness.league import League

SURVIVES = 0.5
COLOURS = {"method": "#0072b2", "baseline": "#888888", "ceiling": "#d55e00"}


def verdict(standings: pd.DataFrame, examples: int) -> str:
    """The verdict from :meth:`League.standings`: which to use, how sure, which beat chance, which survive."""
    random = standings[standings["method"] == RANDOM].iloc[0]
    ranked = standings[~standings["role"].isin(["ceiling"]) & (standings["method"] != RANDOM)]
    beating = ranked[(ranked["p"] < LEVEL) & (ranked["wins"] > random["wins"])]
    parts = [_choice(ranked, beating, examples), _chance(ranked, beating)]
    if standings["wins"].isna().all():
        parts = ["These measures rank no method: a score that never changes would win them."]
    survivors = [str(r.name_) for r in _named(standings) if r.randomised >= SURVIVES and r.method != LENGTH]
    if survivors:
        parts.append(
            f"{_joined(survivors)} {'keep their' if len(survivors) > 1 else 'keeps its'} ranking when all weights of "
            f"the model are random (rank correlation {SURVIVES} or more): that says little about the model."
        )
    ceiling = standings[(standings["role"] == "ceiling") & standings["wins"].notna()]
    if len(ceiling):
        top = ceiling.iloc[0]
        parts.append(f"{top['name']}, which asks what the measures ask, wins {_share(top)} and stands as a ceiling.")
    return " ".join(part for part in parts if part)


def _named(standings: pd.DataFrame) -> list[Any]:
    return list(standings.rename(columns={"name": "name_"}).itertuples())


def _choice(ranked: pd.DataFrame, beating: pd.DataFrame, examples: int) -> str:
    over = f"over {examples} text{'s' if examples != 1 else ''}"
    if beating.empty and len(ranked) * 2.0 ** (1 - examples) > LEVEL:
        # The smallest p-value of the paired test, times the number of tests.
        return f"{examples} texts are too few to tell {len(ranked)} methods from a random ranking: give more."
    if beating.empty:
        return f"Believe none of them for this model and these data: no method beats the random ranking {over}."
    best = ranked.iloc[0]
    equal = [str(r.name_) for r in _named(ranked.iloc[1:]) if not r.p_best < LEVEL]
    empty = _says_nothing(best)
    if empty:
        told = f"; the data cannot tell {_joined(equal)} from it" if equal else ""
        return (
            f"Believe none of them for this model and these data: {empty}, {_share(best)} {over}{told} (Wilcoxon's "
            "paired test, Holm)."
        )
    first = f"Use {best['name']} for this model: it wins {_share(best)} of its duels with the other methods {over}"
    if equal:
        return f"{first}; the data cannot tell it from {_joined(equal)} (Wilcoxon's paired test, Holm, p ≥ {LEVEL})."
    worst = float(np.nanmax(ranked["p_best"])) if len(ranked) > 1 else float("nan")
    sure = f"p ≤ {worst:.2g}" if worst >= 1e-4 else "p < 0.0001"
    return f"{first}, more than every other method (Wilcoxon's paired test, Holm, {sure})."


def _says_nothing(best: pd.Series[Any]) -> str:
    """Where the best line is nothing to be believed, why it is not; else empty."""
    if best["method"] == LENGTH:
        return "the length of the words, which asks no model, wins more of its duels than every method"
    if best.get("rounding", np.nan) >= 0:  # numbers that an earlier version wrote do not have it
        return f"{best['name']}, whose scores are rounding error, wins more of its duels than every other method"
    return ""


def _chance(ranked: pd.DataFrame, beating: pd.DataFrame) -> str:
    if beating.empty:
        return ""
    losing = [str(r.name_) for r in _named(ranked) if r.Index not in beating.index]
    said = f"{len(beating)} of {len(ranked)} beat the random ranking"
    return f"{said}; {_joined(losing)} {'do' if len(losing) > 1 else 'does'} not." if losing else f"{said}."


def _share(row: Any) -> str:
    return f"{row['wins']:.0%} ({row['low']:.0%}–{row['high']:.0%})"


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def cells(league: League) -> tuple[list[str], list[list[str]]]:
    """(head, lines) of the table: methods × measures, best first."""
    frame: Any = league.to_frame().set_index(["method", "layer", "measure", "kind"])
    head = ["method", "wins", "p (random)", *(_title(*column) for column in league.columns), "ties", "s per text"]
    lines = []
    for row in _named(league.standings()):
        line = [
            row.name_ if row.role == "method" else f"{row.name_} ({row.role})",
            f"{row.wins:.0%} ({row.low:.0%}–{row.high:.0%})",
        ]
        line.append("" if np.isnan(row.p) else "< 0.001" if row.p < 0.001 else f"{row.p:.3f}")
        for column in league.columns:
            key = (row.method, row.layer, *column)
            line.append(_cell(frame.loc[key]) if key in frame.index else "–")
        lines.append([*line, f"{row.ties:.2f}", f"{row.seconds:.3f}"])
    return head, lines


def _title(measure: str, kind: str) -> str:
    arrow = "↑" if MEASURES[measure].higher else "↓"
    return f"{measure.replace('_', ' ')} {arrow}{' ' + kind if kind else ''}"


def _cell(row: Any) -> str:
    if np.isnan(row["low"]):
        return f"{row['mean']:.3f}"
    return f"{row['mean']:.3f} ({row['low']:.3f}–{row['high']:.3f})"


def markdown(league: League) -> str:
    """The verdict and the table as Markdown."""
    head, lines = cells(league)
    return f"{league.verdict()}\n\n{pipes(head, lines, rounding_notes(league.records))}"


def latex(league: League) -> str:
    """The table as booktabs; the verdict is a comment above it."""
    head, lines = cells(league)
    said = "\n".join(f"% {line}" for line in league.verdict().splitlines())
    columns = f"l{'c' * (len(head) - 3)}rr"
    return f"{said}\n{booktabs(columns, head, lines, rounding_notes(league.records))}"


def html(league: League) -> str:
    """Verdict, figure and table as one page: nothing is loaded, every text is escaped."""
    head, lines = cells(league)
    row = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    figure = figure_bytes(league.plot().figure, "svg").decode()
    picture = figure[figure.index("<svg") :]
    notes = "".join(f"<p>{escape(note)}</p>" for note in rounding_notes(league.records))
    title = "The league: which score may be believed"
    settings = "; ".join(f"{name} = {value}" for name, value in league.settings.items())
    return page(
        title,
        f"<h1>{escape(title)}</h1><p><b>{escape(league.verdict())}</b></p>{picture}"
        f"<table><thead><tr>{row}</tr></thead><tbody>{body}</tbody></table>{notes}<p>Wins: the share of the other "
        "methods that a method beats, over texts, measures and kinds of blanks; in brackets 95 % intervals over texts. "
        f"↑ higher is better, ↓ lower.</p><details><summary>Settings</summary><p>{escape(settings)}</p></details>",
    )


def plot(standings: pd.DataFrame, ax: Axes | None = None, notes: Sequence[str] = ()) -> Axes:
    """Wins with intervals, best on top; the random ranking as a dashed line; notes below."""
    from attnflow.figures import footnote, new_axes, new_figure

    shown = standings[standings["method"] != RANDOM].iloc[::-1]
    axes = ax
    if axes is None:
        axes = new_axes(new_figure(6, 1.2 + 0.28 * len(shown)))
    rows: Any = shown.itertuples()
    for y, row in enumerate(rows):
        colour = COLOURS[str(row.role)]
        axes.plot([row.low, row.high], [y, y], color=colour, linewidth=2)
        axes.plot([row.wins], [y], "o", color=colour)
    axes.set_yticks(range(len(shown)), [str(name) for name in shown["name"]])
    random = standings[standings["method"] == RANDOM]["wins"].iloc[0]
    axes.axvline(float(random), color=COLOURS["baseline"], linestyle="--", linewidth=1)
    axes.annotate("random ranking", (float(random), len(shown) - 0.4), ha="center", va="bottom", fontsize=8)
    axes.set(xlabel="share of the other methods that it beats", xlim=(0, 1), ylim=(-0.6, len(shown)))
    footnote(axes, notes)
    return as_written(axes)  # type: ignore[no-any-return]
