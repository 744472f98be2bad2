# mypy: ignore-errors
# numba reads these functions and infers their types; annotations would have no effect.
"""Attention as integer capacities, read as it was captured; compiled. It gives what integers.py and network.py give.

They go over each row ten times, and write what they make of it to memory each time; here it is read once.
"""

from __future__ import annotations

import numpy as np
from numba import types

from attnflow.scoring.flow.waves import U1, inner

_INT, _NUMBER, _SINGLE, _PLACE = (
    types.CPointer(types.int64),
    types.CPointer(types.float64),
    types.CPointer(types.float32),
    types.uint64,
)
SIGNATURE = types.void(_SINGLE, *(_PLACE,) * 4, _NUMBER, _NUMBER, types.float64, types.int64, types.int64, _INT)
_WHOLE = 2.0**52  # from here on a float has no digits behind the point


@inner
def _rint(x):
    """A number that is not negative, rounded to the nearest integer, halves to even ones."""
    return (x + _WHOLE) - _WHOLE if x < _WHOLE else x


def rounding(weights, stride, start, stop, width, factor, own, scale, whole, near, out):
    """Rows ``start … stop`` of one step as integers, their first ``width`` columns: ``out`` [stop - start, width].

    ``weights`` has ``stride`` numbers to a row; row i is multiplied by ``factor[i]``, and ``own[i]`` is added to its
    own column. Both are then multiplied by ``scale``. A row whose sum is off ``whole`` by less than ``near`` gets what
    it lacks at its largest number.
    """
    for i in range(start, stop):
        row, at, by = i * stride, (i - start) * width, factor[i]
        total, largest = np.int64(0), np.int64(0)
        for k in range(width):
            y = np.int64(_rint(np.float64(weights[row + k]) * by * scale))
            out[at + k] = y
            total += y
            largest = max(largest, y)
        if i < width:
            y = np.int64(_rint((np.float64(weights[row + i]) * by + own[i]) * scale))
            total += y - out[at + i]
            out[at + i] = y
            largest = max(largest, y)
        off = whole - total
        if off != 0 and -near < off and off < near:
            k = at
            while out[k] != largest:
                k += U1
            out[k] += off
