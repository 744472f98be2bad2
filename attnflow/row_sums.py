"""Row sums: attention rows sum to one, but for rounding, maxima over heads, and what a learned sink takes.

Every part of the library that meets a row sum settles it here: how far it may be from one, how rows are divided, and
how the rest becomes the column of a sink. Matrices are numpy arrays or torch tensors; rows are queries, columns keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attnflow.errors import SelectionError
from attnflow.numbers import word

SINKS = ("keep", "renormalise", "error")
# How far row sums may be from one before the rest counts as a sink's: half precision keeps 8 or 11 bits per weight.
_SLACK = {"bfloat16": 2e-2, "float16": 5e-3}
_LEAST = 2e-3


def check_sinks(sinks: str) -> str:
    """What is done with rows that sum to less than one; an unknown word is an error."""
    if word(sinks, "sinks") not in SINKS:
        raise SelectionError(f"sinks={sinks!r} is not known. Use {', '.join(map(repr, SINKS[:-1]))} or {SINKS[-1]!r}.")
    return sinks


def slack_of(*dtypes: Any) -> float:
    """How far row sums of these dtypes may be from one.

    >>> slack_of(np.dtype("float32")), slack_of(torch.bfloat16, torch.float32)
    (0.002, 0.02)
    """
    names = (str(dtype).removeprefix("torch.") for dtype in dtypes)
    return max([_LEAST, *(_SLACK.get(name, 0.0) for name in names)])


def divided(weights: Any, sums: Any = None) -> Any:
    """Rows divided by their sums; rows of zeros stay. Arrays are divided in float64, tensors in their own dtype.

    >>> divided(np.array([[1.0, 3.0], [0.0, 0.0]]))
    array([[0.25, 0.75],
           [0.  , 0.  ]])
    """
    if isinstance(weights, torch.Tensor):
        total = weights.sum(-1, keepdim=True) if sums is None else sums[..., None]
        return weights / total.masked_fill(total == 0, 1)
    total = np.asarray(weights.sum(-1) if sums is None else sums, np.float64)[..., None]
    return np.divide(weights, total, out=np.zeros(weights.shape), where=total > 0)


def with_rest(weights: Any, sums: Any) -> Any:
    """The matrix with one column more: what each row lacks of one.

    >>> with_rest(np.array([[0.5, 0.25]]), np.array([0.75]))
    array([[0.5 , 0.25, 0.25]])
    """
    rest = np.clip(1 - sums, 0, None)[..., None].astype(weights.dtype)
    return np.concatenate([weights, rest], -1)
