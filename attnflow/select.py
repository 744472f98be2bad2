"""Positions and layers by name or number, with the valid range in the error."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from attnflow.errors import SelectionError
from attnflow.numbers import whole
from attnflow.tokens import Tokens, group_words

NAMED = ("cls", "last", "mask")


def pick_position(position: int | str, tokens: Tokens) -> int:
    """The index of a position: a number (negatives from the end), "cls", "last", "mask", or a word of the text.

    Of a word of several pieces it is the last piece, whose state has seen all of them, also in a causal model.

    >>> pick_position("last", Tokens(["the", "key"])), pick_position("the", Tokens(["the", "key"]))
    (1, 0)
    """
    n = len(tokens)
    if isinstance(position, str):
        if position == "last":
            return n - 1
        if position in tokens.marks:
            return tokens.marks[position]
        if position not in NAMED:
            return _word(position, tokens)
        shown = _shown(tokens)
        raise SelectionError(
            f"position={position!r}, but the input has no {position} token: {shown}. "
            f"Use a number from 0 to {n - 1}, or 'last'."
        )
    position = whole(position, "position")
    if not -n <= position < n:
        raise SelectionError(f"position={position}, but there are {n} positions: use {-n} to {n - 1}.")
    return position % n


def _word(word: str, tokens: Tokens) -> int:
    """The last piece of the one place where ``word`` stands, as it is written or in other letters."""
    group = group_words(tokens)
    for same in (str, str.casefold):
        places = [m[-1] for m, name in zip(group.members, group.tokens, strict=True) if same(name) == same(word)]
        places = places or [p for p, token in enumerate(tokens) if same(token) == same(word)]
        if len(places) == 1:
            return places[0]
        if places:
            raise SelectionError(
                f"position={word!r} stands in the text {len(places)} times, at positions "
                f"{', '.join(map(str, places))}. Use one of these numbers:  position={places[-1]}"
            )
    near = get_close_matches(word, set(group.tokens), 1)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    raise SelectionError(
        f"position={word!r} is not known: no word of the text is {word!r}: {_shown(group.tokens)}.{guess} "
        "Use a number, 'cls', 'last', 'mask', a word of the text or None."
    )


def _shown(tokens: Tokens) -> str:
    return " ".join(tokens[:12]) + (" …" if len(tokens) > 12 else "")


def read_position(tokens: Tokens, causal: bool = False) -> int:
    """The output position that is read where none is named: "cls", which classifiers read, else the last.

    In a causal model it is always the last, which alone has seen the whole text.

    >>> tokens = Tokens(["[CLS]", "key"], marks={"cls": 0})
    >>> read_position(tokens), read_position(tokens, causal=True), read_position(Tokens(["the", "key"]))
    (0, 1, 1)
    """
    last = len(tokens) - 1
    return last if causal else tokens.marks.get("cls", last)


def pick_layer(layer: int, layers: Sequence[Any]) -> int:
    """The index in ``layers`` of a layer by its true number; negatives count from the top.

    >>> pick_layer(3, (1, 3, 5)), pick_layer(-1, (1, 3, 5))
    (1, 2)
    """
    layer = whole(layer, "layer")
    if layer < 0:
        if -layer > len(layers):
            raise SelectionError(f"layer={layer}, but there are {len(layers)} layers: use {-len(layers)} to -1.")
        return len(layers) + layer
    if layer not in layers:
        have = ", ".join(map(str, layers))
        raise SelectionError(f"layer={layer}, but the layers with attention are {have}.")
    return list(layers).index(layer)
