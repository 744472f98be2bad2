"""Heads: which of them are meant, and how they are brought down to one matrix per layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.errors import SelectionError
from attnflow.numbers import heads_of, wholes
from attnflow.row_sums import divided

Heads = str | int | Sequence[int]
Array = npt.NDArray[Any]
_NAMED = ("mean", "max", "min")
_EMPTY = "heads is an empty list: name at least one head, or use 'mean'."


def check_heads(heads: Heads, all_too: bool = True) -> str | int | tuple[int, ...]:
    """A choice of heads that can be right; their number is checked when it is known.

    >>> check_heads([0, 2]), check_heads("mean")
    ((0, 2), 'mean')
    """
    if isinstance(heads, str):
        known = (*_NAMED, "all") if all_too else _NAMED
        if heads not in known:
            raise SelectionError(
                f"heads={heads!r} is not known. Use {', '.join(map(repr, known))}, a number or a list of numbers."
            )
        return heads
    chosen = heads_of(heads)
    if chosen == ():
        raise SelectionError(_EMPTY)
    return chosen


def head_numbers(heads: int | Sequence[int], count: int) -> list[int]:
    """The heads by number; one that the model does not have is an error."""
    numbers = list(wholes(heads, "heads"))
    if not numbers:
        raise SelectionError(_EMPTY)
    if any(not -count <= h < count for h in numbers):
        shown = heads if isinstance(heads, int) else tuple(heads)
        raise SelectionError(f"heads={shown!r}, but the model has {count} heads: use 0 to {count - 1}.")
    return numbers


def reduce_heads(weights: Array, heads: Heads, rows: bool = True) -> Array:
    """``[H, n, m]`` → ``[n, m]``: mean, max or min over the heads, one head, or the mean of some.

    Maxima and minima do not sum to one, so their rows are divided by their sum; not so with ``rows=False``, for
    gradient edges, whose rows may have any sum.
    """
    if weights.ndim == 2:
        return weights
    wide = np.float64 if weights.dtype == np.float64 else np.float32
    chosen = check_heads(heads, all_too=False)
    if chosen == "mean":
        return np.asarray(weights.mean(0, dtype=wide))
    if isinstance(chosen, str):
        picked = weights.max(0) if chosen == "max" else weights.min(0)
        return np.asarray(divided(picked, picked.sum(-1, dtype=wide)), wide) if rows else np.asarray(picked)
    return np.asarray(weights[head_numbers(chosen, weights.shape[0])].mean(0, dtype=wide))
