"""The search for flows by the compiled kernel, shared out over threads.

A column of the result (all sources, one sink) is one job: what the nodes of a height can pass on to that sink is
shared by all sources above. Rows (one source, all sinks) are columns of the network turned upside down. Pairs that a
bound leaves open are searched for in the smallest window of tokens that holds all paths between them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attnflow.scoring.flow import counting
from attnflow.scoring.flow.counting import COUNTING
from attnflow.scoring.flow.integers import Capacities, Ints, Words
from attnflow.scoring.flow.relay import Bounds
from attnflow.scoring.flow.room import check_room
from attnflow.scoring.flow.threads import together
from attnflow.scoring.flow.workspace import SLOW, workspace

Codes = npt.NDArray[np.int8]

_SMALL = 20_000  # steps × pairs × tokens below which a second thread costs more than it brings
RELAY = 6  # the proof of a pair whose bounds meet
_NARROW = 16  # tokens of the smallest window


class Found(NamedTuple):
    """What :func:`run` finds, by sinks: units and proofs ``[sinks, tops, n]``, cuts ``[sinks, tops, n, S-1, w]``."""

    units: Ints
    proofs: Codes
    cuts: Words


NO_CUTS: Words = np.zeros((0, 0, 0, 0), np.uint64)


def finish(caps: Capacities, rows: Sequence[int], bounds: Bounds, causal: bool, threads: int) -> Found:
    """The flows from ``rows`` at the top: where the bounds do not meet, the pair is searched for. Axes: rows, sinks."""
    units = bounds.lower.copy()
    proofs: Codes = np.full(units.shape, RELAY, np.int8)
    left = bounds.lower < bounds.upper
    whole = causal and len(rows) == caps.n
    held, first = caps, 0  # the last window, from which narrower ones are cut: to round capacities again takes longer
    jobs = list(_by_sink(left) if whole else _by_row(left, rows, causal))
    for at, sinks, (start, stop) in reversed(jobs):
        if not first <= start < stop <= first + held.n:
            held, first = caps, 0
        if stop - start < held.n:
            held, first = held.window(start - first, stop - first), start
        net = held
        if whole:
            known = np.zeros((len(sinks), stop - start), np.int64)
            known[:, at - start] = np.where(left[np.ix_(at, sinks)].T, -1, 0)
            found = run(net, (caps.steps,), (sinks - start).tolist(), known, threads=threads)
            values, codes = found.units[:, 0, at - start].T, found.proofs[:, 0, at - start].T
        else:
            known = np.zeros((1, stop - start), np.int64)
            known[:, sinks - start] = -1
            found = run(net.reversed(), (caps.steps,), [rows[at[0]] - start], known, threads=threads)
            values, codes = found.units[:, 0, sinks - start], found.proofs[:, 0, sinks - start]
        place = np.ix_(at, sinks)
        units[place] = np.where(left[place], values, units[place])
        proofs[place] = np.where(left[place], codes, proofs[place])
    return Found(units, proofs, NO_CUTS)


Job = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], tuple[int, int]]
"""Places of rows, sinks, and the window of tokens that holds all paths between them."""


def _by_row(left: npt.NDArray[np.bool_], rows: Sequence[int], causal: bool) -> Iterator[Job]:
    """The open pairs of one row after another; with a causal mask those near to the output apart from those far."""
    n = left.shape[1]
    for a, t in enumerate(rows):
        sinks = np.flatnonzero(left[a])
        size = _NARROW
        while len(sinks):
            near = sinks[sinks > t - size] if causal and size < t + 1 else sinks
            if len(near):
                yield np.array([a]), near, (int(near.min()), t + 1) if causal else (0, n)
            sinks = sinks[: len(sinks) - len(near)]
            size *= 2


def _by_sink(left: npt.NDArray[np.bool_]) -> Iterator[Job]:
    """The open pairs of all rows of a causal network: near ones in small windows, far ones in large ones."""
    n = len(left)
    away = np.arange(n)[:, None] - np.arange(n)
    size, low = _NARROW, 0
    while low < n:
        part = left & (away >= low) & (away < size)
        for start in range(0, n, size):
            sinks = start + np.flatnonzero(part[:, start : start + size].any(0))
            if len(sinks):
                at = np.flatnonzero(part[:, sinks].any(1))
                yield at, sinks, (start, int(at.max()) + 1)
        size, low = 2 * size, size


def run(
    caps: Capacities,
    tops: Sequence[int],
    sinks: Sequence[int],
    known: Ints | None = None,
    *,
    theorem: bool = False,
    explicit: bool = False,
    threads: int = 1,
    slow: int = SLOW,
) -> Found:
    """Share the sinks out over threads.

    A source that comes after one whose cut took ``slow`` searches to find begins with the preflow of that one.
    ``known`` ``[sinks, n]`` are the flows from the highest top that were proven before, -1 where none was.
    """
    from attnflow.scoring.flow.compiled import columns

    n, steps = caps.n, caps.steps
    wanted = np.full(steps + 1, -1, np.int64)
    wanted[list(tops)] = np.arange(len(tops))
    cols = np.asarray(sinks, np.uint64)
    units = np.zeros((len(cols), len(tops), n), np.int64)
    proofs = np.zeros(units.shape, np.int8)
    words = (n + 63) // 64
    cuts = np.zeros((*units.shape, (steps - 1) * words) if explicit else (0, 0, 0, 0), np.uint64)
    known = np.zeros((0, n), np.int64) if known is None else np.ascontiguousarray(known)
    jobs = _jobs(len(cols), n, steps, len(tops), threads)
    workers = min(threads, len(jobs))
    check_room(int(room_to_search(steps, n, workers)), f"the search in {steps} steps of {n:,} tokens")
    order = orders(caps, cols)
    cap, rowsum = np.ascontiguousarray(caps.cap), np.ascontiguousarray(caps.rowsum)
    turn = itertools.count()

    def work() -> None:
        space = workspace(n, steps)
        while (job := next(turn)) < len(jobs):
            part, begin, stride = jobs[job]
            columns(
                cap, rowsum, cols[part], order[part], wanted, known[part], units[part], proofs[part], cuts[part], space,
                theorem=theorem, explicit=explicit, begin=begin, stride=stride, slow=slow,
            )  # fmt: skip
        if COUNTING:
            counting.add(space.reads)

    together(work, workers)
    return Found(units, proofs, cuts.reshape(*units.shape, steps - 1, words) if explicit else cuts)


def room_to_search(steps: int, tokens: int | Ints, workers: int) -> int | Ints:
    """Bytes that a search takes: the network in two orders and, for each thread, once more with its flows."""
    return 8 * steps * tokens * tokens * (2 + 2 * workers)


def _jobs(sinks: int, n: int, steps: int, tops: int, threads: int) -> list[tuple[slice, int, int]]:
    """Parts of the work: sinks, first source and stride. One height of few sinks is shared out by its sources."""
    if threads == 1 or steps * sinks * n * n < _SMALL:
        return [(slice(0, sinks), 0, 1)]
    if tops == 1 and sinks < 2 * threads:
        return [(slice(c, c + 1), begin, threads) for c in range(sinks) for begin in range(threads)]
    size = max(1, sinks // (threads * 8))
    return [(slice(c, c + size), 0, 1) for c in range(0, sinks, size)]


def orders(caps: Capacities, sinks: Words) -> Words:
    """For each sink and height the nodes in the order in which the engine fills them: ``[sinks, S + 1, n]``.

    The first nodes are those that would carry most, if each node drew what the sink can take from all nodes above in
    proportion to their capacities. Any order gives the same flows; this one needs a third of the waves.
    """
    n, steps = caps.n, caps.steps
    out = np.empty((len(sinks), steps + 1, n), np.uint64)
    out[:] = np.arange(n)
    if steps > 2:
        share = caps.cap[0][:, sinks].astype(np.float64)
        for h in range(1, steps):
            if h > 1:
                step = caps.cap[h - 1].astype(np.float64)
                share = step @ (share / np.maximum(step.sum(0), 1.0)[:, None])
            out[:, h] = np.argsort(-share, axis=0, kind="stable").T
    return out
