"""Sources: the parts of a prompt to which an answer is attributed, as spans of characters.

Spans are half-open, ``text[start:end]``. A split gives every character to exactly one part: the space between two
sentences belongs to the one before it. What no source holds is the template.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from attnflow.errors import InputError, SelectionError, ShapeError
from attnflow.numbers import is_whole

Span = tuple[int, int]
SPLITS = ("messages", "paragraphs", "sentences", "words")

# An end of a sentence is a stop, closing quotes or brackets, and space; or a break of the line.
_STOP = re.compile(r"(?:[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+[”’」』）]*|\n)\s*")
_SHORT = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|vs|etc|e\.g|i\.e|cf|al|Fig|fig|No|Inc|Ltd|Co|approx)|(?:^|[\s.])[A-Z])\.$"
)


@dataclass(frozen=True)
class Source:
    """A part of the prompt.

    Attributes:
        name: what tables call it.
        text: its characters.
        start, end: where they are in the prompt, as the model reads it.
        kind: "context"; "question" for a part that asks and is not ranked among the sources of an answer; "patch" for a
            part of an image, which has no characters.
        box: of a patch, (image, row, column, rows, columns) in the grid of its image.
    """

    name: str
    text: str
    start: int
    end: int
    kind: str = "context"
    box: tuple[int, int, int, int, int] | None = None

    def __post_init__(self) -> None:
        check_span(self, ("context", "question", "patch"))
        if not isinstance(self.name, str) or (self.box is not None and not _is_box(self.box)):
            raise ShapeError(f"A source has the name {self.name!r} and the box {self.box!r}: text and five numbers.")


def check_span(part: Any, kinds: Sequence[str]) -> None:
    """Refuse a part of a text whose fields are not what they say, as those of a foreign file may be."""
    ends = [part.start, part.end]
    if not isinstance(part.text, str) or part.kind not in kinds or not all(map(is_whole, ends)) or ends[0] < 0:
        raise ShapeError(
            f"A {type(part).__name__.lower()} has the text {part.text!r}, the kind {part.kind!r} and the characters "
            f"{part.start!r} to {part.end!r}: a text, one of {', '.join(kinds)}, and two whole numbers are needed."
        )


def _is_box(box: Any) -> bool:
    return isinstance(box, tuple) and len(box) == 5 and all(map(is_whole, box))


@dataclass(frozen=True)
class Piece:
    """A stretch of the prompt that the user wrote, between which the template stands.

    ``given``: where all of it would stand, with the space at its ends that a template took off; spans count in it.
    """

    start: int
    end: int
    name: str
    kind: str = "context"
    given: Span | None = None


def paragraphs(text: str) -> list[Span]:
    """Spans that end with a blank line.

    >>> paragraphs("One.\\n\\nTwo.")
    [(0, 6), (6, 10)]
    """
    return _cut(text, (m.end() for m in re.finditer(r"\n[ \t]*\n\s*", text)))


def sentences(text: str) -> list[Span]:
    """Spans that end with a stop or a break of the line; abbreviations and initials do not end one.

    >>> [("Dr. Ada saw 3.5 m. Then she left.")[a:b] for a, b in sentences("Dr. Ada saw 3.5 m. Then she left.")]
    ['Dr. Ada saw 3.5 m. ', 'Then she left.']
    """
    ends = []
    for found in _STOP.finditer(text):
        before = text[: found.end()].rstrip()
        after = text[found.end() : found.end() + 1]
        if "\n" not in found.group() and (_SHORT.search(before[-12:]) or after.islower()):
            continue
        ends.append(found.end())
    return _cut(text, ends)


def words(text: str) -> list[Span]:
    """Spans of letters without space, each with the space behind it.

    >>> words("the key ")
    [(0, 4), (4, 8)]
    """
    return _cut(text, (m.end() for m in re.finditer(r"\s+(?=\S)", text)))


def _cut(text: str, ends: Iterable[int]) -> list[Span]:
    """The spans between these places, none of them blank."""
    out: list[Span] = []
    start = 0
    for end in [*ends, len(text)]:
        if end <= start:
            continue
        if text[start:end].strip():
            out.append((start, end))
        elif out:
            out[-1] = (out[-1][0], end)
        else:
            continue
        start = end
    if out and out[0][0] > 0:
        out[0] = (0, out[0][1])
    return out


_CUTS: dict[str, Callable[[str], list[Span]]] = {
    "paragraphs": paragraphs, "sentences": sentences, "words": words, "messages": lambda text: [(0, len(text))],
}  # fmt: skip


def find_sources(text: str, pieces: Sequence[Piece], wanted: Any) -> tuple[Source, ...]:
    """The sources of a prompt ``text``, in its order; a question stays one source by itself.

    ``wanted`` is one of :data:`SPLITS`, a list of strings or of (start, end) in the text that the user gave, or a dict
    of names with either.
    """
    asks = [Source(p.name, text[p.start : p.end], p.start, p.end, "question") for p in pieces if p.kind == "question"]
    context = [p for p in pieces if p.kind != "question"]
    if isinstance(wanted, str):
        if wanted == "patches":
            raise SelectionError(
                "sources='patches' are parts of an image, and no image was given. In Python:  "
                "attribute(model, processor, prompt, images=image)"
            )
        if wanted not in SPLITS:
            known = ", ".join(map(repr, SPLITS))
            raise SelectionError(
                f"sources={wanted!r} is not known. Use {known}, a list of strings or of (start, end), or a dict of "
                "names and texts."
            )
        found = [s for p in context for s in _split(text, p, wanted)]
    else:
        found = _given(text, context, wanted)
    out = tuple(sorted([*found, *asks], key=lambda s: s.start))
    if not found:
        raise InputError("The prompt has no source: give a context of at least one word.")
    _refuse_overlap(out, context)
    return out


def _split(text: str, piece: Piece, how: str) -> list[Source]:
    spans = [(piece.start + a, piece.start + b) for a, b in _CUTS[how](text[piece.start : piece.end])]
    if how == "messages":
        return [Source(piece.name, text[a:b], a, b) for a, b in spans]
    kind = how.removesuffix("s")
    before = "" if piece.name == "prompt" else f"{piece.name}, "
    return [Source(f"{before}{kind} {i}", text[a:b], a, b) for i, (a, b) in enumerate(spans, 1)]


def _given(text: str, context: Sequence[Piece], wanted: Any) -> list[Source]:
    if isinstance(wanted, Mapping):
        named = [(str(name), value) for name, value in wanted.items()]
    elif isinstance(wanted, Sequence | np.ndarray):
        named = [("", value) for value in wanted]
    else:
        raise SelectionError(
            f"sources is a {type(wanted).__name__}. Use a word such as 'sentences', a list of strings, or a dict of "
            "names and texts."
        )
    out: list[Source] = []
    after = 0
    for number, (name, value) in enumerate(named, 1):
        if isinstance(value, str):
            start, end = _placed(text, context, value, after)
        else:
            start, end = _counted(context, value)
        after = end
        label = name or f"source {number}"
        out.append(Source(label, text[start:end], start, end))
    return out


def _placed(text: str, context: Sequence[Piece], value: str, after: int) -> Span:
    """Where a string stands in the context: behind the source before it, else anywhere."""
    shown = value if len(value) <= 40 else value[:39] + "…"
    if not value.strip():
        raise InputError("A source is an empty string: give the words that stand in the prompt.")
    for least in (after, 0):
        for piece in context:
            at = text.find(value, max(least, piece.start), piece.end)
            if at >= 0:
                return at, at + len(value)
    raise InputError(
        f"The source {shown!r} is not in the prompt, which has {sum(p.end - p.start for p in context)} characters of "
        "context. Give sources as they stand in it, letter by letter:  sources=['…', '…']"
    )


def _counted(context: Sequence[Piece], value: Any) -> Span:
    """(start, end) in the one text that the user gave."""
    if not (isinstance(value, Sequence | np.ndarray) and len(value) == 2 and all(map(is_whole, value))):
        raise SelectionError(f"A source is {value!r}, and a string or a pair (start, end) of characters is needed.")
    if len(context) != 1:
        raise InputError(
            f"A source is the span {tuple(value)}, but the prompt has {len(context)} texts to count in. Give strings:  "
            "sources=['…', '…']"
        )
    start, end = map(int, value)
    first, last = context[0].given or (context[0].start, context[0].end)
    placed = max(first + start, context[0].start), min(first + end, context[0].end)
    if not 0 <= start < end <= last - first or placed[0] >= placed[1]:
        raise InputError(f"The source ({start}, {end}) is no span of the context, which has {last - first} characters.")
    return placed


def _refuse_overlap(found: Sequence[Source], context: Sequence[Piece]) -> None:
    for one, other in pairwise(found):
        if other.start < one.end:
            shared = one.end - other.start
            left = one.text[: other.start - one.start]
            first = (context[0].given or (context[0].start, 0))[0]
            cut = f"({one.start - first}, {other.start - first})" if len(context) == 1 and left else repr(left[:40])
            raise InputError(
                f"The sources {one.name!r} and {other.name!r} share {shared} characters "
                f"({other.text[:shared][:30]!r}), and each belongs to one source. "
                + (f"Cut one of them:  sources=[{cut}, …]" if left else "Leave one of them out.")
            )


def owners_of(offsets: Sequence[Span], text: str, found: Sequence[Source]) -> list[int]:
    """For each token the number of its source, −1 for the template.

    A token belongs to the source in which its first letter stands, or its first character if it has none.
    """
    # Sources stand in the order of the text and do not overlap.
    spans = [(s.start, s.end, i) for i, s in enumerate(found) if s.kind != "patch"]
    starts = [start for start, _, _ in spans]
    out = []
    for start, end in offsets:
        letter = next((p for p in range(start, end) if not text[p].isspace()), start)
        at = bisect_right(starts, letter) - 1
        held = at >= 0 and end > start and letter < spans[at][1]
        out.append(spans[at][2] if held else -1)
    return out
