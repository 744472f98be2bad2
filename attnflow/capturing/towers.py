"""Records sorted by tower: encoder, decoder, cross-attention, vision, text, audio."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from attnflow.capturing import bands
from attnflow.capturing.session import Record
from attnflow.errors import CaptureError

_BOTH = re.compile(r"Bi(?=[A-Z])|Bidirectional")
_KINDS = (
    ("multimodal", re.compile(r"multimodal", re.I)),
    ("vision", re.compile(r"vision|visual|image|patch(?!er)|pixel", re.I)),
    ("audio", re.compile(r"audio|speech|sound|acoustic", re.I)),
    ("qformer", re.compile(r"q_?former", re.I)),
    ("text", re.compile(r"text|language|(?:^|\.)lm(?:\.|$)", re.I)),
)


@dataclass
class Tower:
    """The calls of one tower and one kind of attention, one per layer.

    Attributes:
        name: its name among the blocks.
        kind: "self" or "cross".
        records: one per layer, in order.
        layers: their numbers.
        depth: number of layers, with those that have no attention.
        decodes: True if its rows are the decoder's positions.
        text: True if its name says that it reads text.
        reads_text: True if its positions may be those of the main text.
        stage: True if it is a part of a tower whose layers differ in length.
    """

    name: str
    kind: str
    records: list[Record]
    layers: list[int]
    depth: int
    decodes: bool = False
    text: bool = False
    reads_text: bool = True
    stage: bool = False


def towers(records: Sequence[Record], notes: list[str]) -> list[Tower]:
    """Sort the records of one run into towers, in the order in which they were first called."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in _whole(records, notes):
        groups[record.call.tower, record.call.kind].append(record)
    found = []
    for (path, kind), members in groups.items():
        for suffix, part in _by_shape(members):
            layers, depth = _numbers(part, notes)
            found.append(Tower(path + suffix, kind, part, layers, depth, stage=bool(suffix)))
    _name(found, {path for path, _ in groups})
    return found


def _whole(records: Sequence[Record], notes: list[str]) -> list[Record]:
    """One record for each time that a module was entered.

    Some vision towers call attention once for each image of a packed sequence: these are put along the diagonal. A
    module that calls it twice with the same weights (for two halves of the values) counts once.
    """
    calls: dict[tuple[int, int, int, str], list[Record]] = {}
    for record in _from_chunks(records):
        key = (record.call.run, id(record.site.module), record.call.entry, record.call.name)
        calls.setdefault(key, []).append(record)
    out = []
    for parts in calls.values():
        if any(p.source == "interface" for p in parts):
            # SAM 2 also computes a softmax over its heads, which it does not use.
            parts = [p for p in parts if p.source != "tap"]
        first = parts[0]
        if len(parts) == 1:
            out.append(first)
        elif all(p.weights.shape == first.weights.shape and torch.equal(p.weights, first.weights) for p in parts):
            slopes = [p.gradient for p in parts if p.gradient is not None]
            out.append(replace(first, gradient=sum(slopes[1:], slopes[0])) if len(slopes) == len(parts) else first)
            notes.append(
                f"{type(first.site.module).__name__} calls attention {len(parts)} times with the same weights and "
                "combines the results: what was captured are the weights before that."
            )
        elif all(p.queries == p.keys and p.weights.shape[:-2] == first.weights.shape[:-2] for p in parts):
            out.append(_packed(parts))
            notes.append(f"{first.call.tower}: sequences packed into one row do not see each other.")
        elif _apart(parts):
            out += parts
        elif first.source == "tap":
            shapes = ", ".join(sorted({f"{p.queries}×{p.keys}" for p in parts}))
            raise CaptureError(
                f"{first.call.name} ({type(first.site.module).__name__}) computes {len(parts)} softmaxes in one call, "
                f"of {shapes}: an approximation by landmarks, blocks or hashes, not one matrix of queries × keys."
            )
        else:
            out += parts
    return out


def _apart(parts: list[Record]) -> bool:
    """True for two softmaxes of one module that are two things.

    In Grounding DINO image and text look at each other; in ProphetNet the text and its predicted n-grams have a stream
    each, and the second also looks at the first.
    """
    one, other = sorted(parts, key=lambda r: r.keys)[:: max(len(parts) - 1, 1)][:2]
    name = type(one.site.module).__name__
    swapped = one.queries == other.keys != one.keys == other.queries and bool(_BOTH.search(name))
    streams = one.queries == one.keys == other.queries == other.keys // 2 and "Ngram" in name
    return len(parts) == 2 and (swapped or streams)


def _from_chunks(records: Sequence[Record]) -> list[Record]:
    """CANINE calls one module once for each chunk of characters: these are one matrix."""
    out: list[Record] = []
    chunks: dict[tuple[int, int], list[Record]] = {}
    for record in records:
        if getattr(record.site.parent, "local", False) and hasattr(record.site.parent, "attend_from_chunk_width"):
            key = (record.call.run, id(record.site.module))
            if key not in chunks:
                out.append(record)
            chunks.setdefault(key, []).append(record)
        else:
            out.append(record)
    for i, record in enumerate(out):
        parts = chunks.get((record.call.run, id(record.site.module)))
        if parts is not None:
            n = sum(p.queries for p in parts)
            extra = record.weights.shape[-1] - record.keys
            if extra or any(p.gradient is not None for p in parts):
                raise CaptureError(
                    f"{record.call.name} attends in chunks, of which only means and heads are put together."
                )
            weights = bands.from_chunks(record.site.parent, [p.weights for p in parts], n)
            out[i] = replace(record, weights=weights, queries=n, keys=n)
    return out


