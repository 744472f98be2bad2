"""The engine: flows of all pairs at the chosen heights, in integers, over threads.

A column of the result (all sources, one sink) is one job: what the nodes of a height can pass on to that sink is
shared by all sources above. Rows (one source, all sinks) are columns of the network turned upside down.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attnflow.errors import SelectionError
from attnflow.scoring.flow.integers import Capacities, Ints, Words, integers, pack, unpack
from attnflow.scoring.flow.workspace import workspace

Codes = npt.NDArray[np.int8]

CLOSED, BOUND, CUT, THEOREM, FLOOR, FAILED = 1, 2, 3, 4, 5, -1
PROOFS = {
    CLOSED: "closed form",
    BOUND: "flow that meets a bound",
    CUT: "flow and cut",
    THEOREM: "saturation theorem",
    FLOOR: "hub bound",
}

_SMALL = 20_000  # steps × pairs × tokens below which a second thread costs more than it brings


@dataclass(frozen=True, eq=False)
class Solution:
    """Flows of all pairs asked for.

    Attributes:
        capacities: the integer network.
        tops: heights of the sources: number of steps below them.
        rows: which nodes are sources.
        units: ``[tops, rows, n]`` integer flows: ``units[a, b, j]`` from ``(tops[a], rows[b])`` to input *j*.
        proofs: how each was proven: a key of ``PROOFS``.
        cuts: where asked for, ``[tops, rows, n, S-1, w]`` bitsets: the sink's side of a minimum cut.
    """

    capacities: Capacities
    tops: tuple[int, ...]
    rows: tuple[int, ...]
    units: Ints
    proofs: Codes
    cuts: Words | None = None

    @property
    def scores(self) -> npt.NDArray[np.float64]:
        """The flows as float64, ``[tops, rows, n]``."""
        return self.capacities.floats(self.units)

    def proof_counts(self) -> dict[str, int]:
        """How many pairs each kind of proof settled."""
        return {name: int((self.proofs == code).sum()) for code, name in PROOFS.items() if (self.proofs == code).any()}


def solve(
    stack: Any,
    tops: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    *,
    bounds: bool = True,
    explicit: bool = False,
    threads: int | None = None,
) -> Solution:
    """Exact flows through a stack of capacities (Abnar & Zuidema 2020, §3).

    Args:
        stack: ``[S, n, n]`` capacities, or ready :class:`Capacities`; step 0 leads to the inputs.
        tops: heights of the sources, 1 .. S; all by default.
        rows: the sources at these heights; all by default.
        bounds: settle pairs by proven bounds without solving them where that is possible.
        explicit: solve every pair in full and keep a minimum cut of each; no bound is used.
        threads: how many; by default as many as there are cores, and one for small networks.

    >>> half = [[0.5, 0.5], [0.5, 0.5]]
    >>> solve([half, half]).scores[-1]
    array([[1., 1.],
           [1., 1.]])
    """
    caps = stack if isinstance(stack, Capacities) else integers(stack)
    tops = _checked(tops, range(1, caps.steps + 1), "height")
    rows = _checked(rows, range(caps.n), "row")
    caps = caps.upto(max(tops))
    threads = _threads(threads)
    if len(rows) < caps.n and (len(tops) == 1 or len(rows) * 4 <= caps.n):
        found = [_upside_down(caps.upto(top), rows, bounds, explicit, threads) for top in tops]
        units, proofs = np.stack([f.units for f in found]), np.stack([f.proofs for f in found])
        return Solution(caps, tops, rows, units, proofs, _stack_cuts([f.cuts for f in found]) if explicit else None)
    all_rows = _columns(caps, tops, range(caps.n), bounds, explicit, threads)
    chosen = list(rows)
    units, proofs = all_rows.units.transpose(1, 2, 0)[:, chosen], all_rows.proofs.transpose(1, 2, 0)[:, chosen]
    cuts = all_rows.cuts.transpose(1, 2, 0, 3, 4)[:, chosen] if explicit else None
    return Solution(caps, tops, rows, units, proofs, cuts)


def _checked(given: Sequence[int] | None, allowed: range, what: str) -> tuple[int, ...]:
    if given is None:
        return tuple(allowed)
    wrong = [x for x in given if x not in allowed]
    if wrong or not len(given):
        raise SelectionError(f"{what} {wrong or 'list'} is not there: use {allowed[0]} to {allowed[-1]}.")
    return tuple(int(x) for x in given)


def _threads(threads: int | None) -> int:
    if threads is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads < 1:
        raise SelectionError(f"threads={threads}, but at least one is needed.")
    return threads


class Found(NamedTuple):
    """What :func:`run` finds, by sinks: units and proofs ``[sinks, tops, n]``, cuts ``[sinks, tops, n, S-1, w]``."""

    units: Ints
    proofs: Codes
    cuts: Words


def _upside_down(caps: Capacities, rows: Sequence[int], bounds: bool, explicit: bool, threads: int) -> Found:
    """One height, few sources: each is the sink of the reversed network. Axes: rows, sinks."""
    found = _columns(caps.reversed(), (caps.steps,), rows, bounds, explicit, threads)
    cuts = found.cuts
    if explicit:
        # In the reversed network the set reaches the source: the sink's side is its complement, bottom up.
        cuts = pack(~unpack(cuts[:, 0], caps.n)[:, :, ::-1])
    return Found(found.units[:, 0], found.proofs[:, 0], cuts)


def _stack_cuts(parts: list[Words]) -> Words:
    deepest = max(p.shape[2] for p in parts)
    out = np.zeros((len(parts), *parts[0].shape[:2], deepest, *parts[0].shape[3:]), np.uint64)
    for a, part in enumerate(parts):
        out[a, :, :, : part.shape[2]] = part
    return out


def _columns(
    caps: Capacities, tops: Sequence[int], sinks: Sequence[int], bounds: bool, explicit: bool, threads: int
) -> Found:
    floor = None
    if bounds and not explicit and len(tops) == 1:
        from attnflow.scoring.flow.bounds import floor_of

        floor = floor_of(caps, sinks, threads)
    return run(caps, tops, sinks, floor, theorem=bounds and not explicit, explicit=explicit, threads=threads)


def run(
    caps: Capacities,
    tops: Sequence[int],
    sinks: Sequence[int],
    floor: Ints | None = None,
    *,
    theorem: bool = False,
    explicit: bool = False,
    threads: int = 1,
) -> Found:
    """Share the sinks out over threads. ``floor`` ``[sinks, n]``: proven lower bounds for the highest top."""
    from attnflow.scoring.flow.compiled import columns

    n, steps = caps.n, caps.steps
    wanted = np.full(steps + 1, -1, np.int64)
    wanted[list(tops)] = np.arange(len(tops))
    cols = np.asarray(sinks, np.uint64)
    units = np.zeros((len(cols), len(tops), n), np.int64)
    proofs = np.zeros(units.shape, np.int8)
    words = (n + 63) // 64
    cuts = np.zeros((*units.shape, (steps - 1) * words) if explicit else (0, 0, 0, 0), np.uint64)
    floor = np.zeros((0, n), np.int64) if floor is None else np.ascontiguousarray(floor)
    cap, rowsum = np.ascontiguousarray(caps.cap), np.ascontiguousarray(caps.rowsum)
    order = orders(caps, cols)
    jobs = _jobs(len(cols), n, steps, len(tops), threads)
    turn = itertools.count()

    def work() -> None:
        space = workspace(n, steps)
        while (job := next(turn)) < len(jobs):
            part, begin, stride = jobs[job]
            columns(
                cap, rowsum, cols[part], order[part], wanted, floor[part], units[part], proofs[part], cuts[part], space,
                theorem=theorem, explicit=explicit, begin=begin, stride=stride,
            )  # fmt: skip

    _together(work, min(threads, len(jobs)))
    return Found(units, proofs, cuts.reshape(*units.shape, steps - 1, words) if explicit else cuts)


def _together(work: Callable[[], None], threads: int) -> None:
    """Run ``work`` in this thread and others; what any of them raises is raised here, when all have ended."""
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    others = [threading.Thread(target=guarded) for _ in range(threads - 1)]
    for thread in others:
        thread.start()
    guarded()
    for thread in others:
        thread.join()
    if failed:
        raise failed[0]


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
