"""Flows that no search is needed for: the cuts at both ends of the network, and flows in three hops that meet them.

On deep attention with a residual connection the narrowest place is nearly always at an end: what leaves the output or
what enters the input. The steps between have room to spare, so a flow that fills the end need not be searched for: it
can be laid. Both bounds are integers. Where they meet, the flow is exact and the cut at the end proves it.

**Upper bound.** Let the output's own token be the only node on its side of the cut for the highest p steps and none
below: what crosses is what the token hands out in these steps, and its own edge in the next,

    F ≤ Σ_{h ≤ p} Σ_{k ≠ t} A_{S-h}[t, k]  +  A_{S-p}[t, t],        p = 0, 1, 2 (p = 0: the row sum)

where with a causal mask only tokens k ≥ j count, as no other can reach j. The same at the input, upside down.

**Lower bound.** Three blocks of steps: t *spreads* what it holds to tokens k, tokens *relay* to tokens q, and j
*gathers*. Inside a block a hop may use the edge of any of its steps, so its capacity is their sum; before and after
it the flow stays on its token, whose own edges, at least ``chain`` wide, carry all that passes. This is a flow of the
network as long as no token has to carry more than its ``chain``. Which tokens hand what to which is settled by one
pass over them; the kernel says how. No network is searched, no flow is taken back, and ``certify`` uses none of this.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnflow.scoring.flow.integers import Capacities, Ints
from attnflow.scoring.flow.room import check_room
from attnflow.scoring.flow.threads import share
from attnflow.scoring.flow.workspace import ENDLESS

DEEP = 9  # steps from which there is one for each part
WIDE = 24  # nodes from which the bounds are cheaper than the search
_TIERS = 3
_WORK = 128  # edges between tokens, times the number of tokens, that are looked at for one input where a slack is given
_PROBES = 24  # inputs that are tried before all others


class Parts(NamedTuple):
    """Where the blocks of steps begin: gather, relay, the second part of relay, spread, and their end."""

    gather: int
    relay: int
    half: int
    spread: int
    end: int


def parts_of(steps: int) -> Parts:
    """Three tenths of the middle steps gather, three tenths spread; at each end three steps stand alone.

    >>> parts_of(30), parts_of(9)
    (Parts(gather=3, relay=10, half=14, spread=20, end=27), Parts(gather=3, relay=4, half=5, spread=5, end=6))
    """
    first, last = _TIERS, steps - _TIERS
    side = max(1, round((last - first) * 0.29))
    relay, spread = first + side, last - side
    return Parts(first, relay, relay + max(1, round((spread - relay) * 0.4)), spread, last)


def relayable(network: Any) -> bool:
    """Whether a network, or an array ``[S, n, n]``, is deep and wide enough for the bounds to be worth their cost."""
    steps, n = network.shape[:2] if isinstance(network, np.ndarray) else (network.steps, network.n)
    return bool(steps >= DEEP and n >= WIDE)


class Bounds(NamedTuple):
    """Proven bounds of the flows from some outputs at the top to all inputs, in units: ``[rows, n]`` each."""

    lower: Ints
    upper: Ints


def room_for(nodes: int, rows: int) -> int:
    """Bytes that the sums of capacities take: seven matrices, and two more where several outputs share them."""
    return 8 * nodes * nodes * (7 if rows == 1 else 9)


def relayed(caps: Capacities, rows: Sequence[int], causal: bool, threads: int = 1, slack: int = 0) -> Bounds:
    """Bounds of the flows from ``rows`` at the top of the network; with one row, only the nodes it can see are read.

    No flow is made larger once it is within ``slack`` units of its upper bound. With a slack only the way to part the
    steps that serves most is tried, and not for long: what is left open takes less time in
    :mod:`attnflow.scoring.flow.draw`.
    """
    nodes = max(rows) + 1 if causal else caps.n
    check_room(room_for(nodes, len(rows)), f"the bounds of flows over {nodes:,} tokens")
    blocks = _Blocks(caps, nodes, rows, causal, threads)
    lower, upper = np.zeros((2, len(rows), caps.n), np.int64)
    inside = threads if len(rows) == 1 else 1  # one row is shared out by its inputs, several are done side by side

    def row(start: int, stop: int) -> None:
        for a in range(start, stop):
            lower[a, :nodes], upper[a, :nodes] = blocks.bounds(rows[a], causal, inside, slack)

    part = max(1, len(rows) // (4 * threads))
    share(row, [(a, min(a + part, len(rows))) for a in range(0, len(rows), part)], threads)
    return Bounds(lower, upper)


class _Blocks:
    """The sums of capacities over blocks of steps that the kernel reads; columns are held transposed."""

    def __init__(self, caps: Capacities, nodes: int, rows: Sequence[int], causal: bool, threads: int) -> None:
        self.caps, self.n, self.parts, self.causal = caps, nodes, parts_of(caps.steps), causal
        n, steps = nodes, caps.steps
        self.columns = tuple(np.zeros((n, n), np.int64) for _ in range(_TIERS + 1))
        self.wide, self.narrow, self.high = (np.zeros((n, n), np.int64) for _ in range(3))
        self.own = np.zeros((steps, n), np.int64)
        self.rows = {t: np.zeros((steps, n), np.int64) for t in rows}
        self.most = 2**62 // steps  # of one edge, so that no sum overflows; to take less of it is safe
        share(self._fill, [(a, min(b, n)) for a, b in caps.blocks() if a < n], threads)
        self.sums = [c.sum(1)[:, None] if len(rows) == 1 else c.cumsum(1) for c in self.columns[:_TIERS]]
        self.chain = np.ascontiguousarray(self.own[1:-1].min(0))
        held = [self.own[0], self.own[1], np.minimum(self.own[2], self.chain)]
        self.below = np.ascontiguousarray(np.stack(held, 1))

    def _fill(self, start: int, stop: int) -> None:
        """Read rows start … stop of every step once and add them to the sums that they belong to."""
        p, n = self.parts, self.n
        for step in range(self.caps.steps):
            rows = self.caps.block(step, start, stop, stop if self.causal else None)[:, :n]
            seen = rows.shape[1]
            at = np.arange(start, stop)
            self.own[step, start:stop] = rows[at - start, at]
            if step < p.gather:
                self.columns[step][:seen, start:stop] = rows.T
            elif step < p.relay:
                self.columns[_TIERS][:seen, start:stop] += np.minimum(rows, self.most).T
            elif step < p.spread:
                less = np.minimum(rows, self.most)
                self.wide[start:stop, :seen] += less
                if step < p.half:
                    self.narrow[start:stop, :seen] += less
            elif step < p.end:
                self.high[start:stop, :seen] += np.minimum(rows, self.most)
            for t in self.rows.keys() & range(start, stop):
                self.rows[t][step, :seen] = rows[t - start]

    def bounds(self, t: int, causal: bool, threads: int, slack: int = 0) -> tuple[Ints, Ints]:
        row, p = self.rows[t], self.parts
        top = self.caps.steps - 1
        upper = np.minimum(self._out_of(t, row, causal), self._into(t, causal))
        lower = np.zeros_like(upper)
        if causal:
            upper[t + 1 :] = 0
            upper[t] = lower[t] = self.own[:, t].min()
        own = self.own[:, t]
        budgets = np.array([own[top], own[top - 1], min(own[top - 2], self.chain[t])], np.int64)
        goal = upper - slack
        for gather, mid, spread in itertools.islice(self._splits(), 1 if slack else None):
            if not (lower < goal).any():
                break
            tiers = np.stack([row[top - 1], row[top - 2], np.minimum(row[spread : p.end], self.most).sum(0)])
            columns = (*self.columns[:_TIERS], gather)
            work = _WORK * self.n if slack else ENDLESS
            lay = functools.partial(self._lay, t, causal, row[top], tiers, budgets, columns, mid, goal, lower, work)
            few = slice(0, self.n, self.n // _PROBES + 1)
            lay([(few.start, few.step)])
            if 4 * int((lower[few] < goal[few]).sum()) > 3 * len(lower[few]):
                break  # three hops do not span this network
            workers = min(threads, 1 + int((lower < goal).sum()) * self.n // 20_000)
            lay([(begin, workers) for begin in range(workers)])
        return lower, upper

    def _splits(self) -> Iterator[tuple[Ints, Ints, int]]:
        """What is gathered over, what is relayed over, and where the spread begins: three ways to part the steps.

        The first serves most. Spreading over more steps helps outputs that hand little out, gathering over more steps
        helps inputs that few tokens look at.
        """
        p, gather = self.parts, self.columns[_TIERS]
        yield gather, self.wide, p.spread
        yield gather, self.narrow, p.half
        if p.half < p.spread and len(self.rows) == 1:  # nobody needs the others any more
            gather += self.narrow.T
            self.wide -= self.narrow
            yield gather, self.wide, p.spread
        elif p.half < p.spread:
            yield np.ascontiguousarray(gather + self.narrow.T), self.wide - self.narrow, p.spread

    def _lay(
        self, t: int, causal: bool, row: Ints, tiers: Ints, budgets: Ints, columns: tuple[Ints, ...], mid: Ints,
        goal: Ints, lower: Ints, work: int, jobs: Sequence[tuple[int, int]],
    ) -> None:  # fmt: skip
        """Raise ``lower`` up to ``goal``. A job is the first input and the stride; all are done at the same time."""
        from attnflow.scoring.flow import compiled

        def some(begin: int, stride: int) -> None:
            compiled.relay(
                causal, t, row, tiers, budgets, columns, self.below, mid, self.high, self.chain, goal, lower,
                begin, stride, work,
            )  # fmt: skip

        share(some, jobs, len(jobs))

    def _out_of(self, t: int, row: Ints, causal: bool) -> Ints:
        """The cuts at the output: what t hands out in its highest steps to tokens that can reach the input."""
        total, cuts = np.zeros(self.n, np.int64), []
        for step in range(self.caps.steps - 1, self.caps.steps - 1 - _TIERS, -1):
            others = row[step].copy()
            others[t] = 0
            total = total + (np.cumsum(others[::-1])[::-1] if causal else others.sum())
            cuts.append(total + row[step, t])
        best: Ints = np.min(cuts, axis=0)
        return best

    def _into(self, t: int, causal: bool) -> Ints:
        """The cuts at the input: what enters its token in its lowest steps from tokens that the output can reach."""
        total, cuts = np.zeros(self.n, np.int64), []
        last = t + 1 if causal else self.n
        for step in range(_TIERS):
            own = np.where(np.arange(self.n) < last, self.own[step], 0)
            total = total + self.sums[step][:, min(last, self.sums[step].shape[1]) - 1] - own
            cuts.append(total + own)
        best: Ints = np.min(cuts, axis=0)
        return best
