"""Capacities as integers, so that a flow and its cut are equal to the last bit.

Max-flow on floats needs a tolerance, and its value is only as good as that. Here every capacity is rounded once to a
multiple of ``2**-bits``; from there all is exact. The rounding moves a flow by at most
``2**-(bits + 1)`` for each edge of its minimum cut, about 1e-18 an edge for row-stochastic matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.errors import ShapeError, WeightsError

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Capacities:
    """Integer capacities of a layered network: S steps over n nodes.

    Attributes:
        cap: ``[S, n, n]``: ``cap[s, i, k]`` is the capacity from node *i* above step *s* to node *k* below it.
        bits: a capacity of one is ``2**bits``.
        rowsum: ``[S, n]`` the sum of each row.
    """

    cap: Ints
    bits: int
    rowsum: Ints

    @property
    def steps(self) -> int:
        """Number of steps from the highest nodes to the inputs."""
        return int(self.cap.shape[0])

    @property
    def n(self) -> int:
        """Number of nodes at each height."""
        return int(self.cap.shape[1])

    def upto(self, height: int) -> Capacities:
        """The lowest ``height`` steps."""
        return Capacities(self.cap[:height], self.bits, self.rowsum[:height])

    def reversed(self) -> Capacities:
        """The network turned upside down: its flow from *j* to *t* is this one's from *t* to *j*."""
        return self.replaced(np.ascontiguousarray(self.cap[::-1].transpose(0, 2, 1)))

    def replaced(self, cap: Ints) -> Capacities:
        """The same network with other capacities, in the same units."""
        return Capacities(cap, self.bits, cap.sum(-1))

    def floats(self, units: Ints) -> npt.NDArray[np.float64]:
        """Integer flows as numbers."""
        return np.multiply(units, 2.0**-self.bits, dtype=np.float64)


def as_stack(stack: Any) -> npt.NDArray[np.float64]:
    """Check a stack of capacities ``[S, n, n]``: square, finite, not negative.

    >>> as_stack([[[0.5, 0.5], [0.0, 1.0]]]).shape
    (1, 2, 2)
    """
    array = np.asarray(stack, dtype=np.float64)
    if array.ndim != 3 or array.shape[1] != array.shape[2] or 0 in array.shape:
        raise ShapeError(
            f"capacities have the shape {array.shape}, but flow runs through square steps [S, n, n]. "
            "Pass attention to attnflow.flow(...), which builds them."
        )
    if not np.isfinite(array).all():
        s, i, k = np.argwhere(~np.isfinite(array))[0]
        raise WeightsError(f"capacity [{s}, {i}, {k}] is {array[s, i, k]}, but capacities must be finite.")
    if (array < 0).any():
        s, i, k = np.argwhere(array < 0)[0]
        raise WeightsError(f"capacity [{s}, {i}, {k}] is {array[s, i, k]}, but capacities must be at least 0.")
    return array


def integers(stack: Any, spare: int = 0) -> Capacities:
    """Round a stack of capacities to integers, with as many bits as no row or column sum can overflow.

    Rows that sum to one up to float64 rounding sum to exactly ``2**bits``: otherwise a row of ten thousand
    tiny roundings would look like a bottleneck that is not there. ``spare`` bits fewer leave room for larger sums.

    >>> c = integers([[[0.5, 0.5], [0.25, 0.75]]])
    >>> c.bits, (c.cap[0, 1] / 2**c.bits).tolist()
    (60, [0.25, 0.75])
    """
    array = as_stack(stack)
    largest = max(float(array.sum(-1).max()), float(array.sum(-2).max()))
    # Capacities far below one (gradients) get more bits, so that they are as exact relative to their own size.
    bits = min(61 - math.ceil(math.log2(largest)), 60 if largest > 0.5 else 900) - spare if largest else 60
    cap = np.empty(array.shape, np.int64)
    for step, out in zip(array, cap, strict=True):
        np.rint(step * 2.0**bits, out=out, casting="unsafe")
    rowsum = cap.sum(-1)
    off = 2**bits - rowsum if bits <= 60 else np.zeros_like(rowsum)
    off[np.abs(off) >= 2.0**bits * 1e-13] = 0
    rows: Ints = cap.reshape(-1, array.shape[2])
    rows[np.arange(len(rows)), rows.argmax(1)] += off.reshape(-1)
    return Capacities(cap, bits, rowsum + off)


def pack(mask: npt.NDArray[np.bool_]) -> Words:
    """Bitsets of the last axis: ``[..., n]`` to ``[..., ceil(n / 64)]``."""
    n = mask.shape[-1]
    words = (n + 63) // 64
    bits = np.zeros((*mask.shape[:-1], words * 8), np.uint8)
    packed = np.packbits(mask, axis=-1, bitorder="little")
    bits[..., : packed.shape[-1]] = packed
    return bits.view("<u8")


def unpack(words: Words, n: int) -> npt.NDArray[np.bool_]:
    """The masks of bitsets: the inverse of :func:`pack`."""
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    return bits[..., :n].astype(bool)
