"""A debug build of the kernels that counts what it reads: ``ATTNFLOW_COUNT=1``.

The kernels are compiled with the counters or without them; without them they are the same code as if there were none.

    ATTNFLOW_COUNT=1 python benchmarks/flow_reads.py
"""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

COUNTING = os.environ.get("ATTNFLOW_COUNT", "0") not in ("", "0")
"""True in a debug build."""

EDGES, SETS, WAVES, PAIRS, HOPS = range(5)
"""Places in an array of counts."""

PLACES = 5
_total = np.zeros(PLACES, np.uint64)
_lock = threading.Lock()


class Reads(NamedTuple):
    """What was read since the last :func:`taken`.

    ``edges``: capacities, by the search; ``sets``: words of edge sets, 64 edges each; ``waves`` and ``pairs``: searches
    from the sink, and the pairs that needed any; ``hops``: sums of capacities, by the relay bound.
    """

    edges: int
    sets: int
    waves: int
    pairs: int
    hops: int


def add(counts: npt.NDArray[np.uint64]) -> None:
    """Add what one thread has read."""
    with _lock:
        _total[:] += counts


def taken() -> Reads:
    """The counts, which begin anew at zero."""
    with _lock:
        found = Reads(*map(int, _total))
        _total[:] = 0
    return found
