"""A flow graph as the data of a page: numbers packed, all of it compressed, nothing in it that could end a script."""

from __future__ import annotations

import base64
import gzip
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.flowgraph.records import FLOW, FlowGraph, Output, PairFlow
from attnflow.views.names import show, show_ahead, show_line

# Pipes that carry nothing are drawn in small networks only: in a large one the widest are the residual ones, a picket
# fence that says nothing.
PIPES = 1500
# Capacities that a page holds, all fusions together, with which it computes the flows of further pairs.
CAPACITIES = 240_000
_FULL = 65_535


def squeezed(value: Any) -> str:
    """JSON, compressed, in base64: letters and digits, whatever the tokens are.

    >>> len(squeezed("</script>" * 1000)) < 200
    True
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), mtime=0)).decode()


def packed(array: npt.NDArray[Any], kind: str) -> str:
    """Base64 of the little-endian bytes: "<f4", "<u4" or "<u2"."""
    return base64.b64encode(np.ascontiguousarray(array).astype(kind).tobytes()).decode()


def page_data(graph: FlowGraph) -> dict[str, Any]:
    """All that the page's script reads."""
    from attnflow.version import __version__

    net = graph.net
    fixed = _fixed(graph)
    return {
        "version": __version__,
        "size": net.size,
        "tokens": _names(graph, net.tokens),
        "special": [int(s) for s in net.tokens.special],
        "words": _words(graph),
        "queries": _names(graph, net.queries),
        "predicts": None if graph.predicts is None else show_ahead(graph.predicts),
        "firstRow": net.rows[0],
        "layers": list(net.layers),
        "tops": list(net.tops),
        "levels": [[level.tower, level.layer] for level in graph.levels],
        "towers": _towers(graph),
        "fixed": [_both(graph.outputs[:1], name) for name in fixed],
        "fusions": [_fusion(g, fixed, CAPACITIES // (1 + len(graph.fusions))) for g in (graph, *graph.fusions)],
        "start": {"words": graph.as_words, "special": graph.with_special},
        "image": _image(graph),
    }


def about_lines(graph: FlowGraph) -> list[str]:
    """What a reader must know of one fusion: notes, settings, and what was left out."""
    lines = [*graph.notes, *(f"{name}: {line}" for name, line in graph.methods.items() if line)]
    if not graph.complete:
        possible = len(graph.net.layers) * len(graph.net.rows)
        outputs = f"{len(graph.outputs):,} of {possible:,}" if len(graph.outputs) < possible else "all"
        lines.append(
            f"To keep the page small it has {outputs} outputs, with all their scores, and the strongest edges of "
            f"{len(graph.pairs):,} of {possible * graph.net.size:,} flows; the share of flow that they carry stands "
            "above the graph."
        )
    return [show_line(line) for line in lines]


def _fusion(graph: FlowGraph, fixed: Sequence[str], room: int) -> dict[str, Any]:
    """What depends on the edges, and on how the heads were brought down."""
    index, capacity = _table(graph)
    unit, kind = _unit(graph)
    at = {int(e): i for i, e in enumerate(index)}
    own = [name for name in graph.methods if name not in fixed]
    return {
        "name": graph.heads,
        "edges": graph.edges,
        "edgeIndex": packed(index, "<u4"),
        "edgeCapacity": _parts(capacity, unit, kind),
        "unit": unit,
        "whole": int((graph.capacities > 0).sum()) <= PIPES,
        "capacities": _capacities(graph, room, unit, kind),
        "residual": packed(graph.residual, "<f4"),
        "methods": _methods(graph, fixed),
        "flow": list(graph.methods).index(FLOW),
        "outputs": [[graph.net.layers.index(t.layer), t.row] for t in graph.outputs],
        "scores": [_both(graph.outputs, name) for name in own],
        "shares": [[round(t.special.get(name, 0.0), 4) for name in graph.methods] for t in graph.outputs],
        **_flows(graph, at, unit, kind),
        "curves": [
            [c.method, c.reference, c.kind, list(c.layers), [None if np.isnan(v) else round(v, 4) for v in c.values]]
            for c in graph.curves
        ],
        "about": about_lines(graph),
        "informative": [show_line(f"{name}: {line}") for name, line in graph.informative.items()],
    }


def _fixed(graph: FlowGraph) -> list[str]:
    """Methods that score the inputs as such: the same for every output and every fusion, kept once."""
    first = graph.outputs[0].scores
    return [
        name for name in graph.methods
        if name in graph.of_inputs and name in first and all(name in other.of_inputs for other in graph.fusions)
    ]  # fmt: skip


def _both(outputs: Sequence[Output], name: str) -> list[str]:
    """The scores of one method ``[outputs, inputs]``, NaN where there are none; a second time for words, if any."""
    tokens, words = _rows([t.scores for t in outputs], name), _rows([t.words for t in outputs], name)
    return [tokens] if tokens == words else [tokens, words]


def _rows(scores: Sequence[Mapping[str, Any]], name: str) -> str:
    width = max(len(s[name]) for s in scores if name in s)
    return packed(np.stack([s[name] if name in s else np.full(width, np.nan) for s in scores]), "<f4")


def _names(graph: FlowGraph, tokens: Sequence[str]) -> list[str]:
    """Names as they are shown; on an image every other one would start with "patch"."""
    shown = [show(t) for t in tokens]
    return shown if graph.image is None else [name.removeprefix("patch·") for name in shown]


def _table(graph: FlowGraph) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Edges of the page, highest capacity first: those that flows use or cut, in a small network all."""
    n = graph.net.size
    flat = graph.capacities.ravel()
    every = np.flatnonzero(flat > 0)
    used = {e for pair in graph.pairs.values() for e in _used(pair, n)}
    chosen = every if len(every) <= PIPES else np.array(sorted(used), np.int64)
    chosen = chosen[np.argsort(-flat[chosen], kind="stable")]
    return chosen, flat[chosen]


def _used(pair: PairFlow, n: int) -> list[int]:
    cuts = [edge for side in pair.cuts.values() for edge in side]
    return [(h * n + i) * n + k for h, i, k in [*pair.edges.tolist(), *cuts]]


def _unit(graph: FlowGraph) -> tuple[int, str]:
    """(what a packed one is, how numbers are packed): 16 bits as rows sum to one; floats where they do not.

    Capacities of gradient edges may be above one, and their flows tiny beside a residual of one.
    """
    most = float(graph.capacities.max())
    floats = graph.edges == "gradient" or most > 1 or 0 < most < 1 / 64
    return (1, "<f4") if floats else (_FULL, "<u2")


def _parts(numbers: npt.NDArray[Any], unit: int, kind: str) -> str:
    return packed(np.rint(numbers * unit) if unit > 1 else numbers, kind)


def _capacities(graph: FlowGraph, room: int, unit: int, kind: str) -> dict[str, str] | None:
    """The capacities with which the page computes further flows: all of them, or the highest with the gaps between.

    None where the page has all of them anyway, as the edges of its table.
    """
    flat = graph.capacities.ravel()
    above = np.flatnonzero(flat > 0)
    if len(above) <= PIPES:
        return None
    if unit == 1:
        room //= 2  # their numbers take twice the bytes
    if len(flat) <= room:
        return {"values": _parts(flat, unit, kind)}
    # With a gap of two bytes for each, two thirds as many; a gap that is too wide is bridged by a capacity of zero.
    best = np.sort(above[np.argsort(-flat[above], kind="stable")[: 2 * room // 3]])
    bridges = [range(a + _FULL, b, _FULL) for a, b in zip([-1, *best[:-1]], best, strict=True) if b - a > _FULL]
    kept = np.unique(np.concatenate([best, *(np.array(b, np.int64) for b in bridges)]).astype(np.int64))
    return {"values": _parts(flat[kept], unit, kind), "gaps": packed(np.diff(kept, prepend=-1), "<u2")}


def _flows(graph: FlowGraph, at: dict[int, int], unit: int, kind: str) -> dict[str, Any]:
    n = graph.net.size

    def ids(edges: Sequence[Sequence[int]]) -> list[int]:
        return [at[(h * n + i) * n + k] for h, i, k in edges]

    digits = 9 if unit > 1 else 15
    pairs: list[list[Any]] = []
    edges: list[int] = []
    flows: list[float] = []
    for (t, sink), pair in graph.pairs.items():
        near, far = (ids(pair.cuts[side]) for side in ("source", "sink"))
        pairs.append(
            [t, sink, round(pair.value, digits), pair.count, round(pair.share, 4), pair.bound, len(edges),
             len(pair.flow), near, None if far == near else far]
        )  # fmt: skip
        edges += ids(pair.edges.tolist())
        flows += pair.flow.tolist()
    return {
        "pairs": pairs,
        "wide": len(at) > _FULL,
        "flowEdges": packed(np.array(edges, np.int64), "<u4" if len(at) > _FULL else "<u2"),
        "flowValues": _parts(np.array(flows), unit, kind),
    }


def _methods(graph: FlowGraph, fixed: Sequence[str]) -> list[dict[str, Any]]:
    out = []
    own = 0
    for name in graph.methods:
        rows = [t.scores[name] for t in graph.outputs if name in t.scores]
        signed = any(float(np.nanmin(r)) < 0 for r in rows)
        at = fixed.index(name) if name in fixed else own
        out.append({"name": name, "signed": signed, "fixed": name in fixed, "at": at})
        own += name not in fixed
    return out


def _words(graph: FlowGraph) -> dict[str, Any] | None:
    group = graph.words
    if all(len(m) == 1 for m in group.members):
        return None
    return {
        "names": [show(w) for w in group.tokens],
        "members": [list(m) for m in group.members],
        "special": [int(s) for s in group.tokens.special],
    }


def _towers(graph: FlowGraph) -> list[dict[str, Any]]:
    """For each tower its nodes and the height at which a node of level *h* is drawn.

    Levels that only hand a tower's positions on are drawn as one: the encoder stays at its top while the decoder
    works, and the decoder's inputs wait at its foot.
    """
    heights = range(len(graph.levels) + 1)
    encoder = sum(level.tower == "encoder" for level in graph.levels)
    first = graph.net.rows[0]
    if not encoder:
        return [{"name": "", "first": 0, "count": graph.net.size, "rise": list(heights)}]
    return [
        {"name": "encoder", "first": 0, "count": first, "rise": [min(h, encoder) for h in heights]},
        {"name": "decoder", "first": first, "count": graph.net.size - first,
         "rise": [max(h - encoder, 0) for h in heights]},
    ]  # fmt: skip


def _image(graph: FlowGraph) -> dict[str, Any] | None:
    if graph.image is None:
        return None
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(graph.image).save(buffer, format="PNG")
    return {
        "data": base64.b64encode(buffer.getvalue()).decode(),
        "width": graph.image.shape[1],
        "height": graph.image.shape[0],
        "grid": list(graph.grid),
        "patches": list(graph.patches),
    }
