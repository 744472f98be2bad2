# mypy: ignore-errors
# numba reads these functions and infers their types; annotations would have no effect.
"""All flows into one sink after another: the compiled part of the engine that the solver calls.

Edges are tried in the order of their index, and that order decides how many waves a pair needs. So the nodes of each
height are renumbered for each sink, the most useful first (see ``orders`` in solver.py); outputs are in the
caller's numbers again. What the nodes of a height can pass on to the sink is shared by all sources above.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from attnflow.flow.waves import CUT, U0, U1, U2, U3, U4, U6, U63, Work, inner, solve_pair

CLOSED = 1  # a closed form of one or two steps
THEOREM = 4  # the saturation theorem: no flow was solved
FLOOR = 5  # a lower bound that was proven before met the upper bound: no flow was solved
FAILED = -1  # the independent check of the preflow did not hold


@inner
def _is_preflow(w, n, words, height, source, sink, value, gets):
    """Whether no edge carries more than its capacity, no node sends more than it gets, and the sink gets value."""
    cap, flow, used = w.cap, w.flow, w.used
    for y in range(height * n):
        gets[y] = 0
    top = height - U1
    for k in range(n):
        gets[top * n + k] = cap[(top * n + source) * n + k]
    good = True
    for step in range(top):
        h = top - step
        for i in range(n):
            left = gets[h * n + i]
            row = (h - U1) * n + i
            for k in range(n):
                if (used[row * words + (k >> U6)] >> (k & U63)) & U1:
                    f = flow[row * n + k]
                    good &= f >= 0 and f <= cap[row * n + k] and (h > U1 or k == sink)
                    left -= f
                    gets[(h - U1) * n + k] += f
            good &= left >= 0
    return good and (gets[sink] == value or height == U1)


@inner
def _renumber(w, cap, order, c, n, words, steps):
    """Capacities and edge sets of one sink, in the order of its nodes."""
    for y in range(steps * n * words):
        w.fresh[y] = U0
    for h in range(steps):
        for a in range(n):
            row = (h * n + order[c, h + U1, a]) * n
            new = h * n + a
            for b in range(n):
                x = cap[row + order[c, h, b]]
                w.cap[new * n + b] = x
                w.fresh[new * words + (b >> U6)] |= np.uint64(x > 0) << (b & U63)


@inner
def _through_two(w, n, height, level, sums):
    """Fill sums[k] with what node (height - 1, k) can send straight into saturated nodes two steps down."""
    for k in range(n):
        sums[k] = 0
        row = ((height - U2) * n + k) * n
        for q in range(n):
            if w.limit[(height - U2) * n + q] >= level:
                sums[k] += w.cap[row + q]


@inner
def _saturates(w, n, height, source, level, two, sums, inside):
    """Saturation theorem: does the source reach ``level`` through nodes that each can pass ``level`` on?

    Nodes ``k`` with limit >= level, entered with x_k, sum x <= level, go on by the combination of their own flows
    with weights x_k / level, which sum to at most one: no capacity is exceeded. Nodes of the first set (one step
    down) take the weight a(U) / level for a chosen subset U; the rest goes on to the second set (two steps down)
    through the remaining share of the capacities. The factor 1 - 1e-12 keeps float64 rounding on the safe side.
    """
    low = (height - U1) * n
    row = (low + source) * n
    taken = np.int64(0)
    for k in range(n):
        inside[k] = 0
        if w.limit[low + k] >= level:
            taken += w.cap[row + k]
    if taken >= level or not two:
        return taken >= level
    taken = np.int64(0)
    share = 1.0
    for _ in range(12):
        total = taken
        grown = np.int64(0)
        for k in range(n):
            if inside[k] == 0:
                x = w.cap[row + k]
                y = sums[k] if taken == 0 else np.int64(share * sums[k])
                if x > y and w.limit[low + k] >= level:
                    inside[k] = 1
                    grown += x
                else:
                    total += min(x, y)
        if grown == 0:
            return total >= level
        taken += grown
        if taken >= level or total + grown < level:
            return False
        share = (1.0 - np.float64(taken) / np.float64(level)) * (1.0 - 1e-12)
    return False


@inner
def _one_step(w, n, height, column):
    """Limit of each node from the limits one step down, sum_k min(cap, limit): exact for two steps."""
    for t in range(n):
        row = ((height - U1) * n + t) * n
        total = np.int64(0)
        for k in range(n):
            total += min(w.cap[row + k], w.limit[(height - U1) * n + k])
        w.limit[height * n + t] = min(total, column)


@inner
def _mark_useful(w, n, words, height):
    for x in range(words):
        w.useful[height * words + x] = U0
    for k in range(n):
        if w.limit[height * n + k] > 0:
            w.useful[height * words + (k >> U6)] |= U1 << (k & U63)


@inner
def _count_saturated(w, n, height, level):
    count = 0
    for k in range(n):
        if w.limit[height * n + k] >= level:
            count += 1
    return count


@inner
def _untouched(w, words, height):
    """Whether no node one step below the source is on the sink's side: the cut then holds for all above."""
    seen = U0
    for x in range(words):
        seen |= w.seen[(height - U1) * words + x]
    return seen == U0


