"""Bringing the heads down to one matrix while the model runs, in blocks of query rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attnflow.capturing import memory
from attnflow.errors import AttnFlowError
from attnflow.heads import Heads, head_numbers

_NUMPY = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


def storage_dtype(dtype: Any) -> torch.dtype:
    """The dtype in which weights are kept; an error for one that numpy does not have.

    >>> storage_dtype("float16")
    torch.float16
    """
    try:
        name = str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype | str) else np.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name == "bfloat16":
        raise AttnFlowError(
            "dtype='bfloat16', and weights are kept as numpy arrays, which have no bfloat16. Use dtype='float16': "
            "of a number between 0 and 1 it keeps more bits (11 against 8)."
        )
    if name not in _NUMPY:
        raise AttnFlowError(f"dtype={dtype!r} is not known. Use {', '.join(map(repr, _NUMPY))}.")
    return _NUMPY[name]


@dataclass(frozen=True)
class Reduction:
    """How weights ``[batch, heads, queries, keys]`` are brought down and kept.

    "all" keeps ``[batch, heads, queries, keys]``; everything else ``[batch, queries, keys]``. Maxima and minima
    get one column more, for what a learned sink took, because a maximum cannot be taken back from row sums; not
    where rows have no sum of their own (``stochastic=False``: gradient edges).
    """

    heads: Heads = "mean"
    dtype: torch.dtype = torch.float32
    device: torch.device | None = None
    stochastic: bool = True

    @property
    def extreme(self) -> bool:
        """True for maxima and minima of weights."""
        return self.stochastic and self.heads in ("max", "min")

    def buffer(self, batch: int, heads: int, queries: int, keys: int, device: torch.device) -> torch.Tensor:
        """Zeros for the weights of one call."""
        self.check(heads)
        shape = (batch, heads, queries, keys) if self.heads == "all" else (batch, queries, keys + self.extreme)
        return memory.zeros(shape, self.dtype, self.device or device)

    def check(self, heads: int) -> None:
        """An error if a head was asked for that the model does not have."""
        if not isinstance(self.heads, str):
            head_numbers(self.heads, heads)

    def put(self, buffer: torch.Tensor, weights: torch.Tensor, row: int, key: int) -> None:
        """Write ``weights`` [batch, heads, rows, keys] of a block that begins at ``row`` and ``key``."""
        rows, keys = slice(row, row + weights.shape[-2]), slice(key, key + weights.shape[-1])
        if self.heads == "all":
            buffer[:, :, rows, keys] = weights.to(buffer.device)
            return
        wide = torch.float64 if weights.dtype == torch.float64 else torch.float32
        if self.heads == "mean":
            into = buffer[:, rows, keys]
            if into.dtype == wide and into.device == weights.device:
                torch.mean(weights, 1, dtype=wide, out=into)
            else:
                into.copy_(weights.mean(1, dtype=wide))
        elif isinstance(self.heads, str):
            pick = torch.amax if self.heads == "max" else torch.amin
            buffer[:, rows, keys] = pick(weights, 1).to(buffer.device)
            if self.extreme:
                rest = (1 - weights.sum(-1, keepdim=True, dtype=wide)).clamp_(min=0)
                buffer[:, rows, -1:] = pick(rest, 1).to(buffer.device)
        else:
            chosen = head_numbers(self.heads, weights.shape[1])
            buffer[:, rows, keys] = weights[:, chosen].mean(1, dtype=wide).to(buffer.device)

    def whole(self, weights: torch.Tensor) -> torch.Tensor:
        """The weights of one call, all at once."""
        batch, heads, queries, keys = weights.shape
        out = self.buffer(batch, heads, queries, keys, weights.device)
        self.put(out, weights.detach(), 0, 0)
        return out
