"""Self-contained pages: nothing is loaded from anywhere, every token is escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.metadata import version
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from attnflow.flowgraph import METHODS, Picture, Target, picture, settings_line, ways
from attnflow.relevance import Relevance
from attnflow.views.names import show
from attnflow.views.pack import about_lines, page_data, show_line, squeezed
from attnflow.views.terminal import footer
from attnflow.views.tints import tint, weights

SCRIPTS = ("data.js", "graph.js", "panels.js", "save.js", "main.js")
# Weights for which a notebook cell may compute flows: 64 tokens × 12 layers, less than a second.
AT_ONCE = 12 * 64**2
PREVIEW_PAIRS = 64
CAVEAT = "Attention shows where a model looked, not why it decided: evidence, not proof."


def flow_page(picture: Picture, title: str = "Attention flow", words: bool = False, special: bool = True) -> str:
    """The page of a picture: the layered graph with its flows and cuts, and the scores of all methods.

    ``words`` and ``special`` say whether the page opens with words instead of tokens and with special tokens shown.

    >>> from attnflow import Attention
    >>> from attnflow.flowgraph import picture
    >>> flow_page(picture(Attention.of([[[0.2, 0.8], [0.5, 0.5]]])))[:15]
    '<!doctype html>'
    """
    script = "\n".join(_part(name) for name in SCRIPTS)
    # Only this very script may run, and nothing may be loaded: a second wall behind the escaping.
    seal = base64.b64encode(hashlib.sha256(f"\n{script}".encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{seal}'"
    return Template(_part("page.html")).substitute(
        title=escape(title),
        policy=policy,
        style=_part("page.css"),
        facts=_picture_facts(picture),
        fallback=_target_table(picture.targets[0], [show(t) for t in picture.net.tokens]),
        footer=_picture_footer(picture),
        data=squeezed(page_data(picture, words, special)),
        script=script,
    )


def document(
    results: Sequence[Relevance],
    title: str = "Attention flow",
    words: bool = False,
    special: bool = True,
    **options: Any,
) -> str:
    """The page of some results on one input: with the graph where one of them knows its attention, else plain.

    ``options`` go to :func:`attnflow.flowgraph.picture`. Results that were brought to words, or that lost their special
    tokens, open the page in that state, as ``words=True`` and ``special=False`` do.
    """
    base = next((r for r in results if r.attention is not None), None)
    others = [r for r in results if r.method not in METHODS or r.attention is None]
    changed = [r for r in others if r.unit == "word" or r.dropped is not None]
    if base is None or base.attention is None or changed:
        return page(results)
    chosen: dict[str, Any] = {
        "position": base.position,
        "residual": base.residual,
        "start_layer": base.start_layer or 0,
        "layer": -1 if len(base.layers) > 1 else base.layers[0],
        "heads": ways(base.attention, "mean" if base.heads is None else base.heads),
    }
    drawn = picture(base.attention, others, **{**chosen, **options})
    words, special = words or base.unit == "word", special and base.dropped is None
    return flow_page(drawn, title, words, special)


def preview(results: Sequence[Relevance], height: int = 900) -> str:
    """What a notebook shows: the graph where it is there at once, else the plain page."""
    attention = results[0].attention
    blocks = [] if attention is None else attention.blocks.values()
    work = sum(w.shape[-2] * w.shape[-1] for block in blocks for w in block.weights)
    if 0 < work <= AT_ONCE:
        heads = results[0].heads
        return frame(document(results, pairs=PREVIEW_PAIRS, heads=["mean" if heads is None else heads]), height)
    return frame(page(results), height)


def page(results: Sequence[Relevance], title: str = "attnflow") -> str:
    """One plain document, without scripts, for one or more results on the same input."""
    body = "\n".join([f"<h1>{escape(title)}</h1>", _facts(results[0]), *_sections(results), _footer(results)])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_part('page.css')}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def frame(document: str, height: int = 480) -> str:
    """A document inside an iframe of its own, as notebooks show it: styles and ids cannot clash."""
    return (
        f'<iframe srcdoc="{escape(document, quote=True)}" style="width:100%;height:{height}px;border:0" '
        'title="attnflow result"></iframe>'
    )


def highlight(r: Relevance) -> str:
    """The text of a result for one position as an HTML fragment, its words tinted by their scores at the last layer.

    The colours are written into the fragment, so that it can be pasted anywhere.
    """
    words = r.words()
    tinted = [
        f'<span style="background:{_tint(w)};padding:.1em .15em" title="{s:.4f}"><bdi>{escape(show(t))}</bdi></span>'
        for t, s, w in zip(words.tokens, words.scores[-1].tolist(), weights(words.scores[-1]), strict=True)
    ]
    return f"<p>{' '.join(tinted)}</p>"


def _tint(weight: float) -> str:
    hue, opacity = tint(weight)
    return f"rgba({','.join(map(str, hue))},{opacity:.3f})"


def _part(name: str) -> str:
    return files("attnflow.views").joinpath("page", name).read_text(encoding="utf-8")


def _picture_facts(p: Picture) -> str:
    # Each token by itself: otherwise neighbours that run from right to left would change places.
    text = " ".join(f"<bdi>{escape(show(t))}</bdi>" for t in p.net.tokens[:24]) + (" …" if p.net.size > 24 else "")
    text = text if p.image is None else f"{p.grid[0]} × {p.grid[1]} patches"
    size = f"{len(p.net.layers)} layers × {p.net.size} tokens"
    return f'Model {escape(p.model or "not named")} · {size} · <span class="sentence">{text}</span>'


def _picture_footer(p: Picture) -> str:
    from attnflow import __version__

    lines = [
        _head_line(p),
        "Each input has a maximum flow of its own; the graph shows that of the chosen input, one of possibly many "
        "with this value.",
        CAVEAT,
        ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "numpy")),
        f"attnflow {__version__}",
    ]
    about = "<br>".join(map(escape, about_lines(p)))
    return f'<span id="about">{about}</span><br>' + "<br>".join(escape(show_line(line)) for line in lines)


def _head_line(p: Picture) -> str:
    if not p.head_count:
        return (
            f"Heads: {p.heads}, no other way is here, as the attention was brought down to one matrix a layer. To "
            'switch between heads:  capture(…, heads="all")'
        )
    names = [other.heads for other in (p, *p.fusions)]
    missing = p.head_count - sum(name.startswith("head ") for name in names)
    if not missing:
        return f"Heads: mean, max, min and each of the {p.head_count}; what a page may have is shared by all."
    left = f"{missing} of {p.head_count} single heads are left out to keep the page small"
    return f'Heads: {", ".join(names)}; {left}. Ask for some:  to_html(heads=["mean", 3])'


def _target_table(target: Target, names: Sequence[str]) -> str:
    """The scores of one target as a plain table."""
    columns = {name: (scores, weights(scores)) for name, scores in target.scores.items()}
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = []
    for j, token in enumerate(names):
        cells = "".join(_bar(float(scores[j]), parts[j]) for scores, parts in columns.values())
        lines.append(f'<tr><th class="token">{escape(token)}</th>{cells}</tr>')
    return f'<div class="scroll"><table><tr><th></th>{head}</tr>{"".join(lines)}</table></div>'


def _facts(r: Relevance) -> str:
    place = ""
    if r.position is not None:
        place = f" · output position {r.position} {_code(r.position_token or '')}"
    return f"<p>Model {escape(r.model or 'not named')}{place} · layer {escape(str(r.layers[-1]))}</p>"


def _sections(results: Sequence[Relevance]) -> list[str]:
    single = [r for r in results if r.scores.ndim == 2]
    out = []
    if single:
        out += ["<h2>What the output drew on</h2>", _marked(single[-1]), _bars(single)]
    for r in results:
        out.append(f"<h2>{escape(r.method.capitalize())}: {_axes(r)}</h2>")
        out.append(_heat(r))
    return out


def _axes(r: Relevance) -> str:
    return "layers × inputs" if r.scores.ndim == 2 else f"outputs × inputs at layer {escape(str(r.layers[-1]))}"


def _marked(r: Relevance) -> str:
    words = r.words()
    marks = [
        f'<mark{_minus(w)} style="--w:{abs(w):.3f}" title="{s:.4f}">{escape(show(t))}</mark>'
        for t, s, w in zip(words.tokens, words.scores[-1].tolist(), weights(words.scores[-1]), strict=True)
    ]
    return f'<p class="text">{" ".join(marks)} <small>({escape(r.method)})</small></p>'


def _bars(results: Sequence[Relevance]) -> str:
    head = "".join(f"<th>{escape(r.method)}</th>" for r in results)
    parts = [weights(r.scores[-1]) for r in results]
    lines = []
    for j, token in enumerate(results[0].tokens):
        cells = "".join(_bar(float(r.scores[-1, j]), p[j]) for r, p in zip(results, parts, strict=True))
        lines.append(f"<tr>{_name(token, results[0].tokens.special[j])}{cells}</tr>")
    return f'<div class="scroll"><table><tr><th class="token">token</th>{head}</tr>{"".join(lines)}</table></div>'


def _bar(score: float, part: float) -> str:
    return f'<td class="bar"><span{_minus(part)} style="width:{6 * abs(part):.2f}rem"></span>{score:.3f}</td>'


def _minus(part: float) -> str:
    return ' class="minus"' if part < 0 else ""


def _heat(r: Relevance) -> str:
    """Rows: layers (top first) for one position, outputs for all; columns: inputs."""
    if r.scores.ndim == 2:
        names, matrix = [f"layer {layer}" for layer in r.layers][::-1], r.scores[::-1]
    else:
        names, matrix = [show(t) for t in r.rows], r.scores[-1]
    head = "".join(_name(t, s) for t, s in zip(r.tokens, r.tokens.special, strict=True))
    top = float(np.nan_to_num(np.abs(matrix)).max()) or 1.0
    lines = []
    for name, row in zip(names, matrix.tolist(), strict=True):
        cells = "".join(_cell(s, s / top) for s in row)
        lines.append(f'<tr><th class="token">{escape(name)}</th>{cells}</tr>')
    return f'<div class="scroll"><table><tr><th></th>{head}</tr>{"".join(lines)}</table></div>'


def _cell(score: float, part: float) -> str:
    if np.isnan(score):
        return "<td>–</td>"
    return f'<td class="heat{" minus" if part < 0 else ""}" style="--w:{abs(part):.3f}">{score:.3f}</td>'


def _name(token: str, special: bool) -> str:
    return f'<th class="token{" special" if special else ""}">{escape(show(token))}</th>'


def _code(token: str) -> str:
    return f"<code>{escape(show(token))}</code>" if token else ""


def _footer(results: Sequence[Relevance]) -> str:
    from attnflow import __version__

    lines = [escape(line) for line in footer(results)]
    lines += [escape(f"{r.method}: {settings_line(r)}") for r in results]
    lines.append(CAVEAT)
    return f"<footer>{'<br>'.join(lines)}<br>attnflow {__version__}</footer>"
