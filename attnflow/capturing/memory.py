"""mmap buffers for large matrices; malloc_trim for memory that the model has freed."""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
from collections.abc import Callable

import torch

OWN = 1 << 22
"""Bytes from which a matrix has pages of its own: 1,024 tokens in float32."""

LARGE = 1 << 23
"""Bytes of one kept matrix from which it is worth while to give pages back: 1,448 tokens in float32."""

EVERY = 3
"""Kept matrices from one time to the next."""


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros in pages of their own, which take memory only once they are written to.

    Of a causal model's matrix nearly half is never written. torch.zeros would write all of it, and into whatever gap
    the allocator has, which is then lost to the model's own tensors.
    """
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < OWN or not hasattr(mmap, "MAP_PRIVATE"):
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def give_back(kept: torch.Tensor, count: int) -> None:
    """Return to the system what the C library holds of freed tensors, now and then while large matrices are kept.

    glibc keeps freed tensors of up to 32 MiB for later ones, and the gaps between them grow with every layer. To fill
    pages again takes time, so this is done only once per several matrices.
    """
    trim = _trim()
    if trim is not None and count % EVERY == 0 and kept.nbytes >= LARGE and kept.device.type == "cpu":
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):  # not glibc
        return None
