"""Names of positions: tokens and their words from a tokenizer, patches of an image."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attnflow.tokens import Tokens

Named = tuple[Tokens, str]
"""Tokens, and a note on how their words were found ("" where the tokenizer said it itself)."""

_EACH = "The tokenizer has no character offsets: each token counts as a word."


def plain_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer itself, also from inside a processor."""
    inner = getattr(tokenizer, "tokenizer", None)
    found = inner if inner is not None and hasattr(inner, "convert_ids_to_tokens") else tokenizer
    if found is not None and not (callable(found) and hasattr(found, "convert_ids_to_tokens")):
        # A processor of images alone is one too: it has no tokens to name.
        if callable(found) and not isinstance(found, type) and hasattr(found, "model_input_names"):
            return found
        raise TypeError(
            f"tokenizer is a {type(tokenizer).__name__}, which encodes no text. The order is model, tokenizer, "
            "text; pass tokenizer=None where there are ids or tensors."
        )
    return found


def name_text(tokenizer: Any, text: str | tuple[str, str], encoded: Any) -> Named:
    """Tokens of one text, or of a pair, that the tokenizer has just encoded (without padding)."""
    plain = plain_tokenizer(tokenizer)
    ids = list(encoded["input_ids"])
    marked = special_ids(plain)
    special = [bool(s) or i in marked for i, s in zip(ids, encoded["special_tokens_mask"], strict=True)]
    encoding = _encoding(encoded, 0)
    if encoding is None:
        word_ids = _words_of_slow(plain, text if isinstance(text, str) else " ".join(text), ids, special)
        note = _EACH if word_ids is None else ""
        return _tokens(plain, ids, special, word_ids, None), note
    if isinstance(text, str):
        word_ids, words = _words(text, list(encoding.word_ids), list(encoding.offsets), special)
    else:
        word_ids, words = _words_of_pair(text, encoding, special)
    return _tokens(plain, ids, special, word_ids, words), ""


def _words_of_pair(
    texts: tuple[str, str], encoding: Any, special: Sequence[bool]
) -> tuple[list[int | None], dict[int, str]]:
    """Word numbers of two texts in one sequence, those of the second behind those of the first."""
    out: list[int | None] = [None] * len(special)
    words: dict[int, str] = {}
    for which, text in enumerate(texts):
        at = [p for p, s in enumerate(encoding.sequence_ids) if s == which]
        ids, found = _words(
            text, [encoding.word_ids[p] for p in at], [encoding.offsets[p] for p in at], [special[p] for p in at]
        )
        shift = 1 + max(words, default=-1)
        for p, word in zip(at, ids, strict=True):
            out[p] = None if word is None else word + shift
        words |= {w + shift: name for w, name in found.items()}
    return out, words


