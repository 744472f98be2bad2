# mypy: ignore-errors
# numba reads these functions and infers their types; annotations would have no effect.
"""Max-flow in a layered network, in integers: the compiled part of the engine.

The network has nodes ``(h, i)``, ``h = 0 .. S`` the height and ``i`` the token, and edges only from one height to
the next below: edge ``(h, i) -> (h - 1, k)`` has capacity ``cap[h - 1, i, k]``. All arrays here are flat; the
edge's place is ``((h - 1) * n + i) * n + k``. Sets of nodes and of edges are bitsets of 64-bit words, so that one
AND looks at 64 edges.

Each pair is solved by push-relabel in waves: exact distances to the sink (one breadth-first search over bitsets),
then all excess is pushed one step nearer, from the farthest nodes to the nearest. Excess that can no longer reach
the sink stays where it is: a maximum preflow has the value and the minimum cut of a maximum flow. The loops are
long functions on purpose: passing the arrays to small helpers inside them costs more than the work itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.cpython.unsafe.numbers import trailing_zeros

U0 = np.uint64(0)
U1 = np.uint64(1)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)

CLOSED = 1  # a closed form of one or two steps
BOUND = 2  # the preflow met a proven upper bound
CUT = 3  # no residual path is left: the nodes that reach the sink are one side of a minimum cut
THEOREM = 4  # the saturation theorem: no flow was solved
FLOOR = 5  # a lower bound that was proven before met the upper bound: no flow was solved
FAILED = -1  # the independent check of the preflow did not hold

_inner = njit(nogil=True, error_model="numpy", inline="always")


class Work(NamedTuple):
    """The arrays that one thread works on; S steps, n tokens, w = ceil(n / 64) words."""

    cap: Any  # [S*n*n] capacities
    flow: Any  # [S*n*n] preflow
    excess: Any  # [(S+1)*n] what came in and has not gone out
    room: Any  # [(S+1)*n] what a node may still take in the first wave
    limit: Any  # [(S+1)*n] upper bound of what can pass node (h, i) to this sink
    ahead: Any  # [S*n*w] row (h, i): the edges with capacity left
    ahead_t: Any  # [S*n*w] the same by column: who has capacity left into (h, k)
    used: Any  # [S*n*w] row (h, i): the edges with flow on them
    used_t: Any  # [S*n*w] the same by column
    ring: Any  # [((S-1)*n+3) * (S+1)*w] the nodes at each distance from the sink
    seen: Any  # [(S+1)*w] the nodes that can reach the sink
    active: Any  # [(S+1)*w] the nodes with excess
    useful: Any  # [(S+1)*w] the nodes with limit > 0


@_inner
def _inject(w, n, words, height, source):
    """Put on each node below the source what it can take and pass on; return the total."""
    for y in range((height + 1) * words):
        w.active[y] = U0
    for y in range((height + 1) * n):
        w.excess[y] = 0
    total = np.int64(0)
    row = ((height - 1) * n + source) * n
    below = (height - 1) * n
    for k in range(n):
        x = min(w.cap[row + k], w.limit[below + k])
        if x > 0:
            w.excess[below + k] = x
            w.active[(height - 1) * words + (k >> 6)] |= U1 << np.uint64(k & 63)
            total += x
    return total


@_inner
def _first_wave(w, n, words, height, sink):
    """Push from height to height without filling a node beyond what it can pass on; return what arrives."""
    for y in range(n, height * n):
        w.room[y] = w.limit[y]
    for y in range(words, height * words):
        w.seen[y] = w.useful[y]
    for h in range(height - 1, 1, -1):
        low = (h - 1) * n
        for x in range(words):
            nodes = w.active[h * words + x]
            while nodes != U0:
                i = (x << 6) + np.int64(trailing_zeros(nodes))
                bit_i = nodes & (~nodes + U1)
                nodes ^= bit_i
                left = w.excess[h * n + i]
                row = low + i
                for z in range(words):
                    edges = w.ahead[row * words + z] & w.seen[(h - 1) * words + z]
                    while edges != U0:
                        k = (z << 6) + np.int64(trailing_zeros(edges))
                        bit_k = edges & (~edges + U1)
                        edges ^= bit_k
                        c = w.cap[row * n + k]
                        room = w.room[low + k]
                        y = min(min(left, c), room)
                        w.room[low + k] = room - y
                        w.flow[row * n + k] = y
                        w.seen[(h - 1) * words + z] &= ~(bit_k * np.uint64(y == room))
                        w.used[row * words + z] |= bit_k
                        w.used_t[(low + k) * words + x] |= bit_i
                        full = np.uint64(y == c)
                        w.ahead[row * words + z] &= ~(bit_k * full)
                        w.ahead_t[(low + k) * words + x] &= ~(bit_i * full)
                        w.active[(h - 1) * words + z] |= bit_k
                        w.excess[low + k] += y
                        left -= y
                        if left == 0:
                            break
                    if left == 0:
                        break
                w.excess[h * n + i] = left
                if left == 0:
                    w.active[h * words + x] &= ~bit_i
    value = np.int64(0)
    for x in range(words):
        nodes = w.active[words + x]
        w.active[words + x] = U0
        while nodes != U0:
            i = (x << 6) + np.int64(trailing_zeros(nodes))
            bit_i = nodes & (~nodes + U1)
            nodes ^= bit_i
            y = w.excess[n + i]
            w.excess[n + i] = 0
            value += y
            w.flow[i * n + sink] = y
            w.used[i * words + (sink >> 6)] |= U1 << np.uint64(sink & 63)
            if y == w.cap[i * n + sink]:
                w.ahead_t[sink * words + x] &= ~bit_i
    return value


@_inner
def _distances(w, n, words, height, sink):
    """Rings of nodes by distance to the sink; the farthest ring needed, or -1 if no excess can reach it."""
    size = (height + 1) * words
    anywhere = U0
    for y in range(size):
        w.seen[y] = U0
        w.ring[y] = U0
        anywhere |= w.active[y]
    for x in range(words):
        w.seen[x] = ALL
    w.ring[sink >> 6] = U1 << np.uint64(sink & 63)
    d = 0
    while True:
        here = d * size
        there = here + size
        for y in range(size):
            w.ring[there + y] = U0
        found = U0
        for h in range(d & 1, min(d, height - 1) + 1, 2):
            for x in range(words):
                nodes = w.ring[here + h * words + x]
                while nodes != U0:
                    k = (x << 6) + np.int64(trailing_zeros(nodes))
                    nodes &= nodes - U1
                    if h < height - 1:
                        up = (h + 1) * words
                        for y in range(words):
                            new = w.ahead_t[(h * n + k) * words + y] & ~w.seen[up + y]
                            w.seen[up + y] |= new
                            w.ring[there + up + y] |= new
                            found |= new
                    if h >= 2:
                        down = (h - 1) * words
                        for y in range(words):
                            new = w.used[((h - 1) * n + k) * words + y] & ~w.seen[down + y]
                            w.seen[down + y] |= new
                            w.ring[there + down + y] |= new
                            found |= new
        if found == U0:
            break
        d += 1
        missing = U0
        for y in range(words, height * words):
            missing |= w.active[y] & ~w.seen[y]
        if missing == U0 and anywhere != U0:
            break
    reached = U0
    for y in range(words, height * words):
        reached |= w.active[y] & w.seen[y]
    return d if reached != U0 else -1


@_inner
def _push_wave(w, n, words, height, sink, far):
    """Push all excess one ring nearer, the farthest ring first; return what arrives at the sink."""
    size = (height + 1) * words
    value = np.int64(0)
    for d in range(far, 0, -1):
        here = d * size
        near = here - size
        for h in range(((d - 1) & 1) + 1, min(d, height - 1) + 1, 2):
            low = (h - 1) * n
            for x in range(words):
                nodes = w.ring[here + h * words + x] & w.active[h * words + x]
                while nodes != U0:
                    i = (x << 6) + np.int64(trailing_zeros(nodes))
                    bit_i = nodes & (~nodes + U1)
                    nodes ^= bit_i
                    left = w.excess[h * n + i]
                    row = low + i
                    if h == 1:
                        edge = i * n + sink
                        y = min(left, w.cap[edge] - w.flow[edge])
                        w.flow[edge] += y
                        w.used[i * words + (sink >> 6)] |= U1 << np.uint64(sink & 63)
                        w.ahead_t[sink * words + x] &= ~(bit_i * np.uint64(w.flow[edge] == w.cap[edge]))
                        value += y
                        left -= y
                    else:
                        for z in range(words):
                            edges = w.ahead[row * words + z] & w.ring[near + (h - 1) * words + z]
                            while edges != U0:
                                k = (z << 6) + np.int64(trailing_zeros(edges))
                                bit_k = edges & (~edges + U1)
                                edges ^= bit_k
                                f = w.flow[row * n + k]
                                c = w.cap[row * n + k]
                                y = min(left, c - f)
                                f += y
                                w.flow[row * n + k] = f
                                w.used[row * words + z] |= bit_k
                                w.used_t[(low + k) * words + x] |= bit_i
                                full = np.uint64(f == c)
                                w.ahead[row * words + z] &= ~(bit_k * full)
                                w.ahead_t[(low + k) * words + x] &= ~(bit_i * full)
                                w.active[(h - 1) * words + z] |= bit_k
                                w.excess[low + k] += y
                                left -= y
                                if left == 0:
                                    break
                            if left == 0:
                                break
                    if left > 0 and h < height - 1:
                        column = h * n + i
                        for z in range(words):
                            edges = w.used_t[column * words + z] & w.ring[near + (h + 1) * words + z]
                            while edges != U0:
                                k = (z << 6) + np.int64(trailing_zeros(edges))
                                bit_k = edges & (~edges + U1)
                                edges ^= bit_k
                                back = h * n + k
                                f = w.flow[back * n + i]
                                y = min(left, f)
                                f -= y
                                w.flow[back * n + i] = f
                                w.ahead[back * words + x] |= bit_i
                                w.ahead_t[column * words + z] |= bit_k
                                empty = np.uint64(f == 0)
                                w.used[back * words + x] &= ~(bit_i * empty)
                                w.used_t[column * words + z] &= ~(bit_k * empty)
                                w.active[(h + 1) * words + z] |= bit_k
                                w.excess[(h + 1) * n + k] += y
                                left -= y
                                if left == 0:
                                    break
                            if left == 0:
                                break
                    w.excess[h * n + i] = left
                    if left == 0:
                        w.active[h * words + x] &= ~bit_i
    return value


@_inner
def _solve(w, n, words, height, source, sink, bound, explicit):
    """Maximum preflow from (height, source) to (0, sink): its value and what proves it.

    It stops at ``bound``, a proven upper bound; ``explicit`` goes on until the cut itself is found.
    """
    total = _inject(w, n, words, height, source)
    bound = min(bound, total)
    value = np.int64(0)
    if bound > 0:
        value = _first_wave(w, n, words, height, sink)
    while explicit or value < bound:
        far = _distances(w, n, words, height, sink)
        if far < 0:
            return value, CUT
        value += _push_wave(w, n, words, height, sink, far)
    return value, BOUND


@_inner
def _reset(w, n, words, height, ahead, ahead_t):
    """Take the flow off again."""
    for row in range(height * n):
        for z in range(words):
            edges = w.used[row * words + z]
            w.used[row * words + z] = U0
            while edges != U0:
                w.flow[row * n + (z << 6) + np.int64(trailing_zeros(edges))] = 0
                edges &= edges - U1
    for y in range(height * n * words):
        w.used_t[y] = U0
        w.ahead[y] = ahead[y]
        w.ahead_t[y] = ahead_t[y]


@_inner
def _is_preflow(w, n, height, source, sink, value, gets):
    """Whether no edge carries more than its capacity, no node sends more than it gets, and the sink gets value."""
    for y in range(height * n):
        gets[y] = 0
    for k in range(n):
        gets[(height - 1) * n + k] = w.cap[((height - 1) * n + source) * n + k]
    for h in range(height - 1, 0, -1):
        for i in range(n):
            left = gets[h * n + i]
            for k in range(n):
                edge = ((h - 1) * n + i) * n + k
                f = w.flow[edge]
                if f < 0 or f > w.cap[edge] or (h == 1 and k != sink and f > 0):
                    return False
                left -= f
                gets[(h - 1) * n + k] += f
            if left < 0:
                return False
    return gets[sink] == value


@_inner
def _through_two(w, n, height, level, sums):
    """Fill sums[k] with what node (height - 1, k) can send straight into saturated nodes two steps down."""
    for k in range(n):
        sums[k] = 0
        row = ((height - 2) * n + k) * n
        for q in range(n):
            if w.limit[(height - 2) * n + q] >= level:
                sums[k] += w.cap[row + q]


@_inner
def _saturates(w, n, height, source, level, two, sums, inside):
    """Saturation theorem: does the source reach ``level`` through nodes that each can pass ``level`` on?

    Nodes ``k`` with limit >= level, entered with x_k, sum x <= level, go on by the combination of their own flows
    with weights x_k / level, which sum to at most one: no capacity is exceeded. Nodes of the first set (one step
    down) take the weight a(U) / level for a chosen subset U; the rest goes on to the second set (two steps down)
    through the remaining share of the capacities. The factor 1 - 1e-12 keeps float64 rounding on the safe side.
    """
    row = ((height - 1) * n + source) * n
    low = (height - 1) * n
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


@_inner
def _one_step(w, n, height, column):
    """Limit of each node from the limits one step down, sum_k min(cap, limit): exact for two steps."""
    for t in range(n):
        row = ((height - 1) * n + t) * n
        total = np.int64(0)
        for k in range(n):
            total += min(w.cap[row + k], w.limit[(height - 1) * n + k])
        w.limit[height * n + t] = min(total, column)


@_inner
def _mark_useful(w, n, words, height):
    for x in range(words):
        w.useful[height * words + x] = U0
    for k in range(n):
        if w.limit[height * n + k] > 0:
            w.useful[height * words + (k >> 6)] |= U1 << np.uint64(k & 63)


@_inner
def _count_saturated(w, n, height, level):
    count = 0
    for k in range(n):
        if w.limit[height * n + k] >= level:
            count += 1
    return count


@_inner
def _untouched(w, words, height):
    """Whether no node one step below the source is on the sink's side: the cut then holds for all above."""
    seen = U0
    for x in range(words):
        seen |= w.seen[(height - 1) * words + x]
    return seen == U0


