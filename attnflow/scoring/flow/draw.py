"""Lower bounds by drawing: an input's flow is drawn up in proportion to capacities, the output's is searched for.

With thousands of tokens an input takes its flow from thousands of tokens, a little from each, and to find such a flow
edge by edge is slow. But far from its end there is room to spare, so it can be written down. Three parts, from below:

1. *Gather.* The input takes ``D[q]`` from each token: all that the lowest step gives, then what the two steps above it
   and the block above them can add, as far as its own edges carry it.
2. *Draw, twice.* Over a block of steps with summed capacities A, token q draws its D[q] from the tokens above in
   proportion to capacity: ``f[k, q] = A[k, q]·v[q]``, ``v = D / column sum``. As v ≤ 1, no edge is overfull. Token k
   then needs ``P[k] = Σ_q f[k, q]``: a product of matrices for many inputs at once. The second block draws P up.
3. *Search.* In the steps above, a flow from the output into the tokens, at most P[k] into each, among the largest
   edges of each row. After two draws P is smooth, so the search is easy; all inputs share its network, and each flow
   begins with the one before it (rerouted.py). Where few edges do not bring enough, it is sought again among more, and
   then with all edges into the tokens that got too little: those are tokens that few others look at, so none of their
   edges is among the largest of a row.

The value of the search is a lower bound: where a token gets p[k] < P[k], its row of the drawn flow is scaled by
p[k]/P[k]. Inside a block a token's own edge carries at most what the token has from above, P[k], and what others hand
it, D[k] − f[k, k]: the two together are held below its narrowest own edge.

Floats are rounded so that each number is at most the true one: see ``_SURE``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attnflow.scoring.flow.integers import F64, Capacities, Ints
from attnflow.scoring.flow.rerouted import Rerouted
from attnflow.scoring.flow.room import check_room
from attnflow.scoring.flow.sparse import Sparse
from attnflow.scoring.flow.thin import BITS, MOST, Edges, Places, Small, as_small

F32 = npt.NDArray[np.float32]
_TIERS = 3  # the lowest steps, which stand alone
_CHUNK = 256  # terms of a product that are summed in single precision
_BATCH = 128  # inputs whose products are taken together
# Sums of 256 products of non-negative floats are off by less than 258·2⁻²⁴ of their value (Higham 2002, section 3.1);
# twice that also covers the rounding of what goes in.
_SURE = 1 - 2 * (_CHUNK + 2) * 2.0**-24
_ROUNDS = 2  # times that whole columns are added
_COLUMNS = 64  # columns that are added at a time
_STAY = 0.2  # the share of a token's own edge that counts as its capacity to itself inside a block
_HANDS = 0.9  # the share of its own edge that a token may hand to the input


class Heights(NamedTuple):
    """Where the parts begin: gather, the two blocks of drawing, and the search."""

    gather: int
    low: int
    high: int
    search: int


def heights_of(steps: int) -> Heights:
    """Three blocks of three twentieths of the steps each; the search has what is above them.

    >>> heights_of(30), heights_of(9)
    (Heights(gather=3, low=7, high=11, search=15), Heights(gather=3, low=4, high=5, search=6))
    """
    size = max(1, round((steps - _TIERS) * 0.15))
    return Heights(_TIERS, _TIERS + size, _TIERS + 2 * size, _TIERS + 3 * size)


class Draw:
    """Flows from one output ``t`` into ``sinks``; all capacities are read once.

    ``keep`` is the number of edges of each row in the steps that are searched, ``more`` the number for what they leave
    open.
    """

    def __init__(self, caps: Capacities, t: int, sinks: Places, causal: bool, keep: int, more: int = 0) -> None:
        self.caps, self.t, self.sinks, self.causal = caps, t, sinks, causal
        self.keep, self.more = keep, max(keep, more)
        self.n, self.parts = t + 1 if causal else caps.n, heights_of(caps.steps)
        n = self.n
        edges = n * (self.keep + self.more + 4 + (_ROUNDS * _COLUMNS if more else 0))
        searched = Sparse.bytes_for(edges * (caps.steps - self.parts.search))
        check_room(8 * n * n + 32 * len(sinks) * n + searched, f"flows of {len(sinks)} inputs over {n:,} tokens")
        self.own = np.zeros((caps.steps, n), np.int64)
        self.columns = np.zeros((_TIERS + 1, len(sinks), n))
        self.blocks: tuple[F32, F32] = (np.zeros((n, n), np.float32), np.zeros((n, n), np.float32))
        self.row = np.zeros((caps.steps, n), np.int64)
        # The largest edges of each row, and those that come after them.
        self.found: list[list[list[Edges]]] = [[[] for _ in range(caps.steps)] for _ in range(2)]
        for start, stop in caps.blocks(n):
            self._read(start, stop)
        # A little less: a float may be larger than the integer that it stands for.
        self.chain = caps.floats(self.own[1 : self.parts.search].min(0)) * (1 - 1e-9)
        own = caps.floats(self.own)
        own[_TIERS - 1] = own[_TIERS - 1 : self.parts.low].min(0)  # what is gathered over the block passes all of these
        self.budgets = own[:_TIERS, sinks]
        for block in self.blocks:
            np.fill_diagonal(block, _STAY * self.chain)
        self.sums = [block.sum(0, dtype=np.float64) for block in self.blocks]
        self.whole = np.zeros(n, bool)  # tokens into which all edges are searched
        self.source = (caps.steps - self.parts.search) * n + t
        self.network = self._network(self.found[0])

    def _read(self, start: int, stop: int) -> None:
        """Rows start … stop of every step: into the input's columns, the blocks, or the edges of the search."""
        p, at = self.parts, np.arange(start, stop)
        sums = np.zeros((2, stop - start, stop if self.causal else self.n))
        for step in range(self.caps.steps):
            rows = self.caps.block(step, start, stop, stop if self.causal else None)[:, : self.n]
            self.own[step, start:stop] = rows[at - start, at]
            if start <= self.t < stop:
                self.row[step, : rows.shape[1]] = rows[self.t - start]
            if step < p.low:
                seen = self.sinks < rows.shape[1]
                part = self.columns[min(step, _TIERS)]
                part[seen, start:stop] += self.caps.floats(rows[:, self.sinks[seen]].T)
            elif step < p.search:
                sums[int(step >= p.high)] += self.caps.floats(rows)
            elif step < self.caps.steps - 1:
                for found, edges in zip(self.found, self._largest(rows, start), strict=True):
                    found[step].append(edges)
        for block, total in zip(self.blocks, sums, strict=True):
            block[start:stop, : sums.shape[2]] = total * (1 - 2.0**-22)

    def _largest(self, rows: Ints, start: int) -> tuple[Edges, Edges]:
        """The largest edges of some rows, and the next: not the output's row and the tokens' own edges."""
        small = as_small(rows, self.caps.bits)
        at = np.arange(start, start + len(small))
        small[at - start, at] = 0
        small[at == self.t] = 0
        best = largest_first(small, self.more)
        units = np.take_along_axis(small, best, 1)
        order = largest_first(units, self.keep, others=True)
        best, units = np.take_along_axis(best, order, 1), np.take_along_axis(units, order, 1)
        heads = np.broadcast_to(at.astype(np.int32)[:, None], best.shape)
        first = np.broadcast_to(np.arange(best.shape[1]) < self.keep, best.shape)
        edges = Edges(heads, best.astype(np.int32), units)
        return edges.where((units > 0) & first), edges.where((units > 0) & ~first)

    def _network(self, *found: list[list[Edges]]) -> Rerouted:
        """The network of the search: node h·n + k is token k at height h; the last node takes what the input draws.

        The edges into the last node come first, one from each node of the lowest height.
        """
        n, tokens = self.n, np.arange(self.n, dtype=np.int32)
        count = self.caps.steps - self.parts.search
        nodes = (count + 1) * n + 1
        parts = [Edges(tokens, np.full(n, nodes - 1, np.int32), np.ones(n, np.int32))]
        for height, step in enumerate(range(self.parts.search, self.caps.steps)):
            whole = as_small(self.row[step], self.caps.bits)
            edges = [Edges(np.full(n, self.t, np.int32), tokens, whole)]
            if step < self.caps.steps - 1:  # above, nothing is anywhere but on the output
                others = tokens[tokens != self.t]
                edges.append(Edges(others, others, as_small(self.own[step, others], self.caps.bits)))
                edges += [few for part in found for few in part[step]]
            parts += [Edges(e.row + (height + 1) * n, e.column + height * n, e.units) for e in edges]
        heads, tails, units = map(np.concatenate, zip(*parts, strict=True))
        used = units > 0
        return Rerouted(heads[used], tails[used], units[used], nodes, self.source)

    def lower(self, upper: Ints, slack: int = 0) -> Ints:
        """Lower bounds of the flows into the inputs, ``[sinks]``, in units; no flow exceeds ``upper`` ``[sinks]``.

        A search ends once it is within ``slack`` units of the upper bound.
        """
        found, _ = self._lower(self.network, np.arange(len(self.sinks)), upper, slack)
        for _ in range(1 + _ROUNDS if self.more > self.keep else 0):
            left = np.flatnonzero(upper - found > slack)
            if not len(left):
                break
            better, short = self._lower(self._network(*self.found), left, upper, slack)
            found[left] = np.maximum(found[left], better)
            starved = np.argsort(-short, kind="stable")[:_COLUMNS]
            starved = starved[(short[starved] > slack // 16) & ~self.whole[starved]]
            if not len(starved):
                break
            self._add_columns(starved)
        return found

    def _lower(self, network: Rerouted, places: Places, upper: Ints, slack: int) -> tuple[Ints, Ints]:
        """Lower bounds for some of the inputs among the edges of one network, and what each token lacked, in units.

        What a token lacked is the most that it lacked for one of the inputs that are still open.
        """
        found: list[int] = []
        short = np.zeros(self.n, np.int64)
        for start in range(0, len(places), _BATCH):
            part = places[start : start + _BATCH]
            for wanted, most in zip(
                self._wanted(part, self.caps.floats(upper[part])), upper[part].tolist(), strict=True
            ):
                found.append(self._searched(network, wanted, most, slack))
                if most - found[-1] > slack:
                    short = np.maximum(short, network.left)
        shift = self.caps.bits - BITS
        return np.array(found, np.int64), short << shift if shift >= 0 else short >> -shift

    def _add_columns(self, tokens: Places) -> None:
        """Add all edges into some tokens to those that are searched; none is there twice."""
        self.whole[tokens] = True
        for part in self.found:
            for step, edges in enumerate(part):
                part[step] = [e.where(np.isin(e.column, tokens, invert=True)) for e in edges]
        first = int(tokens.min()) if self.causal else 0
        for start, stop in self.caps.blocks(self.n):
            if stop <= first:
                continue
            at = np.arange(start, stop)
            for step in range(self.parts.search, self.caps.steps - 1):
                rows = self.caps.block(step, start, stop, stop if self.causal else None)[:, : self.n]
                inside = tokens[tokens < rows.shape[1]]
                units = as_small(rows[:, inside], self.caps.bits)
                units[at == self.t] = 0
                units[at[:, None] == inside] = 0
                heads, columns = np.broadcast_arrays(at[:, None].astype(np.int32), inside.astype(np.int32))
                self.found[1][step].append(Edges(heads, columns, units).where(units > 0))

    def _wanted(self, part: Places, upper: F64) -> F64:
        """What some inputs could take from each token below the steps that are searched: ``[inputs, n]``."""
        wanted = self._gathered(part, upper)
        for block, sums in zip(self.blocks, self.sums, strict=True):
            share = np.divide(wanted * (1 - 1e-6), sums, out=np.zeros_like(wanted), where=sums > 0)
            # What a token cannot draw from others stays on it.
            stays = np.maximum(wanted * (1 - 1e-6) - sums * (1 + 1e-6), 0)
            # Its own edges carry what it takes in from above, and what others hand it.
            most = self.chain - np.maximum(wanted - stays, 0)
            wanted = np.minimum(self._drawn(np.minimum(share, 1).astype(np.float32), block) + stays, most)
        return wanted

    def _gathered(self, part: Places, upper: F64) -> F64:
        """What each input takes from each token, ``[inputs, n]``: all of the lowest step, then what is missing."""
        sinks = self.sinks[part]
        at = np.arange(len(sinks))
        out, left = np.zeros((len(sinks), self.n)), upper.copy()
        for tier, columns in enumerate(self.columns[:, part]):
            others = columns.copy()
            others[at, sinks] = 0
            total = others.sum(1)
            taken = np.minimum(total, left)
            out += others * np.divide(taken, total, out=np.zeros_like(total), where=total > 0)[:, None]
            left = left - taken
            if tier < _TIERS:
                left = np.minimum(left, self.budgets[tier, part])
        out[at, sinks] += left
        least: F64 = np.minimum(out * (1 - 1e-9), _HANDS * self.chain)
        return least

    def _drawn(self, share: F32, block: F32) -> F64:
        """``share @ block.T``, at most the true value: ``[inputs, n]``."""
        out = np.zeros(share.shape)
        for start in range(0, self.n, _CHUNK):
            columns = slice(start, start + _CHUNK)
            above = slice(start if self.causal else 0, None)
            out[:, above] += share[:, columns] @ block[above, columns].T
        return out * _SURE

    def _searched(self, network: Rerouted, wanted: F64, upper: int, slack: int) -> int:
        """A flow from the output into the tokens, at most ``wanted`` into each, in units."""
        units = wanted * 2.0**BITS
        units *= min(1.0, MOST / max(units.sum() * (1 + 1e-9), 1.0))  # what arrives in all must be a 32-bit number
        small: Small = units.astype(np.int32)
        shift = self.caps.bits - BITS
        enough = -(-(upper - slack) >> shift) if shift >= 0 else (upper - slack) << -shift  # rounded up
        value = network.flow(small, enough)
        return value << shift if shift >= 0 else value >> -shift


def largest_first(units: Small, count: int, others: bool = False) -> npt.NDArray[np.intp]:
    """Columns of the ``count`` largest of each row, in no order, and after them the ``others`` if asked for.

    >>> largest_first(np.array([[1, 9, 2]], np.int32), 1).tolist()
    [[1]]
    """
    count = min(count, units.shape[1])
    best = np.argpartition(-units, count - 1, axis=1)
    return best if others else best[:, :count]
