"""Capacities as integers, so that a flow and its cut are equal to the last bit.

Max-flow on floats needs a tolerance, and its value is only as good as that. Here every capacity is rounded once to a
multiple of ``2**-bits``; from there all is exact. The rounding moves a flow by at most
``2**-(bits + 1)`` for each edge of its minimum cut, about 1e-18 an edge for row-stochastic matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from attnflow.errors import ShapeError, WeightsError

if TYPE_CHECKING:
    from attnflow.scoring.network import Network

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]

NEAR = 1e-13  # how far from one the sum of a row may be to be taken for one
BLOCK = 1 << 17  # numbers that are rounded at a time: what stays in the processor's cache


class Capacities:
    """Integer capacities of a layered network: S steps over n nodes.

    ``cap`` is ``[S, n, n]``: ``cap[s, i, k]`` is the capacity from node *i* above step *s* to node *k* below it; a
    capacity of one is ``2**bits``; ``rowsum`` is ``[S, n]``, the sum of each row.
    """

    def __init__(self, cap: Ints, bits: int, rowsum: Ints) -> None:
        self._cap, self.bits, self._rowsum = cap, bits, rowsum
        self.steps, self.n = int(cap.shape[0]), int(cap.shape[1])

    @property
    def cap(self) -> Ints:
        """All capacities."""
        return self._cap

    @property
    def rowsum(self) -> Ints:
        """The sum of each row."""
        return self._rowsum

    def block(self, step: int, start: int, stop: int, width: int | None = None) -> Ints:
        """Rows ``start … stop`` of one step: ``[stop - start, n]``, or only their first ``width`` columns."""
        return self.cap[step, start:stop, :width]

    def row_sums(self, step: int, rows: Sequence[int]) -> Ints:
        """The sums of some rows of one step."""
        return self.rowsum[step, list(rows)]

    def column_sums(self, step: int = 0) -> Ints:
        """The sums of the columns of one step; of the lowest one by default, so what can enter each input."""
        total = np.zeros(self.n, np.int64)
        for start, stop in self.blocks():
            total += self.block(step, start, stop).sum(0)
        return total

    def blocks(self, count: int | None = None) -> list[tuple[int, int]]:
        """All rows, or ``count`` of them, in parts of a size that the processor's cache holds."""
        rows, count = max(1, BLOCK // self.n), self.n if count is None else count
        return [(start, min(start + rows, count)) for start in range(0, count, rows)]

    def is_causal(self) -> bool:
        """Whether no node has an edge to a later one."""
        for step in range(self.steps):
            for start, stop in self.blocks():
                rows = self._given(step, start, stop)
                if rows[:, stop:].any() or np.triu(rows[:, start:stop], 1).any():
                    return False
        return True

    def _given(self, step: int, start: int, stop: int) -> npt.NDArray[Any]:
        return self.block(step, start, stop)

    def upto(self, height: int) -> Capacities:
        """The lowest ``height`` steps."""
        return Capacities(self.cap[:height], self.bits, self.rowsum[:height])

    def window(self, start: int, stop: int) -> Capacities:
        """The network of the nodes ``start … stop`` alone."""
        size = stop - start
        cap = np.empty((self.steps, size, size), np.int64)
        for step, rows in enumerate(cap):
            for a, b in self.blocks(size):
                rows[a:b] = self.block(step, start + a, start + b)[:, start:stop]
        return self.replaced(cap)

    def view(self, start: int, stop: int) -> Capacities:
        """The same, read when it is asked for."""
        return self if (start, stop) == (0, self.n) else Window(self, start, stop)

    def reversed(self) -> Capacities:
        """The network turned upside down: its flow from *j* to *t* is this one's from *t* to *j*."""
        return self.replaced(np.ascontiguousarray(self.cap[::-1].transpose(0, 2, 1)))

    def replaced(self, cap: Ints) -> Capacities:
        """The same network with other capacities, in the same units."""
        return Capacities(cap, self.bits, cap.sum(-1))

    def floats(self, units: Ints) -> F64:
        """Integer flows as numbers."""
        return np.multiply(units, 2.0**-self.bits, dtype=np.float64)


class Window(Capacities):
    """The network of some nodes, read when it is asked for; only :meth:`block` can be read."""

    def __init__(self, whole: Capacities, start: int, stop: int) -> None:
        self._whole, self._start, self.bits = whole, start, whole.bits
        self.steps, self.n = whole.steps, stop - start

    def block(self, step: int, start: int, stop: int, width: int | None = None) -> Ints:
        """Rows ``start … stop`` of one step: ``[stop - start, n]``, or only their first ``width`` columns."""
        last = self._start + (self.n if width is None else width)
        return self._whole.block(step, self._start + start, self._start + stop, last)[:, self._start : last]


class Steps(Protocol):
    """Capacities that are made a few rows at a time, so that not all of them need be held at once."""

    @property
    def count(self) -> int:
        """Number of steps."""

    @property
    def n(self) -> int:
        """Number of nodes at each height."""

    @property
    def causal(self) -> bool:
        """True if it is known that no node has an edge to a later one."""

    def bits(self) -> int:
        """How many bits a capacity of one gets, see :func:`bits_of`."""

    def block(self, step: int, start: int, stop: int, width: int | None = None) -> F64:
        """Rows ``start … stop`` of one step: ``[stop - start, n]``, finite and not negative.

        Only the first ``width`` columns, where the caller knows that the others are zero.
        """

    def units(self, step: int, start: int, stop: int, width: int | None, bits: int) -> Ints:
        """The same rows :func:`rounded`."""


class Streamed(Capacities):
    """Capacities that are rounded when they are asked for; ``cap`` holds all of them only if somebody reads it."""

    def __init__(self, source: Steps, bits: int, steps: int | None = None) -> None:
        self._source, self.bits = source, bits
        self.steps, self.n = source.count if steps is None else steps, source.n

    def block(self, step: int, start: int, stop: int, width: int | None = None) -> Ints:
        """Rows ``start … stop`` of one step: ``[stop - start, n]``, or only their first ``width`` columns."""
        return self._source.units(step, start, stop, width, self.bits)

    def is_causal(self) -> bool:
        """Whether no node has an edge to a later one."""
        return self._source.causal or super().is_causal()

    def _given(self, step: int, start: int, stop: int) -> F64:
        return self._source.block(step, start, stop)

    def row_sums(self, step: int, rows: Sequence[int]) -> Ints:
        """The sums of some rows of one step."""
        return np.array([self.block(step, i, i + 1).sum() for i in rows], np.int64)

    def upto(self, height: int) -> Streamed:
        """The lowest ``height`` steps."""
        return Streamed(self._source, self.bits, height)

    @cached_property
    def cap(self) -> Ints:
        """All capacities; they are held from now on."""
        whole = np.empty((self.steps, self.n, self.n), np.int64)
        for step, out in enumerate(whole):
            for start, stop in self.blocks():
                out[start:stop] = self.block(step, start, stop)
        return whole

    @cached_property
    def rowsum(self) -> Ints:
        """The sum of each row."""
        sums: Ints = self.cap.sum(-1)
        return sums


class Stack:
    """An array ``[S, n, n]`` as :class:`Steps`."""

    causal = False  # not known

    def __init__(self, array: F64) -> None:
        self.array = array
        self.count, self.n = int(array.shape[0]), int(array.shape[1])

    def bits(self) -> int:
        """How many bits a capacity of one gets."""
        return bits_of(self.array)

    def block(self, step: int, start: int, stop: int, width: int | None = None) -> F64:
        """Rows ``start … stop`` of one step."""
        return self.array[step, start:stop, :width]

    def units(self, step: int, start: int, stop: int, width: int | None, bits: int) -> Ints:
        """The same rows as integers."""
        return rounded(self.block(step, start, stop, width), bits)


class Layers:
    """The steps of a :class:`~attnflow.scoring.network.Network` as :class:`Steps`: no matrix is held twice."""

    def __init__(self, net: Network) -> None:
        self._steps, self.causal = net.steps, net.causal
        self.count, self.n = len(net.steps), net.size

    def bits(self) -> int:
        """How many bits a capacity of one gets."""
        return bits_for(max(step.largest_sum() for step in self._steps))

    def block(self, step: int, start: int, stop: int, width: int | None = None) -> F64:
        """Rows ``start … stop`` of one step."""
        return self._steps[step].rows(start, stop, width)

    def units(self, step: int, start: int, stop: int, width: int | None, bits: int) -> Ints:
        """The same rows as integers: read once by a kernel where they lie as one matrix in single precision."""
        one = self._steps[step]
        plain = one.weights.dtype == np.float32 and one.weights.shape == (self.n, self.n)
        if not plain or one.weights.strides[1] != one.weights.itemsize:
            return rounded(self.block(step, start, stop, width), bits)
        from attnflow.scoring.flow import compiled

        return compiled.rounding(one.weights, *one.factors, start, stop, self.n if width is None else width, bits)


def as_stack(stack: Any) -> F64:
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
    if not (array.min() >= 0 and array.max() < np.inf):
        s, i, k = np.argwhere(~((array >= 0) & (array < np.inf)))[0]
        wants = "at least 0" if array[s, i, k] < 0 else "finite"
        raise WeightsError(f"capacity [{s}, {i}, {k}] is {array[s, i, k]}, but capacities must be {wants}.")
    return array


def bits_of(array: F64, spare: int = 0) -> int:
    """How many bits a capacity of one gets: as many as no row or column sum can overflow.

    Capacities far below one (gradients) get more bits, so that they are as exact relative to their own size.
    """
    return bits_for(max(float(array.sum(-1).max()), float(array.sum(-2).max())), spare)


def bits_for(largest: float, spare: int = 0) -> int:
    """The same where the largest of all row and column sums is known."""
    return min(61 - math.ceil(math.log2(largest)), 60 if largest > 0.5 else 900) - spare if largest else 60


def rounded(rows: F64, bits: int) -> Ints:
    """Rows of capacities ``[r, n]`` as integers.

    Rows that sum to one up to float64 rounding sum to exactly ``2**bits``: otherwise a row of ten thousand tiny
    roundings would look like a bottleneck that is not there.
    """
    scaled = rows * 2.0**bits
    np.rint(scaled, out=scaled)
    whole: Ints = scaled.astype(np.int64)
    if 0 <= bits <= 60:
        off = 2**bits - whole.sum(-1)
        near = np.flatnonzero((off != 0) & (np.abs(off) < 2.0**bits * NEAR))
        whole[near, whole[near].argmax(1)] += off[near]
    return whole


def integers(stack: Any, spare: int = 0) -> Capacities:
    """Round a stack of capacities to integers, with as many bits as no row or column sum can overflow.

    ``spare`` bits fewer leave room for larger sums.

    >>> c = integers([[[0.5, 0.5], [0.25, 0.75]]])
    >>> c.bits, (c.cap[0, 1] / 2**c.bits).tolist()
    (60, [0.25, 0.75])
    """
    array = as_stack(stack)
    bits = bits_of(array, spare)
    cap = np.empty(array.shape, np.int64)
    given, rows = array.reshape(-1, array.shape[2]), cap.reshape(-1, array.shape[2])
    size = max(1, BLOCK // array.shape[2])
    for start in range(0, len(rows), size):
        rows[start : start + size] = rounded(given[start : start + size], bits)
    return Capacities(cap, bits, cap.sum(-1))


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
