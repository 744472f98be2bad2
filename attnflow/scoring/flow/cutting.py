"""Both bounds of one flow from few edges: all edges are added into the tokens where the cut lies.

Some inputs have their narrowest cut *between* the ends: a token that few others look at, or a few such tokens next to
each other. What enters them comes from thousands of tokens, a little from each, at every step; everywhere else there is
room to spare. So a flow is sought through all steps among the largest edges of each row, and all edges into the input.
Its value is a lower bound. Then the tokens on the sink's side of its smallest minimum cut get all of their edges too,
and the flow is sought again, until all of them have: then no edge that was left out crosses the cut. So the cut is one
of the whole network, of the same capacity, and an upper bound. The two differ by what was rounded down.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attnflow.scoring.flow.draw import largest_first
from attnflow.scoring.flow.integers import Capacities, Ints
from attnflow.scoring.flow.room import check_room
from attnflow.scoring.flow.sparse import Sparse
from attnflow.scoring.flow.thin import BITS, Edges, Places, as_small

_ROUNDS = 6  # times that tokens get all of their edges
_COLUMNS = 256  # tokens that may have all of them
_TOKENS = 8  # tokens that look most at the input and have all of them from the start


class Cutting:
    """Bounds of the flows from the output ``t``, with ``keep`` edges of each row; all capacities are read once."""

    def __init__(self, caps: Capacities, t: int, causal: bool, keep: int) -> None:
        self.caps, self.t, self.causal, self.n = caps, t, causal, t + 1 if causal else caps.n
        n, steps = self.n, caps.steps
        check_room(self.bytes_for(steps, n, keep), f"both bounds of flows over {n:,} tokens")
        self.own, self.row = np.zeros((2, steps, n), np.int64)
        self.columns: dict[int, Ints] = {}
        """All edges into some tokens, ``[steps, n]`` each; those of the output and the token's own are left out."""
        found: list[list[Edges]] = [[] for _ in range(steps)]
        for start, stop in caps.blocks(n):
            at = np.arange(start, stop)
            for step in range(steps):
                rows = caps.block(step, start, stop, stop if causal else None)[:, :n]
                self.own[step, start:stop] = rows[at - start, at]
                if start <= t < stop:
                    self.row[step, : rows.shape[1]] = rows[t - start]
                small = as_small(rows, caps.bits)
                small[at - start, at] = 0
                small[at == t] = 0
                best = largest_first(small, keep)
                units = np.take_along_axis(small, best, 1)
                heads = np.broadcast_to(at.astype(np.int32)[:, None], best.shape)
                found[step].append(Edges(heads, best.astype(np.int32), units).where(units > 0))
        self.edges = [Edges._make(map(np.concatenate, zip(*part, strict=True))) for part in found]

    @staticmethod
    def bytes_for(steps: int, tokens: int, keep: int) -> int:
        """Bytes that it takes where as many tokens get all of their edges as may have them."""
        return steps * tokens * (12 * keep + 8 * _COLUMNS) + Sparse.bytes_for(steps * tokens * (keep + 2 + _COLUMNS))

    def bounds(self, sink: int, upper: int, slack: int = 0) -> tuple[int, int]:
        """Lower and upper bound of the flow into one input, in units; no flow exceeds ``upper``.

        The search ends once the two are within ``slack`` units of each other.
        """
        lower, shift = 0, self.caps.bits - BITS
        self._add(np.array([sink]))
        self._add(np.argsort(-self.columns[sink][0], kind="stable")[:_TOKENS])
        for _ in range(_ROUNDS):
            net, source = self._network()
            enough = -(-(upper - slack) >> shift) if shift >= 0 else (upper - slack) << -shift  # rounded up
            value = net.flow(source, sink, enough)
            lower = max(lower, value << shift if shift >= 0 else value >> -shift)
            if upper - lower <= slack:
                break
            side = net.near_sink().reshape(self.caps.steps + 1, self.n)
            tokens = np.flatnonzero(side[:-2].any(0))  # only the output's row leads to the highest
            if len(tokens) > _COLUMNS:
                break
            new = tokens[~np.isin(tokens, list(self.columns))]
            if not len(new):
                upper = min(upper, self._capacity(side, tokens))
                break
            self._add(new)
        return lower, upper

    def _add(self, tokens: Places) -> None:
        """Read all edges into some tokens."""
        new = np.array([q for q in tokens.tolist() if q not in self.columns], np.int64)
        if not len(new):
            return
        found = np.zeros((len(new), self.caps.steps, self.n), np.int64)
        for start, stop in self.caps.blocks(self.n):
            if self.causal and stop <= new.min():
                continue
            for step in range(self.caps.steps):
                rows = self.caps.block(step, start, stop, stop if self.causal else None)
                seen = np.flatnonzero(new < rows.shape[1])
                found[seen, step, start:stop] = rows[:, new[seen]].T
        found[:, :, self.t] = 0
        found[np.arange(len(new)), :, new] = 0
        self.columns |= dict(zip(new.tolist(), found, strict=True))

    def _network(self) -> tuple[Sparse, int]:
        """Node h·n + k is token k at height h; and the node of the output at the top."""
        n, tokens = self.n, np.arange(self.n, dtype=np.int32)
        top, whole = self.caps.steps - 1, np.array(list(self.columns), np.int32)
        others, parts = tokens[tokens != self.t], []
        for step in range(self.caps.steps):
            units = as_small(self.row[step], self.caps.bits)
            edges = [Edges(np.full(n, self.t, np.int32), tokens, units)]
            if step < top:  # above, nothing is anywhere but on the output
                edges.append(Edges(others, others, as_small(self.own[step, others], self.caps.bits)))
                few = self.edges[step]
                edges.append(few.where(~np.isin(few.column, whole)))
                all_of = np.stack([self.columns[q][step] for q in whole.tolist()])
                heads, tails = np.broadcast_arrays(tokens, whole[:, None])
                edges.append(Edges(heads.ravel(), tails.ravel(), as_small(all_of, self.caps.bits).ravel()))
            parts += [Edges(e.row + (step + 1) * n, e.column + step * n, e.units).where(e.units > 0) for e in edges]
        heads, tails, units = map(np.concatenate, zip(*parts, strict=True))
        nodes = (self.caps.steps + 1) * n
        return Sparse(heads, tails, units, nodes), self.caps.steps * n + self.t

    def _capacity(self, side: npt.NDArray[np.bool_], tokens: Places) -> int:
        """What the edges into one side of a cut carry, in the whole network; its ``tokens`` have all of theirs."""
        total = 0
        for step in range(self.caps.steps):
            above, below = side[step + 1], side[step]
            if not above[self.t]:
                total += int(self.row[step, below].sum())
            if step == self.caps.steps - 1:
                break  # nothing else is up there
            outside = ~above
            outside[self.t] = False
            total += int(self.own[step, outside & below].sum())
            total += sum(int(self.columns[int(q)][step, outside].sum()) for q in tokens if below[q])
        return total
