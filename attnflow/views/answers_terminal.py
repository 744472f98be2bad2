"""An attribution in the terminal: a table of sources, and the prompt tinted by them."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from attnflow.answers.attribution import Attribution
from attnflow.views.colours import weights
from attnflow.views.names import show_line, show_text
from attnflow.views.terminal import bar, tint_style

LONGEST = 2000
"""Characters of tinted text on each side of which nothing is cut off."""


def print_attribution(found: Attribution, unit: int = 0, k: int = 10, console: Console | None = None) -> None:
    """The greatest sources of one unit, what lies elsewhere, and the tinted prompt where there are colours."""
    screen = Console() if console is None else console
    screen.print(table(found, unit, k, screen))
    if screen.is_terminal and screen.color_system in ("256", "truecolor"):
        screen.print(tinted(found, unit))
    for line in footer(found, unit):
        screen.print(escape(line), style="dim", highlight=False)


def table(found: Attribution, unit: int, k: int, console: Console) -> Table:
    """One row per source, greatest first: its share by each method, and what the answer loses without it."""
    part = found.units[unit]
    title = f"{'the whole answer' if part.kind == 'whole' else part.kind}: {show_line(part.text)[:60]}"
    out = Table(title=escape(title), title_justify="left")
    shares = {name: found.shares(name)[unit] for name in found.scores}
    drawn = 8 if console.is_terminal and console.width > 60 + 20 * len(shares) else 0
    shown = found.ranked(unit)[:k]
    named = min(max([6, *(len(show_line(found.sources[i].name)) for i in shown)]), 22)
    numbers = [max(len(name), 6 + drawn) for name in found.scores] + [max(7, len(way) + 2) for way in found.checks]
    # The numbers are what the table is for: on a narrow screen the text gives way. rich would narrow the numbers too.
    room = console.width - named - sum(numbers) - 3 * (len(numbers) + 2) - 1
    out.add_column("source", no_wrap=True, width=named)
    for name, width in zip(found.scores, numbers, strict=False):
        out.add_column(name, no_wrap=True, width=width)
    for way, width in zip(found.checks, numbers[len(found.scores) :], strict=True):
        out.add_column(f"without\n({way})", justify="right", width=width)
    if room > 0:
        out.add_column("text", no_wrap=True, overflow="ellipsis", max_width=max(room, 4))
    for i in shown:
        cells = [_share(float(s[i]), float(s.max()), drawn) for s in shares.values()]
        lost = ["" if np.isnan(c[unit, i]) else f"{c[unit, i]:+.2f}" for c in found.checks.values()]
        source = found.sources[i]
        text = [Text(show_line(source.text) if source.text else "")] if room > 0 else []
        out.add_row(Text(show_line(source.name)), *cells, *lost, *text)
    return out


def _share(share: float, top: float, width: int) -> str:
    return f"{share:5.1%} {bar(share / top, width)}" if width and top > 0 else f"{share:5.1%}"


def tinted(found: Attribution, unit: int = 0) -> Text:
    """The prompt, its sources tinted by their shares; of a long one the passages around the greatest."""
    tints = weights(found.shares()[unit])
    out, at = Text(), 0
    kept = set(found.ranked(unit)[:5]) if len(found.prompt) > LONGEST else set(range(len(found.sources)))
    for number, source in enumerate(found.sources):
        if source.kind == "patch" or number not in kept:
            continue
        if source.start > at:
            between = found.prompt[at : source.start]
            out.append(show_text(between) if len(kept) == len(found.sources) else " … ", style="dim")
        out.append(show_text(source.text), style=tint_style(max(tints[number], 0.0)))
        at = source.end
    return out.append("\n→ ", style="dim").append(show_text(found.answer), style="bold")


def footer(found: Attribution, unit: int = 0) -> list[str]:
    """Where the rest of each method's scores lies, and what a reader should know."""
    lines = []
    for name in found.scores:
        rest = {part: float(values[unit]) for part, values in found.rest(name).items()}
        lines.append(f"{name}: {', '.join(f'{part} {share:.0%}' for part, share in rest.items())}")
    if found.checks:
        lines.append("without: how much log p the answer loses when the source is left out")
    return [*lines, *found.notes]