@inner
def _write_cut(w, n, words, height, order, c, cuts, out, source):
    """The sink's side in the caller's numbers and in as few words as it takes."""
    few = (n + U63) >> U6
    for h in range(U1, height):
        for k in range(n):
            i = order[c, h, k]
            bit = (w.seen[h * words + (k >> U6)] >> (k & U63)) & U1
            cuts[c, out, source, (h - U1) * few + (i >> U6)] |= bit << (i & U63)


@inner
def _all_settled(capacity, rowsum, floor, c, n, steps, sink, value, code):
    """Whether the lower bounds settle all sources of this sink; if so, write their flows."""
    column = np.int64(0)
    for i in range(n):
        column += capacity[i * n + sink]
    settled = True
    for t in range(n):
        settled &= floor[c, t] >= min(rowsum[(steps - U1) * n + t], column)
    if settled:
        for t in range(n):
            value[c, 0, t] = min(rowsum[(steps - U1) * n + t], column)
            code[c, 0, t] = FLOOR
    return settled


_INT = types.Array(types.int64, 1, "C")
_SET = types.Array(types.uint64, 1, "C")
_SIGNATURE = types.void(
    *(_INT, _INT, types.uint64, types.uint64, types.uint64, _SET, types.Array(types.uint64, 3, "C"), _INT),
    *(types.Array(types.int64, 2, "C"), types.boolean, types.boolean, types.uint64, types.uint64),
    *(types.Array(types.int64, 3, "C"), types.Array(types.int8, 3, "C"), types.Array(types.uint64, 4, "C")),
    *(_INT, _SET, _INT, _INT, _INT, _INT, _SET, _SET, _SET, _SET, _SET, _SET, _SET, _INT, _INT),
)


