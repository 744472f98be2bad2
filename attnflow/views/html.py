"""A self-contained page: nothing is loaded from anywhere, every token is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

import numpy as np

from attnflow.relevance import Relevance
from attnflow.views.names import show
from attnflow.views.terminal import footer


def page(results: Sequence[Relevance], title: str = "attnflow") -> str:
    """One HTML document for one or more results on the same input."""
    css = files("attnflow.views").joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join([f"<h1>{escape(title)}</h1>", _facts(results[0]), *_sections(results), _footer(results)])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def frame(results: Sequence[Relevance], height: int = 480) -> str:
    """The page inside an iframe of its own, as notebooks show it: styles and ids cannot clash."""
    return (
        f'<iframe srcdoc="{escape(page(results), quote=True)}" style="width:100%;height:{height}px;border:0" '
        'title="attnflow result"></iframe>'
    )


def _facts(r: Relevance) -> str:
    place = ""
    if "position" in r.settings:
        place = f" · output position {r.settings['position']} {_code(str(r.settings.get('position_token', '')))}"
    return f"<p>Model {escape(r.model or 'not named')}{place} · layer {escape(str(r.layers[-1]))}</p>"


def _sections(results: Sequence[Relevance]) -> list[str]:
    single = [r for r in results if r.scores.ndim == 2]
    out = []
    if single:
        out += ["<h2>What the output drew on</h2>", _highlight(single[-1]), _bars(single)]
    for r in results:
        out.append(f"<h2>{escape(r.method.capitalize())}: {_axes(r)}</h2>")
        out.append(_heat(r))
    return out


def _axes(r: Relevance) -> str:
    return "layers × inputs" if r.scores.ndim == 2 else f"outputs × inputs at layer {escape(str(r.layers[-1]))}"


def _highlight(r: Relevance) -> str:
    words = r if r.settings.get("words") else r.words()
    top = float(np.abs(words.scores[-1]).max()) or 1.0
    marks = [
        f'<mark style="--w:{abs(float(s)) / top:.3f}" title="{float(s):.4f}">{escape(show(t))}</mark>'
        for t, s in zip(words.tokens, words.scores[-1], strict=True)
    ]
    return f'<p class="text">{" ".join(marks)} <small>({escape(r.method)})</small></p>'


def _bars(results: Sequence[Relevance]) -> str:
    head = "".join(f"<th>{escape(r.method)}</th>" for r in results)
    tops = [float(np.abs(r.scores[-1]).max()) or 1.0 for r in results]
    lines = []
    for j, token in enumerate(results[0].tokens):
        cells = "".join(_bar(float(r.scores[-1, j]), top) for r, top in zip(results, tops, strict=True))
        lines.append(f"<tr>{_name(token, results[0].tokens.special[j])}{cells}</tr>")
    return f'<div class="scroll"><table><tr><th class="token">token</th>{head}</tr>{"".join(lines)}</table></div>'


def _bar(score: float, top: float) -> str:
    return f'<td class="bar"><span style="width:{6 * abs(score) / top:.2f}rem"></span>{score:.3f}</td>'


def _heat(r: Relevance) -> str:
    """Rows: layers (top first) for one position, outputs for all; columns: inputs."""
    if r.scores.ndim == 2:
        names, matrix = [f"layer {layer}" for layer in r.layers][::-1], r.scores[::-1]
    else:
        names, matrix = [show(t) for t in r.rows], r.scores[-1]
    head = "".join(_name(t, s) for t, s in zip(r.tokens, r.tokens.special, strict=True))
    top = float(np.abs(matrix).max()) or 1.0
    lines = []
    for name, row in zip(names, matrix, strict=True):
        cells = "".join(f'<td class="heat" style="--w:{abs(float(s)) / top:.3f}">{float(s):.3f}</td>' for s in row)
        lines.append(f'<tr><th class="token">{escape(name)}</th>{cells}</tr>')
    return f'<div class="scroll"><table><tr><th></th>{head}</tr>{"".join(lines)}</table></div>'


def _name(token: str, special: bool) -> str:
    return f'<th class="token{" special" if special else ""}">{escape(show(token))}</th>'


def _code(token: str) -> str:
    return f"<code>{escape(show(token))}</code>" if token else ""


def _footer(results: Sequence[Relevance]) -> str:
    from attnflow import __version__

    lines = [escape(line) for line in footer(results)]
    lines += [escape(f"{r.method}: {_settings(r)}") for r in results]
    lines.append("Attention shows where a model looked, not why it decided: evidence, not proof.")
    return f"<footer>{'<br>'.join(lines)}<br>attnflow {__version__}</footer>"


def _settings(r: Relevance) -> str:
    hidden = ("notes", "report", "position", "position_token")
    return ", ".join(f"{k}={v}" for k, v in r.settings.items() if k not in hidden and np.ndim(v) == 0)
