"""Self-contained pages: nothing is loaded from anywhere, and all text is escaped in one place.

That place is :class:`markupsafe.Markup`: every piece of HTML here is made by its ``format`` and ``join``, which escape
whatever is not markup itself. A plain string can only become text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from string import Template

import numpy as np
from markupsafe import Markup, escape

from attnflow.flowgraph.records import FlowGraph, Output, settings_line
from attnflow.formats import POLICY
from attnflow.relevance import Relevance
from attnflow.views.colours import tint, weights
from attnflow.views.names import drawn_on, show, show_line
from attnflow.views.page_data import about_lines, page_data, squeezed
from attnflow.views.terminal import footer

SCRIPTS = ("data.js", "flow.js", "graph.js", "panels.js", "save.js", "main.js")
CAVEAT = "Attention shows where a model looked, not why it decided: evidence, not proof."


def document(results: Sequence[Relevance], graph: FlowGraph | None = None, title: str = "Attention flow") -> str:
    """The page of some results on one input: with their graph (:func:`attnflow.flowgraph.graph_of`), else plain."""
    return page(results) if graph is None else flow_page(graph, title)


def flow_page(graph: FlowGraph, title: str = "Attention flow") -> str:
    """The page of a graph: the layered network with its flows and cuts, and the scores of all methods.

    >>> from attnflow import Attention
    >>> from attnflow.flowgraph import flow_graph
    >>> flow_page(flow_graph(Attention.of([[[0.2, 0.8], [0.5, 0.5]]])))[:15]
    '<!doctype html>'
    """
    script = Markup("\n").join(map(part, SCRIPTS))
    body = {
        "plain": _plain_words(graph),
        "facts": _graph_facts(graph),
        "fallback": _output_table(graph.outputs[0], [show(t) for t in graph.net.tokens]),
        "footer": _graph_footer(graph),
    }
    return framed("page", title, body, squeezed(page_data(graph)), script)


def framed(kind: str, title: str, body: Mapping[str, str], data: str, script: Markup) -> str:
    """A page with a script: its ``kind`` names the body and the style; data are what the script reads."""
    frame = {
        "title": title,
        "policy": policy(script),
        "style": part(f"{kind}.css"),
        "body": _filled(f"{kind}.html", body),
        "data": data,
        "script": script,
    }
    return str(_filled("frame.html", frame))


def _filled(template: str, parts: Mapping[str, str]) -> Markup:
    return Markup(Template(part(template)).substitute({name: escape(text) for name, text in parts.items()}))


def page(results: Sequence[Relevance], title: str = "attnflow") -> str:
    """One plain document, without scripts, for one or more results on the same input."""
    heading = Markup("<h1>{}</h1>").format(title)
    body = Markup("\n").join([heading, _facts(results[0]), *_sections(results), _footer(results)])
    whole = Markup(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n{}\n'
        "<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n{}\n</body>\n</html>\n"
    )
    return str(whole.format(Markup(POLICY), title, part("page.css"), body))


def highlight(r: Relevance) -> str:
    """The text of a result for one position as an HTML fragment, its words tinted by their scores at the last layer.

    The colours are written into the fragment, so that it can be pasted anywhere.
    """
    words = r.words() if r.has_words else r
    span = Markup('<span style="background:{};padding:.1em .15em" title="{:.4f}"><bdi>{}</bdi></span>')
    tinted = [
        span.format(_tint(w), s, show(t))
        for t, s, w in zip(words.tokens, words.scores[-1].tolist(), weights(words.scores[-1]), strict=True)
    ]
    return str(Markup("<p>{}</p>").format(Markup(" ").join(tinted)))


def _tint(weight: float) -> str:
    hue, opacity = tint(weight)
    return f"rgba({','.join(map(str, hue))},{opacity:.3f})"


def policy(script: Markup) -> Markup:
    """Only this very script may run, and nothing may be loaded: a second wall behind the escaping."""
    seal = base64.b64encode(hashlib.sha256(f"\n{script}".encode()).digest()).decode()
    return Markup(f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{seal}'")


def part(name: str) -> Markup:
    """A file of the package: the only text besides this module's own that is markup."""
    return Markup(files("attnflow.views").joinpath("page", name).read_text(encoding="utf-8"))


