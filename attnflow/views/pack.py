"""A picture as JSON that is safe inside a page: numbers packed, names readable, nothing that could end a script."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.picture import PairFlow, Picture
from attnflow.views.names import show

# Capacities on a page, with those that the flows use: 8 bytes each after packing.
CAPACITIES = 60_000
_FULL = 65_535


def to_json(value: Any) -> str:
    r"""JSON that can stand inside a ``<script>``: no ``<``, ``>`` or ``&`` is left, nor a line separator.

    >>> to_json("</script>")
    '"\\u003c/script\\u003e"'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def packed(array: npt.NDArray[Any], kind: str) -> str:
    """Base64 of the little-endian bytes: "<f4", "<u4" or "<u2"."""
    return base64.b64encode(np.ascontiguousarray(array).astype(kind).tobytes()).decode()


def page_data(picture: Picture, words: bool = False, special: bool = True) -> dict[str, Any]:
    """All that the page's script reads; ``words`` and ``special`` say how its switches stand at first."""
    from attnflow import __version__

    net = picture.net
    names = list(picture.methods)
    index, capacity, kept = _table(picture)
    at = {int(e): i for i, e in enumerate(index)}
    return {
        "version": __version__,
        "model": picture.model or "not named",
        "size": net.size,
        "tokens": _names(picture, net.tokens),
        "special": [int(s) for s in net.tokens.special],
        "words": _words(picture),
        "queries": _names(picture, net.queries),
        "firstRow": net.rows[0],
        "layers": list(net.layers),
        "tops": list(net.tops),
        "levels": [[level.tower, level.layer] for level in picture.levels],
        "towers": _towers(picture),
        "edges": {
            "index": packed(index, "<u4"),
            "capacity": packed(np.rint(capacity * _FULL), "<u2"),
            "all": int((picture.capacities > 0).sum()),
            "share": kept,
        },
        "residual": packed(picture.residual, "<f4"),
        "methods": _methods(picture),
        "targets": [[net.layers.index(t.layer), t.row] for t in picture.targets],
        "scores": packed(_scores([t.scores for t in picture.targets], names, net.size), "<f4"),
        "wordScores": _word_scores(picture, names),
        "shares": [[round(t.special.get(name, 0.0), 4) for name in names] for t in picture.targets],
        **_flows(picture, at),
        "start": {"words": words, "special": special},
        "complete": picture.complete,
        "curves": [
            [c.method, c.reference, c.kind, list(c.layers), [None if np.isnan(v) else round(v, 4) for v in c.values]]
            for c in picture.curves
        ],
        "notes": [show_line(note) for note in picture.notes],
        "image": _image(picture),
    }


def _names(picture: Picture, tokens: Sequence[str]) -> list[str]:
    """Names as they are shown; on a picture every other one would start with "patch"."""
    shown = [show(t) for t in tokens]
    return shown if picture.image is None else [name.removeprefix("patch·") for name in shown]


def show_line(text: str) -> str:
    """A note with control and direction characters made visible, its spaces left as they are."""
    return " ".join(show(part) for part in text.split())


def _table(picture: Picture) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], float]:
    """Edges of the page, highest capacity first: those that flows use or cut, and as many more as there is room for."""
    n = picture.net.size
    flat = picture.capacities.ravel()
    used = {e for pair in picture.pairs.values() for e in _used(pair, n)}
    order = np.argsort(-flat, kind="stable")
    order = order[flat[order] > 0]
    room = max(0, CAPACITIES - len(used))
    chosen = np.array(sorted({*order[:room].tolist(), *used}), np.int64)
    chosen = chosen[np.argsort(-flat[chosen], kind="stable")]
    return chosen, flat[chosen], float(flat[chosen].sum() / flat.sum())


def _used(pair: PairFlow, n: int) -> list[int]:
    cuts = [edge for side in pair.cuts.values() for edge in side]
    return [(h * n + i) * n + k for h, i, k in [*pair.edges.tolist(), *cuts]]


def _flows(picture: Picture, at: dict[int, int]) -> dict[str, Any]:
    n = picture.net.size

    def ids(edges: Sequence[Sequence[int]]) -> list[int]:
        return [at[(h * n + i) * n + k] for h, i, k in edges]

    pairs: list[list[Any]] = []
    edges: list[int] = []
    flows: list[int] = []
    for (t, sink), pair in picture.pairs.items():
        near, far = (ids(pair.cuts[side]) for side in ("source", "sink"))
        pairs.append(
            [t, sink, round(pair.value, 9), pair.count, round(pair.share, 4), pair.bound, len(edges), len(pair.flow),
             near, None if far == near else far]
        )  # fmt: skip
        edges += ids(pair.edges.tolist())
        flows += [round(f * _FULL) for f in pair.flow.tolist()]
    return {
        "pairs": pairs,
        "wide": len(at) > _FULL,
        "flowEdges": packed(np.array(edges, np.int64), "<u4" if len(at) > _FULL else "<u2"),
        "flowValues": packed(np.array(flows, np.int64), "<u2"),
    }


def _methods(picture: Picture) -> list[dict[str, Any]]:
    out = []
    for name, line in picture.methods.items():
        rows = [t.scores[name] for t in picture.targets if name in t.scores]
        signed = any(float(np.nanmin(r)) < 0 for r in rows)
        out.append({"name": name, "settings": show_line(line), "signed": signed})
    return out


def _scores(rows: Sequence[Any], names: Sequence[str], n: int) -> npt.NDArray[np.float64]:
    out = np.full((len(rows), len(names), n), np.nan)
    for r, scores in enumerate(rows):
        for m, name in enumerate(names):
            if name in scores:
                out[r, m] = scores[name]
    return out


def _words(picture: Picture) -> dict[str, Any] | None:
    group = picture.words
    if all(len(m) == 1 for m in group.members):
        return None
    return {
        "names": [show(w) for w in group.tokens],
        "members": [list(m) for m in group.members],
        "special": [int(s) for s in group.tokens.special],
    }


def _word_scores(picture: Picture, names: Sequence[str]) -> str | None:
    if all(len(m) == 1 for m in picture.words.members):
        return None
    return packed(_scores([t.words for t in picture.targets], names, len(picture.words.members)), "<f4")


def _towers(picture: Picture) -> list[dict[str, Any]]:
    """For each tower its nodes and the height at which a node of level *h* is drawn.

    Levels that only hand a tower's positions on are drawn as one: the encoder stays at its top while the decoder
    works, and the decoder's inputs wait at its foot.
    """
    heights = range(len(picture.levels) + 1)
    encoder = sum(level.tower == "encoder" for level in picture.levels)
    first = picture.net.rows[0]
    if not encoder:
        return [{"name": "", "first": 0, "count": picture.net.size, "rise": list(heights)}]
    return [
        {"name": "encoder", "first": 0, "count": first, "rise": [min(h, encoder) for h in heights]},
        {"name": "decoder", "first": first, "count": picture.net.size - first,
         "rise": [max(h - encoder, 0) for h in heights]},
    ]  # fmt: skip


def _image(picture: Picture) -> dict[str, Any] | None:
    if picture.image is None:
        return None
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture.image).save(buffer, format="PNG")
    return {
        "data": base64.b64encode(buffer.getvalue()).decode(),
        "width": picture.image.shape[1],
        "height": picture.image.shape[0],
        "grid": list(picture.grid),
        "patches": list(picture.patches),
    }
