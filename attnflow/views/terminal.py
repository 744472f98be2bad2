"""Tables in the terminal: tokens × methods, with bars where somebody is looking."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.style import Style
from rich.table import Table
from rich.text import Text

from attnflow.errors import ShapeError
from attnflow.informative import FEWEST
from attnflow.relevance import Relevance
from attnflow.views.colours import blend, weights
from attnflow.views.names import drawn_on, show, show_line

_EIGHTHS = " ▏▎▍▌▋▊▉"
_LONGEST = 24
# Cells of the borders and spaces around the number and the token.
_FRAME = 7


def bar(share: float, width: int) -> str:
    """A bar of ``share`` × ``width`` cells, drawn in eighths.

    >>> bar(0.5, 4), bar(0.3125, 4)
    ('██', '█▎')
    """
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def tables(results: Sequence[Relevance], console: Console, rows: Sequence[int] | None = None) -> list[Table]:
    """One table, or on a narrow screen several below one another, so that no score is cut off."""
    check_one_position(results)
    widest = max(cell_len(show(t)) for t in results[0].tokens)
    columns = [_score_width(r) for r in results]
    number = len(str(len(results[0].tokens) - 1))
    token = max(5, min(widest, _LONGEST, console.width - _FRAME - number - max(columns)))
    parts: list[list[Relevance]] = []
    left = 0
    for r, width in zip(results, columns, strict=True):
        if width > left:
            parts.append([])
            left = console.width - _FRAME - number - token
        parts[-1].append(r)
        left -= width
    return [table(part, console, token, rows) for part in parts]


def top_rows(results: Sequence[Relevance], top: int | None) -> list[int] | None:
    """The positions of the ``top`` tokens that some method scores highest, in the order of the text; None for all."""
    if top is None or top >= len(results[0].tokens):
        return None
    shares = np.nan_to_num(np.max([np.abs(weights(r.scores[-1])) for r in results], axis=0))
    return sorted(int(j) for j in np.argsort(-shares, kind="stable")[:top])


def table(
    results: Sequence[Relevance], console: Console, token_width: int = _LONGEST, rows: Sequence[int] | None = None
) -> Table:
    """One row per token, one column per method: the scores at the last layer that each result holds.

    ``rows`` are the positions to show, by default all of them. Bars are drawn on a terminal only; in a pipe there are
    plain numbers.
    """
    check_one_position(results)
    out = Table(title=escape(_title(results[0])), title_justify="left")
    out.add_column("", justify="right", style="dim", no_wrap=True)
    out.add_column("token", no_wrap=True, max_width=token_width)
    for r in results:
        out.add_column(_column_name(r), justify="left", no_wrap=True)
    width = _bar_width(console, results, token_width)
    parts = [weights(r.scores[-1]) for r in results]
    tokens = list(results[0].tokens)
    for j in range(len(tokens)) if rows is None else rows:
        style = "dim" if results[0].tokens.special[j] else ""
        cells = [_cell(float(r.scores[-1, j]), p[j], width) for r, p in zip(results, parts, strict=True)]
        out.add_row(str(j), Text(show(tokens[j]), style=style), *cells)
    return out


def highlight(r: Relevance) -> Text:
    """The words of a result for one position, tinted by their scores at the last layer; for a terminal with colours."""
    words = r.words() if r.has_words else r
    out = Text()
    for token, weight in zip(words.tokens, weights(words.scores[-1]), strict=True):
        out.append(f" {show(token)} ", style=tint_style(weight))
    return out.append(f"  ({r.method})", style="dim")


def tint_style(weight: float) -> Style:
    """The tint of a weight as a background, with letters that can be read on it."""
    red, green, blue = blend(weight)
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 140
    return Style(color="white" if dark else "black", bgcolor=f"rgb({red},{green},{blue})")


def check_one_position(results: Sequence[Relevance]) -> None:
    """Refuse what does not fit into one table."""
    for r in results:
        if r.scores.ndim != 2:
            raise ShapeError(
                f"A table shows one output position, and {r.method} holds {len(r.rows)}. Use .at(position=…)."
            )
        if r.tokens != results[0].tokens:
            raise ShapeError(f"{results[0].method} and {r.method} have different tokens: one table cannot hold both.")


def _cell(score: float, part: float, width: int) -> Text:
    if np.isnan(score):
        return Text("–")
    return Text(f"{score:.3f} {bar(abs(part), width)}" if width else f"{score:.3f}")


def _column_name(r: Relevance) -> str:
    """The name of a method; its edges stand below it."""
    return escape(r.method.replace(":", ":\n"))


def _score_width(r: Relevance) -> int:
    """Cells of a column with one score, its border and the name of the method."""
    scores = max(len(f"{s:.3f}") for s in r.scores[-1])
    return 3 + max(scores, *(cell_len(part) for part in r.method.replace(":", ":\n").split("\n")))


def _bar_width(console: Console, results: Sequence[Relevance], token: int) -> int:
    if not console.is_terminal:
        return 0
    return max(0, min(16, (console.width - _FRAME - 2 - token) // max(len(results), 1) - 10))


def _title(r: Relevance) -> str:
    if r.layers == ("input",):
        return f"{r.model or 'given scores'} · what it predicts"
    place = f"position {'?' if r.position is None else r.position}"
    if r.position_token is not None:
        place += f" {show(r.position_token)}"
    return f"{r.model or 'given attention'} · layer {r.layers[-1]} · {place}"


def as_text(results: Sequence[Relevance], width: int = 100) -> str:
    """All that the terminal shows of some results, as plain text."""
    out = io.StringIO()
    show_results(results, Console(file=out, width=width, force_terminal=False, color_system=None))
    return out.getvalue().rstrip()


def show_results(results: Sequence[Relevance], console: Console, top: int | None = None) -> None:
    """The prediction, what was drawn on most, tables, tinted text, and what else a reader must know.

    ``top``: show only so many tokens, those that some method scores highest.
    """
    for line in head(results):
        console.print(escape(line), highlight=False, soft_wrap=True)
    rows = top_rows(results, top)
    for table in tables(results, console, rows):
        console.print(table)
    if rows is not None:
        console.print(f"The {len(rows)} of {len(results[0].tokens)} tokens that some method scores highest.")
    if console.is_terminal and console.color_system in ("256", "truecolor"):
        console.print(highlight(next((r for r in results if r.method == "flow"), results[-1])))
    for line in footer(results):
        console.print(escape(line), style="dim", highlight=False)


def head(results: Sequence[Relevance]) -> list[str]:
    """What the model predicted, and which input each method says it drew on most; rounding error says nothing."""
    said = next((r.predicted for r in results if r.predicted), None)
    most = drawn_on({r.method: (r.tokens, r.scores[-1]) for r in results if r.rounding is None})
    return [*([show_line(said)] if said else []), *([f"It drew most on {most}."] if most else [])]


def footer(results: Sequence[Relevance]) -> list[str]:
    """What a reader must know besides the numbers: notes of the capture, whether scores are informative, reports."""
    lines: list[str] = []
    for r in results:
        lines += [note for note in r.notes if note not in lines]
    for r in results:
        if r.dropped is not None:
            lines.append(f"{r.method}: {r.dropped:.0%} of the mass lay on special tokens (dropped)")
        if len(r.tokens) >= FEWEST:
            lines.append(f"{r.method}: {r.informative.line}")
        elif r.dropped is None and any(r.tokens.special):
            lines.append(f"{r.method}: {r.special_share:.0%} of the mass lies on special tokens")
        if r.report is not None:
            lines += [f"{r.method}: {line}" for line in r.report.words]
    return lines
