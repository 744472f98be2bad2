"""Lower bounds in a thinned network: few edges of each token, and all edges that the ends of one pair need.

Real attention gives most of each row to a few tokens, and between the two ends of a network there is room to spare.
So a flow that fills an end can be found among few edges: the largest of each row in some of the steps, all edges of the
output's and the input's own tokens there, and of the tokens that the output gives most to and the input takes most
from. In the other steps everything stays on its token. Whatever flows there is a flow of the whole network, so its
value is a lower bound. It is found by scipy's maximum flow in 29-bit integers, rounded down.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attnflow.scoring.flow.integers import Capacities, Ints
from attnflow.scoring.flow.room import check_room

Places = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
BITS = 29  # what scipy's 32-bit capacities hold
MOST = np.iinfo(np.int32).max
_ENDS = 3  # steps at each end that are kept
_BETWEEN = 4  # and between them
_HEAVY = 4  # tokens next to each end whose rows or columns are kept whole


class Edges(NamedTuple):
    """Edges of one step: from token ``row`` to token ``column``."""

    row: Small
    column: Small
    units: Small

    def where(self, kept: npt.NDArray[np.bool_]) -> Edges:
        """Some of them."""
        return Edges(self.row[kept], self.column[kept], self.units[kept])


def as_small(units: Ints, bits: int) -> Small:
    """Units of 2**-bits as units of 2⁻²⁹, rounded down."""
    shift = bits - BITS
    small: Small = np.minimum(units >> shift if shift >= 0 else units << -shift, MOST).astype(np.int32)
    return small


class Thin:
    """The thinned network below one output ``t``; built in one pass over the capacities.

    ``keep`` is the number of edges per row that it holds; it can be asked for flows among fewer of them. ``sinks`` are
    the inputs that it will be asked for.
    """

    def __init__(self, caps: Capacities, t: int, sinks: Places, causal: bool, keep: int) -> None:
        self.caps, self.t, self.causal, self.keep = caps, t, causal, keep
        self.n = t + 1 if causal else caps.n
        steps = caps.steps
        between = np.linspace(_ENDS, steps - _ENDS - 1, _BETWEEN).round().astype(int)
        self.kept = sorted({*range(_ENDS), *between.tolist(), *range(steps - _ENDS, steps)} & set(range(steps)))
        held = 12 * keep + 4 * (len(sinks) * (1 + _HEAVY) + 1 + _HEAVY)  # bytes per token and step
        check_room(held * self.n * len(self.kept), f"a thinned network of {self.n:,} tokens for {len(sinks)} inputs")
        self.tokens = np.arange(self.n, dtype=np.int32)
        self.own = np.zeros((steps, self.n), np.int32)
        self.heavy_rows = self._heaviest(caps.block(steps - 1, t, t + 1)[0, : self.n])
        self.heavy_columns: dict[int, Places] = {}
        wanted = self._wanted(sinks)
        self.columns = {int(q): np.zeros((len(self.kept), self.n), np.int32) for q in wanted}
        self.rows = {int(k): np.zeros((len(self.kept), self.n), np.int32) for k in (t, *self.heavy_rows)}
        self.edges: list[Edges] = []
        self.ranks: list[Small] = []  # of each edge in its row, the largest is 0
        for step in range(steps):
            self._read(step)

    def left_out(self, keep: int) -> float:
        """The share of edges that it does without for ``keep`` of each row, whole rows and columns not counted."""
        whole = self.caps.steps * (self.n * (self.n + 1) // 2 if self.causal else self.n**2)
        return 1 - (sum(int((ranks < keep).sum()) for ranks in self.ranks) + self.own.size) / whole

    def _heaviest(self, capacities: Ints) -> Places:
        """The tokens with the largest of these capacities, the output itself not among them."""
        capacities = capacities.copy()
        capacities[self.t] = 0
        return np.argsort(-capacities, kind="stable")[:_HEAVY]

    def _wanted(self, sinks: Places) -> set[int]:
        """The tokens whose columns are kept whole: the inputs and those that look most at them in the lowest step."""
        lowest = np.zeros((len(sinks), self.n), np.int64)
        for start, stop in self.caps.blocks():
            if start < self.n:
                lowest[:, start : min(stop, self.n)] = self.caps.block(0, start, min(stop, self.n))[:, sinks].T
        for sink, into in zip(sinks.tolist(), lowest, strict=True):
            into[sink] = 0
            self.heavy_columns[sink] = self._heaviest(into)
        return {int(q) for sink, heavy in self.heavy_columns.items() for q in (sink, *heavy)}

    def _read(self, step: int) -> None:
        """The largest edges of each row of one step; whole rows and columns and the tokens' own edges are put aside."""
        n = self.n
        found, ranks = [Edges._make([np.zeros(0, np.int32)] * 3)], [np.zeros(0, np.int32)]
        at = self.kept.index(step) if step in self.kept else None
        names = list(self.columns)
        for start, stop in self.caps.blocks():
            stop = min(stop, n)
            if start >= stop:
                break
            read = self.caps.block(step, start, stop, stop if self.causal else None)
            rows = as_small(read[:, :n], self.caps.bits)
            places = self.tokens[start:stop]
            self.own[step, start:stop] = rows[places - start, places]
            if at is None:
                continue
            inside = [q for q in names if q < rows.shape[1]]
            for q, column in zip(inside, rows[:, inside].T, strict=True):
                self.columns[q][at, start:stop] = column
            for k in self.rows.keys() & range(start, stop):
                self.rows[k][at, : rows.shape[1]] = rows[k - start]
            rows[places - start, places] = 0
            few = min(self.keep, rows.shape[1])
            best = np.argpartition(-rows, few - 1, axis=1)[:, :few]
            best = np.take_along_axis(best, np.argsort(-np.take_along_axis(rows, best, 1), axis=1), 1)
            units = np.take_along_axis(rows, best, 1).ravel()
            used = units > 0
            found.append(Edges(np.repeat(places, few), best.ravel().astype(np.int32), units).where(used))
            ranks.append(np.tile(np.arange(few, dtype=np.int32), len(places))[used])
        self.edges.append(Edges._make(map(np.concatenate, zip(*found, strict=True))))
        self.ranks.append(np.concatenate(ranks))

    def lower(self, sink: int, keep: int | None = None) -> int:
        """A lower bound of the flow from the output to ``sink``, in units, among ``keep`` edges of each row."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import maximum_flow

        low, shift = sink if self.causal else 0, self.caps.bits - BITS
        size, height, chain = self.n - low, 0, np.full(self.n, MOST, np.int32)
        parts: list[Edges] = []
        for step in range(self.caps.steps):
            if step not in self.kept:
                chain = np.minimum(chain, self.own[step])
                if step + 1 in self.kept:  # one edge for all steps in which everything stays
                    parts.append(self._placed(self._stays(chain), height, low))
                    height, chain = height + 1, np.full(self.n, MOST, np.int32)
                continue
            all_edges = (self._stays(self.own[step]), *self._hops(step, sink, keep or self.keep))
            parts += [self._placed(edges, height, low) for edges in all_edges]
            height += 1
        heads, tails, units = map(np.concatenate, zip(*parts, strict=True))
        nodes = (height + 1) * size
        graph = csr_array((units, (heads, tails)), shape=(nodes, nodes))
        value = int(maximum_flow(graph, height * size + self.t - low, sink - low).flow_value)
        return value << shift if shift >= 0 else value >> -shift

    def _stays(self, units: Small) -> Edges:
        return Edges(self.tokens, self.tokens, units)

    def _hops(self, step: int, sink: int, keep: int) -> list[Edges]:
        """The edges between tokens of one step that count for one input, each once."""
        at, tokens = self.kept.index(step), self.tokens
        columns = [sink, *self.heavy_columns[sink].tolist()]
        whole_row, whole_column = np.zeros((2, self.n), bool)
        whole_row[list(self.rows)], whole_column[columns] = True, True
        few = self.edges[step]
        found = [few.where(~whole_row[few.row] & ~whole_column[few.column] & (self.ranks[step] < keep))]
        for k, rows in self.rows.items():
            others = tokens != k
            found.append(Edges(np.full(others.sum(), k, np.int32), tokens[others], rows[at][others]))
        for q in dict.fromkeys(columns):
            others = ~whole_row & (tokens != q)
            found.append(Edges(tokens[others], np.full(others.sum(), q, np.int32), self.columns[q][at][others]))
        return found

    def _placed(self, edges: Edges, height: int, low: int) -> Edges:
        """The edges between the nodes of two heights, numbered in the network of the tokens from ``low`` on."""
        size = self.n - low
        inside = (edges.row >= low) & (edges.column >= low) & (edges.units > 0)
        above, below = (height + 1) * size - low, height * size - low
        return Edges(edges.row[inside] + above, edges.column[inside] + below, edges.units[inside])
