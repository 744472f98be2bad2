"""The engine: flows of all pairs at the chosen heights, in integers. Bounds first, search for what they leave open."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.errors import SelectionError
from attnflow.numbers import at_least
from attnflow.reprs import one_line
from attnflow.scoring.flow.integers import (
    Capacities,
    Ints,
    Layers,
    Stack,
    Streamed,
    Words,
    as_stack,
    bits_of,
    integers,
    pack,
    unpack,
)
from attnflow.scoring.flow.relay import relayable, relayed
from attnflow.scoring.flow.search import RELAY, Codes, Found, finish, run

CLOSED, BOUND, CUT, THEOREM, HUB, THIN, DRAWN, WIDE, FEW, FAILED = 1, 2, 3, 4, 5, 7, 8, 9, 10, -1
PROOFS = {
    CLOSED: "closed form",
    BOUND: "flow that meets a bound",
    CUT: "flow and cut",
    THEOREM: "saturation theorem",
    HUB: "hub bound",
    RELAY: "relay bound",
    THIN: "flow in a thinned network, within the tolerance",
    DRAWN: "drawn flow, within the tolerance",
    FEW: "flow and cut among few edges, within the tolerance",
    WIDE: "bounds that are farther apart than the tolerance",
}


@one_line
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
        stack: ``[S, n, n]`` capacities, ready :class:`Capacities`, or :class:`Layers`; step 0 leads to the inputs.
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
    caps = stack if isinstance(stack, Capacities) else capacities(stack, rows)
    tops = _checked(tops, range(1, caps.steps + 1), "height")
    rows = _checked(rows, range(caps.n), "row")
    caps = caps.upto(max(tops))
    threads = _threads(threads)
    bounds = bounds and not explicit
    if len(rows) < caps.n and (len(tops) == 1 or len(rows) * 4 <= caps.n):
        found = [_few(caps.upto(top), rows, bounds, explicit, threads) for top in tops]
        units, proofs = np.stack([f.units for f in found]), np.stack([f.proofs for f in found])
        return Solution(caps, tops, rows, units, proofs, _stack_cuts([f.cuts for f in found]) if explicit else None)
    everything = len(tops) == 1 and rows == tuple(range(caps.n))
    if bounds and everything and relayable(caps) and caps.is_causal():
        whole = finish(caps, rows, relayed(caps, rows, True, threads), True, threads)
        return Solution(caps, tops, rows, whole.units[None], whole.proofs[None])
    all_rows = _columns(caps, tops, range(caps.n), bounds, explicit, threads)
    chosen = list(rows)
    units, proofs = all_rows.units.transpose(1, 2, 0)[:, chosen], all_rows.proofs.transpose(1, 2, 0)[:, chosen]
    cuts = all_rows.cuts.transpose(1, 2, 0, 3, 4)[:, chosen] if explicit else None
    return Solution(caps, tops, rows, units, proofs, cuts)


def capacities(stack: Any, rows: Sequence[int] | None) -> Capacities:
    """A stack in integers. Where few outputs are asked for, most are never read, so none is rounded before it is."""
    if isinstance(stack, Layers):
        return Streamed(stack, stack.bits())
    array = as_stack(stack)
    if rows is None or len(rows) == array.shape[1] or not relayable(array):
        return integers(array)
    return Streamed(Stack(array), bits_of(array))


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
    return at_least(threads, 1, "threads")


def _few(caps: Capacities, rows: Sequence[int], bounds: bool, explicit: bool, threads: int) -> Found:
    """One height, few sources. Axes: rows, sinks."""
    if bounds and relayable(caps) and ((causal := caps.is_causal()) or 2 * len(rows) < caps.n):
        return finish(caps, rows, relayed(caps, rows, causal, threads), causal, threads)
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
    known = None
    if bounds and len(tops) == 1:
        from attnflow.scoring.flow.bounds import known_by_hubs

        known = known_by_hubs(caps, sinks, threads)
    return run(caps, tops, sinks, known, theorem=bounds, explicit=explicit, threads=threads)