def words_of(n: int) -> int:
    """Words of a set of n nodes as the kernel holds it: as many as needed, beyond two made up to fours."""
    words = (n + 63) // 64
    return words if words <= 2 else 4 * ((words + 3) // 4)


def workspace(n: int, steps: int) -> tuple[Any, ...]:
    """The arrays that one thread works on. They are made here because numba compiles array creation slowly."""
    words = words_of(n)
    rows, nodes, sets = steps * n * words, (steps + 1) * n, (steps + 1) * words

    def edges() -> Any:
        return np.empty(steps * n * n, np.int64)

    return (
        *(edges(), np.empty(rows, np.uint64), edges()),
        *(np.zeros(nodes, np.int64) for _ in range(3)),
        *(np.empty(rows, np.uint64) for _ in range(3)),
        np.empty(((steps - 1) * n + 3) * sets, np.uint64),
        *(np.zeros(sets, np.uint64) for _ in range(3)),
        *(np.zeros(nodes, np.int64) for _ in range(2)),
    )


def _compiled(function):
    """Compile for the one signature, or load from the disk cache: beside this file, or in the user's cache folder."""
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    try:
        return njit(_SIGNATURE, cache=True, **options)(function)
    except RuntimeError:  # neither folder can be written: compile again in every process
        return njit(_SIGNATURE, **options)(function)


@_compiled
def columns(
    capacity, rowsum, n, steps, words, sinks, order, wanted, floor, theorem, explicit, begin, stride, value, code, cuts,
    cap, fresh, flow, excess, room, limit, ahead, used, used_t, ring, seen, active, useful, sums, inside,
):  # fmt: skip
    """Flows of all sources at the wanted heights into each of the sinks.

    ``wanted[h]`` is the place of height h in the outputs ``value`` and ``code`` ([sinks, outputs, n]), or -1: then
    only upper bounds of what its nodes can pass on are computed. ``order[c, h]`` ([sinks, S + 1, n]) numbers the nodes
    of height h for sink c; height 0 must keep its numbers. ``floor[c, t]`` ([sinks, n], or empty) are proven
    lower bounds for the highest sources. ``explicit`` solves every pair in full, checks its preflow and writes the
    sink's side of the minimum cut, heights 1 .. S-1, to ``cuts``. At the highest height every ``stride``-th source from
    ``begin`` is solved. Sets have ``words`` words (:func:`words_of`). The arrays from ``cap`` on are those of
    :func:`workspace`; after the call they hold the last pair that was solved.
    """
    w = Work(cap, fresh, flow, excess, room, limit, ahead, used, used_t, ring, seen, active, useful)
    has_floor = floor.shape[0] > 0
    for c in range(np.uint64(sinks.shape[0])):
        sink = sinks[c]
        if has_floor and _all_settled(capacity, rowsum, floor, c, n, steps, sink, value, code):
            continue
        _renumber(w, capacity, order, c, n, words, steps)
        column = np.int64(0)
        for i in range(n):
            limit[n + i] = cap[i * n + sink]
            column += cap[i * n + sink]
            if wanted[1] >= 0:
                value[c, wanted[1], order[c, 1, i]] = cap[i * n + sink]
                code[c, wanted[1], order[c, 1, i]] = CLOSED
        for h in range(U2, steps + U1):
            _mark_useful(w, n, words, h - U1)
            out = wanted[h]
            closed = out < 0 or (h == U2 and not explicit)
            if closed:
                _one_step(w, n, h, column)
            level = np.int64(0)
            two = False
            if theorem and not closed and (h == U3 or wanted[h - U1] >= 0):
                for t in range(n):
                    level = max(level, rowsum[(h - U1) * n + t])
                level = min(level, column)
                two = h >= U4 and (h == U4 or wanted[h - U2] >= 0) and _count_saturated(w, n, h - U2, level) > 0
                if two:
                    _through_two(w, n, h, level, sums)
                elif _count_saturated(w, n, h - U1, level) == 0:
                    level = np.int64(0)
            for t in range(begin if h == steps else U0, n if out >= 0 else U0, stride if h == steps else U1):
                source = order[c, h, t]
                bound = min(rowsum[(h - U1) * n + source], column)
                if closed:
                    v, proof = limit[h * n + t], CLOSED
                elif has_floor and h == steps and floor[c, source] >= bound:
                    v, proof = bound, FLOOR
                elif level > 0 and bound == level and _saturates(w, n, h, t, level, two, sums, inside):
                    v, proof = level, THEOREM
                else:
                    v, proof = solve_pair(w, n, words, h, t, sink, bound, explicit)
                    if proof == CUT and v < column and _untouched(w, words, h):
                        column = v
                    if explicit:
                        _write_cut(w, n, words, h, order, c, cuts, out, source)
                        if not _is_preflow(w, n, words, h, t, sink, v, sums):
                            proof = FAILED
                limit[h * n + t] = v
                value[c, out, source] = v
                code[c, out, source] = proof
