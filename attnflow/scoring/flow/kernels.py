# mypy: ignore-errors
# numba reads these functions and infers their types; annotations would have no effect.
"""All flows into one sink after another: the compiled part of the engine that the solver calls.

Edges are tried in the order of their index, and that order decides how many waves a pair needs. So the nodes of each
height are renumbered for each sink, the most useful first (see ``orders`` in search.py); outputs are in the
caller's numbers again. What the nodes of a height can pass on to the sink is shared by all sources above.
"""

from __future__ import annotations

import re

import numpy as np
from numba import njit, types
from numba.core import config
from numba.core.compiler_lock import global_compiler_lock

from attnflow.scoring.flow.paths_kernel import SIGNATURE as PATHS
from attnflow.scoring.flow.paths_kernel import paths
from attnflow.scoring.flow.relay_kernel import SIGNATURE as RELAY
from attnflow.scoring.flow.relay_kernel import relay
from attnflow.scoring.flow.reroute_kernel import SIGNATURE as REROUTE
from attnflow.scoring.flow.reroute_kernel import reroute
from attnflow.scoring.flow.rounding_kernel import SIGNATURE as ROUNDING
from attnflow.scoring.flow.rounding_kernel import rounding
from attnflow.scoring.flow.waves import (
    COUNTING,
    CUT,
    EDGES,
    U0,
    U1,
    U2,
    U3,
    U4,
    U6,
    U63,
    inner,
    solve_next,
    solve_pair,
)  # fmt: skip
from attnflow.scoring.flow.workspace import Work

CLOSED = 1  # a closed form of one or two steps
THEOREM = 4  # the saturation theorem: no flow was solved
KNOWN = 5  # a lower bound that was proven before met an upper bound: no flow was solved
BUSY = np.uint64(32)  # a preflow is kept for the next source if at least one edge in so many carries flow
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
def _renumber(w, cap, order, base, n, words, steps):
    """Capacities and edge sets of one sink, in the order of its nodes."""
    for y in range(steps * n * words):
        w.fresh[y] = U0
    for h in range(steps):
        for a in range(n):
            row = (h * n + order[base + (h + U1) * n + a]) * n
            new = h * n + a
            for b in range(n):
                x = cap[row + order[base + h * n + b]]
                w.cap[new * n + b] = x
                w.fresh[new * words + (b >> U6)] |= np.uint64(x > 0) << (b & U63)
    if COUNTING:
        w.reads[EDGES] += steps * n * n


@inner
def _through_two(w, n, height, level, sums):
    """Fill sums[k] with what node (height - 1, k) can send straight into saturated nodes two steps down."""
    for k in range(n):
        sums[k] = 0
        row = ((height - U2) * n + k) * n
        for q in range(n):
            if w.limit[(height - U2) * n + q] >= level:
                sums[k] += w.cap[row + q]
    if COUNTING:
        w.reads[EDGES] += n * n


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
    if COUNTING:
        w.reads[EDGES] += n
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
    if COUNTING:
        w.reads[EDGES] += n * n


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
def _is_busy(w, n, words, height):
    """Whether so many edges carry flow that to lay it anew takes longer than to change it for another source."""
    count = U0
    for y in range(n * words, height * n * words):
        edges = w.used[y]
        while edges != U0:
            edges &= edges - U1
            count += U1
    return words >= U4 and count * BUSY >= height * n * n


@inner
def _write_cut(w, n, words, height, order, base, cuts, place):
    """The sink's side in the caller's numbers and in as few words as it takes."""
    few = (n + U63) >> U6
    for h in range(U1, height):
        for k in range(n):
            i = order[base + h * n + k]
            bit = (w.seen[h * words + (k >> U6)] >> (k & U63)) & U1
            cuts[place + (h - U1) * few + (i >> U6)] |= bit << (i & U63)


@inner
def _all_known(known, place, n, value, code):
    """Whether the flows of all sources into this sink are known; if so, write them."""
    for t in range(n):
        if known[place + t] < 0:
            return False
    for t in range(n):
        value[place + t] = known[place + t]
        code[place + t] = KNOWN
    return True


# Plain addresses and numbers: the compiled code then needs nothing of numba or Python, and can be kept and loaded
# without them.
_INT, _SET, _BYTE = (types.CPointer(t) for t in (types.int64, types.uint64, types.int8))
_PLACE = _FLAG = types.uint64
SIGNATURE = types.void(
    *(_INT, _INT, _PLACE, _PLACE, _PLACE, _SET, _PLACE, _SET, _INT, _PLACE, _INT, _FLAG, _FLAG, _FLAG, _PLACE, _PLACE),
    *(_PLACE, _INT, _BYTE, _SET),
    *(_INT, _SET, _INT, _INT, _INT, _INT, *(_SET,) * 11, _INT, _INT, _SET),
)