_INT = types.Array(types.int64, 1, "C")
_SET = types.Array(types.uint64, 1, "C")
_SIGNATURE = types.void(
    *(_INT, _SET, _SET, _INT, types.int64, types.int64, _INT, _INT, types.Array(types.int64, 2, "C")),
    *(types.boolean, types.boolean, types.boolean, types.Array(types.int64, 3, "C"), types.Array(types.int8, 3, "C")),
    types.Array(types.uint64, 4, "C"),
    *(_INT, _INT, _INT, _INT, _SET, _SET, _SET, _SET, _SET, _SET, _SET, _SET, _INT, _INT),
)


def workspace(n: int, steps: int, ahead: Any, ahead_t: Any) -> tuple[Any, ...]:
    """The arrays that one thread works on. They are made here because numba compiles array creation slowly."""
    words = (n + 63) >> 6
    rows, nodes, sets = steps * n * words, (steps + 1) * n, (steps + 1) * words
    ring = np.empty(((steps - 1) * n + 3) * sets, np.uint64)
    return (
        np.zeros(steps * n * n, np.int64),
        *(np.zeros(nodes, np.int64) for _ in range(3)),
        *(ahead.copy(), ahead_t.copy(), np.zeros(rows, np.uint64), np.zeros(rows, np.uint64), ring),
        *(np.zeros(sets, np.uint64) for _ in range(3)),
        *(np.zeros(nodes, np.int64) for _ in range(2)),
    )