def _packed(parts: list[Record]) -> Record:
    first = parts[0]
    total = sum(p.queries for p in parts)
    extra = first.weights.shape[-1] - first.keys

    def lay(tensors: list[torch.Tensor]) -> torch.Tensor:
        out = tensors[0].new_zeros(*tensors[0].shape[:-2], total, total + extra)
        at = 0
        for tensor in tensors:
            n = tensor.shape[-2]
            out[..., at : at + n, at : at + n] = tensor[..., :n]
            if extra:
                out[..., at : at + n, -extra:] = tensor[..., n:]
            at += n
        return out

    slopes = [p.gradient for p in parts if p.gradient is not None]
    gradient = lay(slopes) if len(slopes) == len(parts) else None
    return replace(first, weights=lay([p.weights for p in parts]), queries=total, keys=total, gradient=gradient)


def _by_shape(members: list[Record]) -> list[tuple[str, list[Record]]]:
    """Layers that look at the same number of positions can be read one after another; others are stages."""
    shapes: dict[tuple[int, ...], list[Record]] = {}
    for record in members:
        shapes.setdefault((record.weights.shape[0], record.queries, record.keys), []).append(record)
    if len(shapes) == 1:
        return [("", members)]
    return [(f"#{i}", part) for i, part in enumerate(shapes.values())]


def _numbers(members: list[Record], notes: list[str]) -> tuple[list[int], int]:
    """True layer numbers; a module that is called again (shared layers) counts as a further layer."""
    layers = [r.call.layer for r in members]
    if len(set(layers)) == len(layers):
        order = sorted(range(len(members)), key=lambda i: layers[i])
        members[:] = [members[i] for i in order]
        return sorted(layers), max(r.site.depth for r in members)
    times = Counter(r.call.name for r in members)
    shared = [name for name, count in times.items() if count > 1]
    if shared:
        notes.append(
            f"{len(shared)} attention modules were called more than once (first: {shared[0]}, "
            f"{times[shared[0]]} times): layers are numbered in the order of the calls."
        )
    return list(range(len(members))), len(members)


def _name(found: list[Tower], paths: set[str]) -> None:
    """Short names: self; encoder, decoder, cross; vision, text, audio; else the path."""
    shared = _model_name(paths)
    for tower in found:
        tower.name = tower.name.removeprefix(shared)
    paths = {p.removeprefix(shared) for p in paths}
    crossed = {t.name.split("#")[0] for t in found if t.kind == "cross"}
    two = any(_part(p, "encoder") for p in paths) and any(_part(p, "decoder") for p in paths)
    kinds = {p: _label(p, paths, two) for p in paths}
    used: Counter[str] = Counter()
    for tower in found:
        path, _, stage = tower.name.partition("#")
        label = kinds[path]
        tower.text = label in ("text", "decoder", "self") or not _looks(path)
        tower.decodes = two and path in crossed | {p for p in paths if _part(p, "decoder")}
        tower.reads_text = label not in ("vision", "audio")
        name = label
        if tower.kind == "cross":
            alone = len({t.name.split("#")[0] for t in found if t.kind == "cross"}) == 1
            name = "cross" if alone else f"{label}.cross"
        if stage:
            name = f"{name}.{int(stage)}" if name != "self" else f"stage{int(stage)}"
        used[name] += 1
        tower.name = name if used[name] == 1 else f"{name}.{used[name]}"


def _model_name(paths: set[str]) -> str:
    """The name of the whole model that stands before all paths: that of SpeechT5 says nothing about its towers."""
    first = {p.split(".")[0] for p in paths}
    name = next(iter(first), "")
    part = re.search(r"model|tower|encoder|decoder|former", name)
    return f"{name}." if len(paths) > 1 and len(first) == 1 and not part and _looks(name) else ""


def _part(path: str, word: str) -> bool:
    return any(part == word or part.endswith("_" + word) for part in path.split("."))


def _label(path: str, paths: set[str], two: bool) -> str:
    if len(paths) == 1:
        return "self"
    if two and not _looks(path):
        if _part(path, "decoder"):
            return "decoder"
        if _part(path, "encoder"):
            return "encoder"
    looks = _looks(path)
    if looks:
        return looks
    if any(_looks(p) in ("vision", "audio") for p in paths):
        return "text"
    return path.removesuffix(".layers") or "self"


def beside_text(path: str, two: bool) -> bool:
    """True for a tower whose rows are not the output positions of text: vision, audio, an encoder before a decoder.

    >>> beside_text("model.encoder.layers", True), beside_text("model.layers", False)
    (True, False)
    """
    return _looks(path) in ("vision", "audio", "qformer") or (two and not _part(path, "decoder"))


def _looks(path: str) -> str:
    return next((label for label, pattern in _KINDS if pattern.search(path)), "")