def columns(
    capacity, rowsum, n, steps, words, sinks, count, order, wanted, tops, known, has_known, theorem, explicit, begin,
    stride, slow, value, code, cuts,
    cap, fresh, flow, excess, room, limit, ahead, used, used_t, ring, seen, active, useful, alive,
    near, beyond, lacking, sums, inside, reads,
):  # fmt: skip
    """Flows of all sources at the wanted heights into each of the sinks.

    ``wanted[h]`` is the place of height h in the outputs ``value`` and ``code`` ([sinks, outputs, n]), or -1: then
    only upper bounds of what its nodes can pass on are computed. ``order[c, h]`` ([sinks, S + 1, n]) numbers the nodes
    of height h for sink c; height 0 must keep its numbers. ``known[c, t]`` ([sinks, n], or empty) are the
    flows from the highest sources that were proven before, -1 where none was. ``explicit`` solves every pair in full,
    checks its preflow and writes the sink's side of the minimum cut, heights 1 .. S-1, to ``cuts``. At the highest
    height every ``stride``-th source from ``begin`` is solved; one that comes after a cut which took ``slow`` searches
    to find begins with the preflow of the source before (0: any does). Sets have ``words`` words (:func:`words_of`).
    The arrays from ``cap`` on are those of :func:`workspace`; after the call they hold the last pair that was solved.
    """
    w = Work(
        cap, fresh, flow, excess, room, limit, ahead, used, used_t, ring, seen, active, useful, alive, near,
        beyond, lacking, sums, inside, reads
    )  # fmt: skip
    few = (n + U63) >> U6
    for c in range(count):
        sink = sinks[c]
        mine, base = c * tops * n, c * (steps + U1) * n
        if has_known and _all_known(known, c * n, n, value, code):
            continue
        _renumber(w, capacity, order, base, n, words, steps)
        column = np.int64(0)
        for i in range(n):
            x = cap[i * n + sink]
            limit[n + i] = x
            column += x
            if wanted[1] >= 0:
                at = mine + np.uint64(wanted[1]) * n + order[base + n + i]
                value[at] = x
                code[at] = CLOSED
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
            before, last, keep = n, np.int64(0), False
            for t in range(begin if h == steps else U0, n if out >= 0 else U0, stride if h == steps else U1):
                source = order[base + h * n + t]
                at = mine + np.uint64(out) * n + source
                bound = min(rowsum[(h - U1) * n + source], column)
                if closed:
                    v, proof = limit[h * n + t], CLOSED
                elif has_known and h == steps and known[c * n + source] >= 0:
                    v, proof = known[c * n + source], KNOWN
                elif level > 0 and bound == level and _saturates(w, n, h, t, level, two, sums, inside):
                    v, proof = level, THEOREM
                else:
                    if before < n and not explicit:
                        v, proof = solve_next(w, n, words, h, before, t, sink, bound, last)
                    else:
                        v, proof, waves = solve_pair(w, n, words, h, t, sink, bound, explicit)
                        keep = h == steps and waves >= slow
                        keep = keep and (slow == U0 or (proof == CUT and _is_busy(w, n, words, h)))
                    before, last = (t, v) if keep and v > 0 and (proof == CUT or slow == U0) else (n, np.int64(0))
                    if proof == CUT and v < column and _untouched(w, words, h):
                        column = v
                    if explicit:
                        _write_cut(w, n, words, h, order, base, cuts, at * (steps - U1) * few)
                        if not _is_preflow(w, n, words, h, t, sink, v, sums):
                            proof = FAILED
                limit[h * n + t] = v
                value[at] = v
                code[at] = proof


KERNELS = {
    kernel.__name__: (kernel, signature)
    for kernel, signature in (
        *((columns, SIGNATURE), (relay, RELAY), (paths, PATHS)),
        *((reroute, REROUTE), (rounding, ROUNDING)),
    )
}


def llvm(name: str) -> tuple[str, str]:
    """A kernel as LLVM code that nothing has optimised yet, and the name that it has there.

    numba would optimise each function that another one calls, then the caller with all of them in it; whoever gets this
    optimises once, for a processor (compiled.py). While numba's setting is changed nobody else compiles.
    """
    kernel, signature = KERNELS[name]
    options = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    with global_compiler_lock:
        level, config.OPT = config.OPT, type(config.OPT)(0)
        try:
            (text,) = njit(signature, **options)(kernel).inspect_llvm().values()
        finally:
            config.OPT = level
    # What it calls may be dropped by the linker; the kernel itself may not.
    (symbol,) = re.findall(rf'^define (?!linkonce)[^@]*@"?([^"(]*{name}[^"(]*)', text, re.M)
    return text, symbol
