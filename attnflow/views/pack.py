"""A picture as the data of a page: numbers packed, all of it compressed, nothing in it that could end a script."""

from __future__ import annotations

import base64
import gzip
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.flowgraph import METHODS, PairFlow, Picture, Target
from attnflow.views.names import show

# Pipes that carry nothing are drawn in small networks only: in a large one the widest are the residual ones, a picket
# fence that says nothing.
PIPES = 1500
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


def page_data(picture: Picture, words: bool = False, special: bool = True) -> dict[str, Any]:
    """All that the page's script reads; ``words`` and ``special`` say how its switches stand at first."""
    from attnflow import __version__

    net = picture.net
    fixed = _fixed(picture)
    return {
        "version": __version__,
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
        "fixed": [_both(picture.targets[:1], name) for name in fixed],
        "fusions": [_fusion(p, fixed) for p in (picture, *picture.fusions)],
        "start": {"words": words, "special": special},
        "image": _image(picture),
    }


def about_lines(picture: Picture) -> list[str]:
    """What a reader must know of one fusion: notes, settings, and what was left out."""
    lines = [*picture.notes, *(f"{name}: {line}" for name, line in picture.methods.items() if line)]
    if not picture.complete:
        possible = len(picture.net.layers) * len(picture.net.rows)
        outputs = f"{len(picture.targets):,} of {possible:,}" if len(picture.targets) < possible else "all"
        lines.append(
            f"To keep the page small it has {outputs} outputs, with all their scores, and the edges of "
            f"{len(picture.pairs):,} of {possible * picture.net.size:,} flows; of these the strongest edges, with the "
            f"share of the flow that is said above."
        )
    return [show_line(line) for line in lines]


def _fusion(picture: Picture, fixed: Sequence[str]) -> dict[str, Any]:
    """What depends on how the heads were brought down."""
    index, capacity = _table(picture)
    at = {int(e): i for i, e in enumerate(index)}
    own = [name for name in picture.methods if name not in fixed]
    return {
        "name": picture.heads,
        "edgeIndex": packed(index, "<u4"),
        "edgeCapacity": packed(np.rint(capacity * _FULL), "<u2"),
        "whole": int((picture.capacities > 0).sum()) <= PIPES,
        "residual": packed(picture.residual, "<f4"),
        "methods": _methods(picture, fixed),
        "targets": [[picture.net.layers.index(t.layer), t.row] for t in picture.targets],
        "scores": [_both(picture.targets, name) for name in own],
        "shares": [[round(t.special.get(name, 0.0), 4) for name in picture.methods] for t in picture.targets],
        **_flows(picture, at),
        "curves": [
            [c.method, c.reference, c.kind, list(c.layers), [None if np.isnan(v) else round(v, 4) for v in c.values]]
            for c in picture.curves
        ],
        "about": about_lines(picture),
    }


def _fixed(picture: Picture) -> list[str]:
    """Methods that score the inputs as such: the same for every target and every fusion, kept once."""
    first = picture.targets[0].scores
    return [
        name for name in picture.methods
        if name not in METHODS and name in first and all(name in p.methods for p in picture.fusions)
        and all(name in t.scores and np.array_equal(t.scores[name], first[name], True) for t in picture.targets)
    ]  # fmt: skip


def _both(targets: Sequence[Target], name: str) -> list[str]:
    """The scores of one method ``[targets, inputs]``, NaN where there are none; a second time for words, if any."""
    tokens, words = _rows([t.scores for t in targets], name), _rows([t.words for t in targets], name)
    return [tokens] if tokens == words else [tokens, words]


def _rows(scores: Sequence[Mapping[str, Any]], name: str) -> str:
    width = max(len(s[name]) for s in scores if name in s)
    return packed(np.stack([s[name] if name in s else np.full(width, np.nan) for s in scores]), "<f4")


def _names(picture: Picture, tokens: Sequence[str]) -> list[str]:
    """Names as they are shown; on a picture every other one would start with "patch"."""
    shown = [show(t) for t in tokens]
    return shown if picture.image is None else [name.removeprefix("patch·") for name in shown]


def show_line(text: str) -> str:
    """A note with control and direction characters made visible, its spaces left as they are."""
    return " ".join(show(part) for part in text.split())


def _table(picture: Picture) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Edges of the page, highest capacity first: those that flows use or cut, in a small network all."""
    n = picture.net.size
    flat = picture.capacities.ravel()
    every = np.flatnonzero(flat > 0)
    used = {e for pair in picture.pairs.values() for e in _used(pair, n)}
    chosen = every if len(every) <= PIPES else np.array(sorted(used), np.int64)
    chosen = chosen[np.argsort(-flat[chosen], kind="stable")]
    return chosen, flat[chosen]


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


def _methods(picture: Picture, fixed: Sequence[str]) -> list[dict[str, Any]]:
    out = []
    own = 0
    for name in picture.methods:
        rows = [t.scores[name] for t in picture.targets if name in t.scores]
        signed = any(float(np.nanmin(r)) < 0 for r in rows)
        at = fixed.index(name) if name in fixed else own
        out.append({"name": name, "signed": signed, "fixed": name in fixed, "at": at})
        own += name not in fixed
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