def _lines(lines: Iterable[str]) -> Markup:
    return Markup("<br>").join(lines)


def _plain_words(g: FlowGraph) -> Markup:
    """The first line: what the model said, what it drew on, and what the picture shows."""
    first = g.outputs[0]
    most = drawn_on({name: (g.net.tokens, s) for name, s in first.scores.items() if name not in g.rounding})
    lines = [show_line(g.predicted)] if g.predicted else []
    lines += [f"It drew most on {most}."] if most else []
    lines.append("The graph shows how much of each input can have reached the output, layer by layer.")
    return escape(" ".join(lines))


def _graph_facts(g: FlowGraph) -> Markup:
    # Each token by itself: otherwise neighbours that run from right to left would change places.
    shown = Markup(" ").join(Markup("<bdi>{}</bdi>").format(show(t)) for t in g.net.tokens[:24])
    text = shown + (" …" if g.net.size > 24 else "") if g.image is None else f"{g.grid[0]} × {g.grid[1]} patches"
    size = f"{len(g.net.layers)} layers × {g.net.size} tokens"
    return Markup('Model {} · {} · <span class="sentence">{}</span>').format(g.model or "not named", size, text)


def _graph_footer(g: FlowGraph) -> Markup:
    from attnflow.version import __version__

    kinds = list(dict.fromkeys(other.edges for other in (g, *g.fusions)))
    lines = [
        _head_line(g),
        *([f"Edges: {', '.join(kinds)}; they share the room of the page."] if len(kinds) > 1 else []),
        "Each input has a maximum flow of its own; the graph shows that of the chosen input, one of possibly many "
        "with this value.",
        CAVEAT,
        ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "numpy")),
        f"attnflow {__version__}",
    ]
    return Markup('<span id="about">{}</span><br>{}').format(_lines(about_lines(g)), _lines(map(show_line, lines)))


def _head_line(g: FlowGraph) -> str:
    if g.heads == "together":
        return f"Heads: {g.edges} edges hold what all heads gave together."
    if not g.head_count:
        return (
            f"Heads: {g.heads} only, because the attention was brought down to one matrix per layer. To switch between "
            'heads:  capture(…, heads="all")'
        )
    names = [other.heads for other in (g, *g.fusions) if other.edges == g.edges]
    missing = g.head_count - sum(name.startswith("head ") for name in names)
    if not missing:
        return f"Heads: mean, max, min and each of the {g.head_count}; they share the room of the page."
    left = f"{missing} of {g.head_count} single heads are left out to keep the page small"
    return f'Heads: {", ".join(names)}; {left}. Ask for some:  to_html(heads=["mean", 3])'


def _table(head: Iterable[Markup], rows: Iterable[Iterable[Markup]]) -> Markup:
    """A table that scrolls by itself; cells are ``<th>`` and ``<td>``."""
    lines = Markup("").join(Markup("<tr>{}</tr>").format(Markup("").join(cells)) for cells in (head, *rows))
    return Markup('<div class="scroll"><table>{}</table></div>').format(lines)


def _head(name: str, kind: str = "") -> Markup:
    return Markup('<th class="{}">{}</th>').format(kind, name) if kind else Markup("<th>{}</th>").format(name)


def _token(token: str, special: bool) -> Markup:
    return _head(show(token), "token special" if special else "token")


def _output_table(output: Output, names: Sequence[str]) -> Markup:
    """The scores of one output as a plain table."""
    columns = {name: (scores, weights(scores)) for name, scores in output.scores.items()}
    rows = (
        [_head(token, "token"), *(_bar(float(scores[j]), parts[j]) for scores, parts in columns.values())]
        for j, token in enumerate(names)
    )
    return _table([_head(""), *map(_head, columns)], rows)


