"""The repr of records: one line, whatever they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")

LONGEST = 160
_FEW = 6


def one_line(cls: type[T]) -> type[T]:
    """Gives a dataclass a repr of one line: arrays by their shape, collections by their length, the rest clipped.

    >>> from dataclasses import dataclass
    >>> @one_line
    ... @dataclass
    ... class Point:
    ...     place: tuple
    ...     names: list
    >>> Point((1, 2), ["a"] * 1000)
    Point(place=(1, 2), names=<list of 1000>)
    """
    cls.__repr__ = _repr  # type: ignore[method-assign]  # a function of any record
    return cls


def _repr(record: Any) -> str:
    shown = ", ".join(f"{f.name}={brief(getattr(record, f.name, None))}" for f in fields(record) if f.repr)
    return clipped(f"{type(record).__name__}({shown})")


def brief(value: Any) -> str:
    """One value in a few words.

    >>> import numpy as np
    >>> brief(np.zeros((2, 3))), brief("x" * 99), brief({1: 2})
    ('<float64 [2, 3]>', "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…", '{1: 2}')
    """
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and hasattr(value, "dtype"):
        return f"<{str(value.dtype).removeprefix('torch.')} [{', '.join(map(str, shape))}]>"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{k!r}: {brief(v)}" for k, v in list(value.items())[:_FEW])
        return clipped(f"{{{inner}}}", 60) if len(value) <= _FEW else f"<{type(value).__name__} of {len(value)}>"
    if isinstance(value, list | tuple | set | frozenset):
        if len(value) > _FEW:
            return f"<{type(value).__name__} of {len(value)}>"
        left, right = ("(", ")") if isinstance(value, tuple) else ("[", "]")
        return clipped(f"{left}{', '.join(map(brief, value))}{right}", 60)
    return clipped(repr(value), 40)


def clipped(text: str, most: int = LONGEST) -> str:
    """One line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