def special_ids(tokenizer: Any) -> set[int]:
    """The ids that the tokenizer declares special, whether it added them or they stand in the text (a chat prompt).

    A mask and an unknown word stand for words of the text, so they are not; but an "unknown" token that is also the
    begin or end token (GPT-2) is.
    """
    declared = set(getattr(tokenizer, "all_special_ids", None) or ())
    added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", None) or {}
    declared |= {i for i, token in added.items() if getattr(token, "special", False)}
    ends = {getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos")}
    words = {getattr(tokenizer, f"{name}_token_id", None) for name in ("mask", "unk")}
    return declared - (words - ends)


def name_ids(tokenizer: Any, ids: Sequence[int], encoded: Any, row: int, positions: Sequence[int]) -> Named:
    """Tokens of ids whose text is not known; ``encoded`` is the tokenizer's own ``BatchEncoding`` if there is one."""
    plain = plain_tokenizer(tokenizer)
    if plain is None:
        return Tokens.numbered(len(ids)), ""
    marked = special_ids(plain)
    special = [i in marked for i in ids]
    encoding = _encoding(encoded, row)
    if encoding is not None and len(encoding.ids) > max(positions):
        found = _apart([encoding.word_ids[p] for p in positions], [encoding.sequence_ids[p] for p in positions])
        if _useful(found, special):
            return _tokens(plain, ids, special, found, _decoded(plain, ids, found)), ""
    again = _encode_again(plain, ids, special)
    if again is not None:
        word_ids, words = again
        return _tokens(plain, ids, special, word_ids, words), ""
    return _tokens(plain, ids, special, None, None), _EACH


def _apart(word_ids: Sequence[int | None], sequences: Sequence[int | None]) -> list[int | None]:
    """Word numbers that are not those of another sequence: each sequence of a pair counts its words from 0."""
    first = 1 + max((w for w, s in zip(word_ids, sequences, strict=True) if w is not None and not s), default=-1)
    return [w + first if w is not None and s else w for w, s in zip(word_ids, sequences, strict=True)]


def _encoding(encoded: Any, row: int) -> Any:
    encodings = getattr(encoded, "encodings", None)
    return encodings[row] if encodings and row < len(encodings) else None


def _tokens(
    tokenizer: Any,
    ids: Sequence[int],
    special: Sequence[bool],
    word_ids: Sequence[int | None] | None,
    words: Mapping[int, str] | None,
) -> Tokens:
    texts = [t if isinstance(t, str) else str(t) for t in tokenizer.convert_ids_to_tokens(list(ids))]
    if word_ids is not None:
        word_ids = [None if s else w for w, s in zip(word_ids, special, strict=True)]
    marks = {}
    for name in ("cls", "mask"):
        token = getattr(tokenizer, f"{name}_token_id", None)
        if token is not None and token in ids:
            marks[name] = list(ids).index(token)
    return Tokens(texts, special, word_ids, words, marks)


def _useful(word_ids: Sequence[int | None], special: Sequence[bool]) -> bool:
    """False for tokenizers that split at no word, so that the whole text is word 0."""
    own = [w for w, s in zip(word_ids, special, strict=True) if not s]
    return bool(own) and (len(set(own) - {None}) > 1 or len(own) == 1)


def _words(
    text: str,
    word_ids: list[int | None],
    offsets: list[tuple[int, int]],
    special: Sequence[bool],
) -> tuple[list[int | None], dict[int, str]]:
    if not _useful(word_ids, special) and re.search(r"\S\s+\S", text):
        word_ids = _by_spaces(text, offsets, special)
    spans: dict[int, tuple[int, int]] = {}
    for word, (start, end) in zip(word_ids, offsets, strict=True):
        if word is not None:
            before = spans.get(word, (start, end))
            spans[word] = (min(before[0], start), max(before[1], end))
    return word_ids, {w: text[a:b].strip() or text[a:b] for w, (a, b) in spans.items()}


def _by_spaces(text: str, offsets: list[tuple[int, int]], special: Sequence[bool]) -> list[int | None]:
    """Word numbers from character offsets: a token belongs to the word in which its first letter stands."""
    number_at, number, inside = [], -1, False
    for character in text:
        if not character.isspace():
            number += not inside
        inside = not character.isspace()
        number_at.append(max(number, 0))
    out: list[int | None] = []
    for (start, end), added in zip(offsets, special, strict=True):
        letters = [p for p in range(start, end) if not text[p].isspace()]
        first = letters[0] if letters else start
        out.append(None if added or start == end else number_at[first])
    return out


def _words_of_slow(tokenizer: Any, text: str, ids: list[int], special: list[bool]) -> list[int | None] | None:
    """Word numbers from encoding the text word by word; None if that gives other tokens."""
    own = [i for i, s in zip(ids, special, strict=True) if not s]
    numbers: list[int] = []
    pieces: list[int] = []
    try:
        for number, word in enumerate(text.split()):
            made = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(word))
            pieces += made
            numbers += [number] * len(made)
    except (AttributeError, NotImplementedError, TypeError):
        return None
    if pieces != own:
        return None
    found = iter(numbers)
    return [None if s else next(found) for s in special]


def _decoded(tokenizer: Any, ids: Sequence[int], word_ids: Sequence[int | None]) -> dict[int, str]:
    members: dict[int, list[int]] = {}
    for i, word in zip(ids, word_ids, strict=True):
        if word is not None:
            members.setdefault(word, []).append(i)
    return {w: tokenizer.decode(m).strip() for w, m in members.items()}


