"""A table in the terminal: tokens × methods, with bars where somebody is looking."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from attnflow.errors import ShapeError
from attnflow.relevance import Relevance
from attnflow.views.names import show

_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(share: float, width: int) -> str:
    """A bar of ``share`` × ``width`` cells, drawn in eighths.

    >>> bar(0.5, 4), bar(0.3125, 4)
    ('██', '█▎')
    """
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def table(results: Sequence[Relevance], console: Console) -> Table:
    """One row a token, one column a method: the scores at the last layer that each result holds.

    Bars are drawn on a terminal only; in a pipe there are plain numbers.
    """
    for r in results:
        if r.scores.ndim != 2:
            raise ShapeError(
                f"A table shows one output position, and {r.method} holds {len(r.rows)}. Use .at(position=…)."
            )
        if r.tokens != results[0].tokens:
            raise ShapeError(f"{results[0].method} and {r.method} have different tokens: one table cannot hold both.")
    out = Table(title=escape(_title(results[0])), title_justify="left")
    out.add_column("", justify="right", style="dim")
    out.add_column("token", no_wrap=True)
    for r in results:
        out.add_column(r.method, justify="left", no_wrap=True)
    width = _bar_width(console, len(results))
    highest = [max(float(np.abs(r.scores[-1]).max()), 1e-300) for r in results]
    for j, token in enumerate(results[0].tokens):
        style = "dim" if results[0].tokens.special[j] else ""
        cells = []
        for r, most in zip(results, highest, strict=True):
            score = float(r.scores[-1, j])
            cells.append(Text(f"{score:.3f} " + bar(abs(score) / most, width) if width else f"{score:.3f}"))
        out.add_row(str(j), Text(show(token), style=style), *cells)
    return out


def _bar_width(console: Console, methods: int) -> int:
    if not console.is_terminal:
        return 0
    return max(0, min(16, (console.width - 24) // max(methods, 1) - 10))


def _title(r: Relevance) -> str:
    place = f"position {r.settings.get('position', '?')}"
    if "position_token" in r.settings:
        place += f" {show(str(r.settings['position_token']))}"
    return f"{r.model or 'given attention'} · layer {r.layers[-1]} · {place}"


def footer(results: Sequence[Relevance]) -> list[str]:
    """What a reader must know besides the numbers: notes of the capture, the share on special tokens, reports."""
    lines: list[str] = []
    for r in results:
        lines += [str(note) for note in r.settings.get("notes", ()) if note not in lines]
    for r in results:
        if "dropped" in r.settings:
            lines.append(f"{r.method}: {r.settings['dropped']:.0%} of the mass lay on special tokens (dropped)")
        elif any(r.tokens.special):
            lines.append(f"{r.method}: {r.special_share:.0%} of the mass lies on special tokens")
        report = r.settings.get("report")
        if isinstance(report, dict):
            lines += [f"{r.method}: {line}" for line in report.get("words", ())]
    return lines
