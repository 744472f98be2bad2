"""The page of an attribution: the prompt with its sources tinted, the answer, bars per method and the checks."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

from attnflow.answers.attribution import Attribution
from attnflow.answers.sources import Source
from attnflow.views.colours import weights
from attnflow.views.html import framed, part
from attnflow.views.names import show_line, show_text
from attnflow.views.page_data import squeezed

CAVEAT = (
    "Scores say what the model read, not why it answered. The check says how much less likely the answer is without a "
    "source."
)


def answer_page(found: Attribution) -> str:
    """One self-contained page: nothing is loaded from anywhere, and all text is escaped."""
    body = {
        "facts": _facts(found),
        "prompt": _prompt(found, weights(found.shares()[0])),
        "pictures": _pictures(found),
        "answer": _answer(found),
        "fallback": _table(found),
        "footer": _footer(found),
    }
    return framed("answers", "What the answer drew on", body, squeezed(page_data(found)), part("answers.js"))


def page_data(found: Attribution) -> dict[str, Any]:
    """All that the page's script reads."""
    return {
        "method": show_line(found.method),
        "methods": [show_line(m) for m in found.scores],
        "units": [{"kind": u.kind, "text": show_line(u.text)[:120]} for u in found.units],
        "sources": [
            {"name": show_line(s.name), "kind": s.kind, "text": show_line(s.text)[:160]} for s in found.sources
        ],
        "shares": {show_line(m): _rounded(found.shares(m)) for m in found.scores},
        "rest": {show_line(m): {k: _rounded(v) for k, v in found.rest(m).items()} for m in found.scores},
        "checks": {show_line(way): _rounded(c) for way, c in found.checks.items()},
    }


def _rounded(array: npt.NDArray[Any]) -> Any:
    """Numbers of five digits; None where there is none."""
    if array.ndim == 2:
        return [_rounded(row) for row in array]
    return [None if np.isnan(v) else float(f"{v:.5g}") for v in array]


def _facts(found: Attribution) -> Markup:
    size = f"{len(found.tokens)} tokens · {len(found.sources)} sources · {len(found.units)} parts of the answer"
    line = Markup("Model {} · {}").format(show_line(found.model) if found.model else "not named", size)
    if found.instead is not None:
        line += Markup(" · and not <q><bdi>{}</bdi></q>").format(show_text(found.instead))
    return line


def _prompt(found: Attribution, tints: list[float]) -> Markup:
    """The prompt, source by source; what stands between them is the template."""
    out, at = [], 0
    plain = Markup('<span class="template">{}</span>')
    tinted = Markup('<span class="source {}" role="button" tabindex="-1" data-s="{}" style="--w:{:.3f}">{}</span>')
    for number, source in enumerate(found.sources):
        if source.kind == "patch":
            continue
        if source.start > at:
            out.append(plain.format(show_text(found.prompt[at : source.start])))
        out.append(tinted.format(source.kind, number, max(tints[number], 0.0), show_text(source.text)))
        at = source.end
    if at < len(found.prompt):
        out.append(plain.format(show_text(found.prompt[at:])))
    return Markup("").join(out)


def _pictures(found: Attribution) -> Markup:
    """Each image with a square for each of its patches."""
    out = []
    for number, png in enumerate(found.images):
        mine = [(i, s) for i, s in enumerate(found.sources) if s.box is not None and s.box[0] == number]
        if not mine:
            continue
        rows, columns = (mine[0][1].box or (0, 0, 0, 1, 1))[3:]
        squares = Markup("").join(_square(i, s) for i, s in mine)
        data = base64.b64encode(png).decode()
        out.append(
            Markup(
                '<figure class="picture"><img alt="image {}" src="data:image/png;base64,{}">'
                '<svg viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg></figure>'
            ).format(number + 1, data, columns, rows, squares)
        )
    return Markup("").join(out)


def _square(number: int, source: Source) -> Markup:
    _, row, column, _, _ = source.box or (0, 0, 0, 0, 0)
    square = Markup('<rect class="source patch" tabindex="-1" data-s="{}" x="{}" y="{}" width="1" height="1"></rect>')
    return square.format(number, column, row)


def _answer(found: Attribution) -> Markup:
    """The parts of the answer in their order; characters between them stay where they are."""
    inner = [(i, u) for i, u in enumerate(found.units) if u.kind != "whole"]
    button = Markup('<span class="unit" role="button" tabindex="{}" data-u="{}">{}</span>')
    if not inner:
        return button.format(0, 0, show_text(found.answer))
    out, at = [], 0
    for number, unit in inner:
        if unit.start > at:
            out.append(escape(show_text(found.answer[at : unit.start])))
        out.append(button.format(0, number, show_text(found.answer[max(unit.start, at) : unit.end])))
        at = max(at, unit.end)
    out.append(escape(show_text(found.answer[at:])))
    return Markup("").join(out)


def _table(found: Attribution) -> Markup:
    """The sources of the whole answer, for a browser without scripts."""
    shares = found.shares()[0]
    rows = Markup("").join(
        Markup("<tr><th>{}</th><td>{:.1%}</td><td>{}</td></tr>").format(
            show_line(found.sources[i].name), float(shares[i]), show_line(found.sources[i].text)[:80]
        )
        for i in found.ranked()[:20]
    )
    return Markup("<table>{}</table>").format(rows)


def _footer(found: Attribution) -> Markup:
    from attnflow.version import __version__

    told = "; ".join(f"{name}: {value}" for name, value in found.settings.items() if value is not None)
    lines = [*found.notes, told, CAVEAT, f"attnflow {__version__}"]
    return Markup("<br>").join(show_line(line) for line in lines)