def _encode_again(
    tokenizer: Any, ids: Sequence[int], special: Sequence[bool]
) -> tuple[list[int | None], dict[int, str]] | None:
    """Words of ids from their text, if the tokenizer makes the same ids of it."""
    if not getattr(tokenizer, "is_fast", False):
        return None
    own = [i for i, s in zip(ids, special, strict=True) if not s]
    text = tokenizer.decode(own)
    encoded = tokenizer(text, add_special_tokens=False)
    if list(encoded["input_ids"]) != own or not own:
        return None
    encoding = encoded.encodings[0]
    found, words = _words(text, list(encoding.word_ids), list(encoding.offsets), [False] * len(own))
    rest = iter(found)
    return [None if s else next(rest) for s in special], words


def image_tokens(config: Any, shape: tuple[int, ...], length: int | None = None) -> Tokens:
    """Names of the positions of an image: what stands before the patches, then ``patch row,column``.

    ``shape`` is that of ``pixel_values``; with ``length`` given, the names are made to fit so many positions or
    are plain numbers.

    >>> from types import SimpleNamespace
    >>> image_tokens(SimpleNamespace(patch_size=16), (1, 3, 32, 32), 5)
    ('[CLS]', 'patch 0,0', 'patch 0,1', 'patch 1,0', 'patch 1,1')
    """
    vision = vision_config(config)
    size = getattr(vision, "patch_size", None)
    pair = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, list | tuple) else ()
    if len(pair) < 2 or len(shape) < 4 or not all(isinstance(p, int) and p > 0 for p in pair[-2:]):
        return Tokens.numbered(length or 0)
    rows, columns = shape[-2] // pair[-2], shape[-1] // pair[-1]
    patches = [f"patch {r},{c}" for r in range(rows) for c in range(columns)]
    extra = 1 if length is None else length - len(patches)
    registers = getattr(vision, "num_register_tokens", None) or 0
    known = {0, 1, registers, 1 + registers} | ({2} if getattr(vision, "model_type", "") == "deit" else set())
    # Other lengths are other things: learned queries, groups of patches, latents behind the patches.
    if extra not in known or not patches:
        return Tokens.numbered(length or 0)
    before = ["[CLS]"][:extra] + [f"[extra {i}]" for i in range(1, extra)]
    special = [True] * len(before) + [False] * len(patches)
    return Tokens(before + patches, special, marks={"cls": 0} if before else {})


def vision_config(config: Any) -> Any:
    """The part of a config that describes the tower of images; the config itself where there is none."""
    for name in ("vision_config", "image_config", "encoder"):
        part = getattr(config, name, None)
        if part is not None and getattr(part, "patch_size", None) is not None:
            return part
    return config


def packed_tokens(config: Any, grid: Sequence[Sequence[int]], length: int) -> Tokens:
    """Names of the patches of images that are packed into one row, each ``grid`` entry being (frames, rows, columns).

    The patches stand in squares that are merged later (Qwen2-VL), and the squares in windows (Qwen2.5-VL).

    >>> from types import SimpleNamespace
    >>> config = SimpleNamespace(patch_size=14, spatial_merge_size=2)
    >>> packed_tokens(config, [(1, 2, 4)], 8)[:5]
    ('patch 0,0', 'patch 0,1', 'patch 1,0', 'patch 1,1', 'patch 0,2')
    """
    vision = vision_config(config)
    merge = getattr(vision, "spatial_merge_size", None) or 1
    if sum(t * h * w for t, h, w in grid) != length or any(h % merge or w % merge for _, h, w in grid):
        return Tokens.numbered(length)
    names: list[str] = []
    for image, (frames, rows, columns) in enumerate(grid):
        first = f"{image}: " if len(grid) > 1 else ""
        window = getattr(vision, "window_size", None)
        side = window // merge // vision.patch_size if window else 0
        for frame in range(frames):
            before = first + (f"frame {frame} " if frames > 1 else "")
            squares = [(r, c) for r in range(rows // merge) for c in range(columns // merge)]
            if side:
                squares.sort(key=lambda at: (at[0] // side, at[1] // side))
            places = [(r * merge + i, c * merge + j) for r, c in squares for i in range(merge) for j in range(merge)]
            names += [f"{before}patch {r},{c}" for r, c in places]
    return Tokens(names)