@njit(_SIGNATURE, nogil=True, cache=True, error_model="numpy")
def columns(
    cap, ahead, ahead_t, rowsum, n, steps, sinks, wanted, floor, theorem, explicit, keep, value, code, cuts,
    flow, excess, room, limit, left, left_t, used, used_t, ring, seen, active, useful, sums, inside,
):  # fmt: skip
    """Flows of all sources at the wanted heights into each of the sinks.

    ``wanted[h]`` is the place of height h in the outputs ``value`` and ``code`` ([sinks, outputs, n]), or -1: then
    only upper bounds of what its nodes can pass on are computed. ``floor[c, t]`` ([sinks, n], or empty) are proven
    lower bounds for the highest sources. ``explicit`` solves every pair in full, checks its preflow and writes the
    sink's side of the minimum cut, heights 1 .. S-1, to ``cuts``. ``keep`` leaves the last flow in ``flow``. The
    arrays from ``flow`` on are those of :func:`workspace`.
    """
    words = (n + 63) >> 6
    w = Work(
        cap, flow, excess, room, limit, left, left_t, used, used_t, ring, seen, active, useful
    )  # fmt: skip
    has_floor = floor.shape[0] > 0
    for c in range(sinks.shape[0]):
        sink = sinks[c]
        column = np.int64(0)
        for i in range(n):
            w.limit[n + i] = cap[i * n + sink]
            column += cap[i * n + sink]
            if wanted[1] >= 0:
                value[c, wanted[1], i] = cap[i * n + sink]
                code[c, wanted[1], i] = CLOSED
        for h in range(2, steps + 1):
            _mark_useful(w, n, words, h - 1)
            out = wanted[h]
            if out < 0 or (h == 2 and not explicit):
                _one_step(w, n, h, column)
                if out >= 0:
                    for t in range(n):
                        value[c, out, t] = w.limit[h * n + t]
                        code[c, out, t] = CLOSED
                continue
            level = np.int64(0)
            two = False
            if theorem and (h == 3 or wanted[h - 1] >= 0):
                for t in range(n):
                    level = max(level, rowsum[(h - 1) * n + t])
                level = min(level, column)
                two = h >= 4 and (h == 4 or wanted[h - 2] >= 0) and _count_saturated(w, n, h - 2, level) > 0
                if two:
                    _through_two(w, n, h, level, sums)
                elif _count_saturated(w, n, h - 1, level) == 0:
                    level = np.int64(0)
            for t in range(n):
                bound = min(rowsum[(h - 1) * n + t], column)
                if has_floor and h == steps and floor[c, t] >= bound:
                    v, proof = bound, FLOOR
                elif level > 0 and bound == level and _saturates(w, n, h, t, level, two, sums, inside):
                    v, proof = level, THEOREM
                else:
                    v, proof = _solve(w, n, words, h, t, sink, bound, explicit)
                    if proof == CUT and v < column and _untouched(w, words, h):
                        column = v
                    if explicit:
                        for y in range(words, h * words):
                            cuts[c, out, t, y - words] = w.seen[y]
                        if not _is_preflow(w, n, h, t, sink, v, sums):
                            proof = FAILED
                    if not keep:
                        _reset(w, n, words, h, ahead, ahead_t)
                w.limit[h * n + t] = v
                value[c, out, t] = v
                code[c, out, t] = proof
