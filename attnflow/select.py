"""Positions and layers by name or number, with the valid range in the error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnflow.errors import SelectionError
from attnflow.numbers import whole
from attnflow.tokens import Tokens

NAMED = ("cls", "last", "mask")


def pick_position(position: int | str, tokens: Tokens) -> int:
    """The index of a position: a number (negatives from the end), "cls", "last" or "mask".

    >>> pick_position("last", Tokens(["the", "key"]))
    1
    """
    n = len(tokens)
    if isinstance(position, str):
        if position == "last":
            return n - 1
        if position in tokens.marks:
            return tokens.marks[position]
        if position not in NAMED:
            raise SelectionError(f"position={position!r} is not known. Use a number, 'cls', 'last', 'mask' or None.")
        shown = " ".join(tokens[:12]) + (" …" if n > 12 else "")
        raise SelectionError(
            f"position={position!r}, but the input has no {position} token: {shown}. "
            f"Use a number from 0 to {n - 1}, or 'last'."
        )
    position = whole(position, "position")
    if not -n <= position < n:
        raise SelectionError(f"position={position}, but there are {n} positions: use {-n} to {n - 1}.")
    return position % n


def read_position(tokens: Tokens) -> int:
    """The output position that is read where none is named: "cls", which classifiers read, else the last.

    >>> read_position(Tokens(["[CLS]", "key"], marks={"cls": 0})), read_position(Tokens(["the", "key"]))
    (0, 1)
    """
    return tokens.marks.get("cls", len(tokens) - 1)


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