def _facts(r: Relevance) -> Markup:
    said = Markup('<p id="plain">{}</p>').format(show_line(r.predicted)) if r.predicted else Markup("")
    place = Markup("")
    if r.position is not None:
        place = Markup(" · output position {} {}").format(r.position, _code(r.position_token or ""))
    return said + Markup("<p>Model {}{} · layer {}</p>").format(r.model or "not named", place, r.layers[-1])


def _sections(results: Sequence[Relevance]) -> list[Markup]:
    single = [r for r in results if r.scores.ndim == 2]
    out = []
    if single:
        out += [Markup("<h2>What the output drew on</h2>"), _marked(single[-1]), _bars(single)]
    for r in results:
        out += [Markup("<h2>{}: {}</h2>").format(r.method.capitalize(), _axes(r)), _heat(r)]
    return out


def _axes(r: Relevance) -> str:
    return "layers × inputs" if r.scores.ndim == 2 else f"outputs × inputs at layer {r.layers[-1]}"


def _marked(r: Relevance) -> Markup:
    words = r.words() if r.has_words else r
    mark = Markup('<mark{} style="--w:{:.3f}" title="{:.4f}">{}</mark>')
    marks = [
        mark.format(_minus(w), abs(w), s, show(t))
        for t, s, w in zip(words.tokens, words.scores[-1].tolist(), weights(words.scores[-1]), strict=True)
    ]
    return Markup('<p class="text">{} <small>({})</small></p>').format(Markup(" ").join(marks), r.method)


def _bars(results: Sequence[Relevance]) -> Markup:
    tokens = results[0].tokens
    columns = [(r.scores[-1].tolist(), weights(r.scores[-1])) for r in results]
    rows = (
        [_token(t, tokens.special[j]), *(_bar(scores[j], parts[j]) for scores, parts in columns)]
        for j, t in enumerate(tokens)
    )
    return _table([_head("token", "token"), *(_head(r.method) for r in results)], rows)


def _bar(score: float, part: float) -> Markup:
    if np.isnan(score):
        return Markup('<td class="bar">–</td>')
    cell = Markup('<td class="bar"><span{} style="width:{:.2f}rem"></span>{:.3f}</td>')
    return cell.format(_minus(part), 6 * abs(part), score)


def _minus(part: float) -> Markup:
    return Markup(' class="minus"' if part < 0 else "")


def _heat(r: Relevance) -> Markup:
    """Rows: layers (top first) for one position, outputs for all; columns: inputs."""
    if r.scores.ndim == 2:
        names, matrix = [f"layer {layer}" for layer in r.layers][::-1], r.scores[::-1]
    else:
        names, matrix = [show(t) for t in r.rows], r.scores[-1]
    top = float(np.nan_to_num(np.abs(matrix)).max()) or 1.0
    rows = (
        [_head(name, "token"), *(_cell(s, s / top) for s in row)]
        for name, row in zip(names, matrix.tolist(), strict=True)
    )
    return _table([_head(""), *map(_token, r.tokens, r.tokens.special)], rows)


def _cell(score: float, part: float) -> Markup:
    if np.isnan(score):
        return Markup("<td>–</td>")
    kind = "heat minus" if part < 0 else "heat"
    return Markup('<td class="{}" style="--w:{:.3f}">{:.3f}</td>').format(kind, abs(part), score)


def _code(token: str) -> Markup:
    return Markup("<code>{}</code>").format(show(token)) if token else Markup("")


def _footer(results: Sequence[Relevance]) -> Markup:
    from attnflow.version import __version__

    lines = [*footer(results), *(f"{r.method}: {settings_line(r)}" for r in results), CAVEAT, f"attnflow {__version__}"]
    return Markup("<footer>{}</footer>").format(_lines(lines))
