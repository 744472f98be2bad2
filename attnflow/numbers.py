"""Numbers as users have them: Python's, numpy's, a tensor's. This module turns them into Python's own, or raises.

A value of the wrong type is a ``TypeError``; one that cannot be right is an :class:`AttnFlowError`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.errors import InputError, SelectionError, ShapeError, WeightsError


def whole(value: Any, what: str) -> int:
    """A whole number, of whatever library.

    >>> whole(np.int64(3), "layer")
    3
    """
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what}={value!r} is a {type(value).__name__}, and a whole number is needed.") from None


def wholes(value: Any, what: str) -> tuple[int, ...]:
    """One whole number or several.

    >>> wholes(2, "layers"), wholes(np.array([0, -1]), "layers")
    ((2,), (0, -1))
    """
    if isinstance(value, str) or not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        return (whole(value, what),)
    return tuple(whole(one, what) for one in value)


def is_whole(value: Any) -> bool:
    """True for a whole number of whatever library."""
    try:
        whole(value, "")
    except TypeError:
        return False
    return True


def heads_of(heads: Any) -> str | int | tuple[int, ...]:
    """A choice of heads: a name as it is, one head as a number, several as numbers.

    >>> heads_of("mean"), heads_of(np.int32(1)), heads_of([0, np.int64(2)])
    ('mean', 1, (0, 2))
    """
    if isinstance(heads, str):
        return str(heads)
    return whole(heads, "heads") if is_whole(heads) else wholes(heads, "heads")


def word(value: Any, what: str) -> str:
    """A name of something: a ``str``; whether it is known is asked elsewhere."""
    if not isinstance(value, str):
        raise TypeError(f"{what}={value!r} is a {type(value).__name__}, and a str is needed.")
    return str(value)


def truth(value: Any, what: str) -> bool:
    """True or False, of whatever library."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{what}={value!r} is a {type(value).__name__}, and True or False is needed.")
    return bool(value)


def truths(**values: Any) -> None:
    """Refuse what is neither True nor False, each by its name."""
    for what, value in values.items():
        truth(value, what)


def check_kinds(kind: Any, value: Any, what: str) -> list[Any]:
    """Several records of one kind."""
    found = listed(value, what)
    for one in found:
        check_kind(kind, one, f"an entry of {what}")
    return found


def check_kind(kind: Any, value: Any, what: str) -> None:
    """Refuse what is not of this kind."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} is a {type(value).__name__}, and a {kind.__name__} is needed.")


def listed(value: Any, what: str) -> list[Any]:
    """Several of something; one alone is a ``TypeError``."""
    if not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        raise TypeError(f"{what}={value!r} is a {type(value).__name__}, and a list is needed.")
    return list(value)


def at_least(value: Any, least: int, what: str, why: str = "") -> int:
    """A whole number that is not below ``least``."""
    found = whole(value, what)
    if found < least:
        raise SelectionError(f"{what}={found}, but at least {least} is needed{why}.")
    return found


def real(value: Any, what: str) -> float:
    """One number, of whatever library."""
    if isinstance(value, str | bool | np.bool_ | complex) or getattr(value, "ndim", 0) > 0:
        raise TypeError(f"{what}={value!r} is a {type(value).__name__}, and a number is needed.")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise TypeError(f"{what}={value!r} is a {type(value).__name__}, and a number is needed.") from None


def seed_of(value: Any, what: str = "seed") -> int:
    """A seed of chance: a whole number from 0 up to what every library takes."""
    found = at_least(value, 0, what)
    if found >= 2**32:
        raise SelectionError(f"{what}={found}, and a seed is below 2**32, which is {2**32}.")
    return found


def check_max_length(value: Any) -> int | None:
    """``max_length``: None, or two tokens at least: with one, nothing is left to compare."""
    return None if value is None else at_least(value, 2, "max_length", ": one token alone draws on nothing else")


def to_numpy(value: Any, what: str = "Attention") -> npt.NDArray[Any]:
    """An array from whatever holds numbers, also a tensor that requires a gradient; bfloat16 becomes float32."""
    if hasattr(value, "detach"):
        value = _made(lambda: _plain(value), what)
    array = _made(lambda: np.asarray(value), what)
    if array.dtype.kind not in "fiu":
        raise InputError(
            f"{what} of type {type(value).__name__} ({array.dtype}) is not numbers. Give a model, what capture "
            "returned, Hugging Face's attentions, or an array [layers, n, n]."
        )
    return array


def _plain(tensor: Any) -> npt.NDArray[Any]:
    held = tensor.detach().cpu()
    narrow = str(held.dtype) in ("torch.bfloat16", "torch.float8_e4m3fn", "torch.float8_e5m2")
    return np.asarray((held.float() if narrow else held).numpy())


def _made(make: Callable[[], Any], what: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(make())
    except (ValueError, TypeError, RuntimeError, OverflowError):  # of numpy, or of a tensor without numbers
        raise ShapeError(f"{what} is not one array per layer: its parts differ in shape or kind.") from None


def check_finite(array: npt.NDArray[Any], where: str) -> None:
    """Refuse NaN and infinity, which no weight is."""
    good = np.isfinite(array)
    if not good.all():
        nan = int(np.isnan(array).sum())
        kind = f"{nan} NaN" if nan else f"{int((~good).sum())} infinite values"
        raise WeightsError(
            f"{where} has {kind} among {array.size} weights: "
            "the model's attention mask leaves a row with nothing to attend to, or it overflowed."
        )
