# mypy: ignore-errors
# numba reads these functions and infers their types; annotations would have no effect.
"""Max-flow between one source and one sink of a layered network, in integers; compiled.

The network has nodes ``(h, i)``, ``h = 0 .. S`` the height and ``i`` the token, and edges only from one height to
the next below: edge ``(h, i) -> (h - 1, k)`` has capacity ``cap[h - 1, i, k]``. All arrays here are flat; the
edge's place is ``((h - 1) * n + i) * n + k``. Sets of nodes and of edges are bitsets of 64-bit words, so that one AND
looks at 64 edges. ``w`` is a :class:`attnflow.scoring.flow.workspace.Work`.

Each pair is solved by push-relabel in waves: exact distances to the sink (one breadth-first search over bitsets),
then all excess is pushed one step nearer, from the farthest nodes to the nearest. Excess that can no longer reach
the sink stays where it is: a maximum preflow has the value and the minimum cut of a maximum flow.

The loops are long functions on purpose, with sets held in local variables: numba cannot know that the arrays do not
overlap, and would otherwise read each set again after every write. Sets of more than two words are made up to fours,
which are looked at together. Places are unsigned, so that LLVM need not reckon with negative ones.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numba.cpython.unsafe.numbers import trailing_zeros

from attnflow.scoring.flow import counting
from attnflow.scoring.flow.counting import COUNTING

# A plain 1 is signed for numba, and signed and unsigned together would be a float.
U0, U1, U2, U3, U4, U6, U63, U64 = (np.uint64(x) for x in (0, 1, 2, 3, 4, 6, 63, 64))

EDGES, SETS, WAVES, PAIRS, HOPS = (
    np.uint64(x) for x in (counting.EDGES, counting.SETS, counting.WAVES, counting.PAIRS, counting.HOPS)
)

BOUND = 2  # the preflow met a proven upper bound
CUT = 3  # no residual path is left: the nodes that reach the sink are one side of a minimum cut

# Nothing but what the loops need: no wrappers for Python, no error on division by zero.
inner = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


@inner
def _inject(w, n, words, height, source):
    """Put on each node below the source what it can take and pass on; return the total."""
    cap, excess, limit, active = w.cap, w.excess, w.limit, w.active
    for y in range((height + U1) * words):
        active[y] = U0
    for y in range((height + U1) * n):
        excess[y] = 0
    total = np.int64(0)
    row = ((height - U1) * n + source) * n
    below = (height - U1) * n
    if COUNTING:
        w.reads[EDGES] += n
    for k in range(n):
        x = min(cap[row + k], limit[below + k])
        if x > 0:
            excess[below + k] = x
            active[(height - U1) * words + (k >> U6)] |= U1 << (k & U63)
            total += x
    return total


@inner
def _first_wave(w, n, words, height, sink):
    """Push from height to height without filling a node beyond what it can pass on; return what arrives."""
    cap, flow, excess, room, limit = w.cap, w.flow, w.excess, w.room, w.limit
    ahead, used, used_t, seen, active, useful = w.ahead, w.used, w.used_t, w.seen, w.active, w.useful
    for y in range(n, height * n):
        room[y] = limit[y]
    for y in range(words, height * words):
        seen[y] = useful[y]
    for step in range(U2, height):
        h = height + U1 - step
        low = (h - U1) * n
        for x in range(words):
            nodes = active[h * words + x]
            stuck = nodes
            while nodes != U0:
                i = (x << U6) + np.uint64(trailing_zeros(nodes))
                bit_i = nodes & (~nodes + U1)
                nodes ^= bit_i
                left = excess[h * n + i]
                row = low + i
                for z in range(words):
                    free = ahead[row * words + z]
                    if COUNTING:
                        w.reads[SETS] += U1
                    sent = U0
                    open_ = seen[(h - U1) * words + z]
                    edges = free & open_
                    while edges != U0:
                        k = (z << U6) + np.uint64(trailing_zeros(edges))
                        bit_k = edges & (~edges + U1)
                        edges ^= bit_k
                        c = cap[row * n + k]
                        if COUNTING:
                            w.reads[EDGES] += U1
                        space = room[low + k]
                        y = min(min(left, c), space)
                        flow[row * n + k] = y
                        room[low + k] = space - y
                        excess[low + k] += y
                        used_t[(low + k) * words + x] |= bit_i
                        sent |= bit_k
                        open_ ^= bit_k * np.uint64(y == space)
                        free ^= bit_k * np.uint64(y == c)
                        left -= y
                        if left == 0:
                            break
                    ahead[row * words + z] = free
                    used[row * words + z] = sent
                    seen[(h - U1) * words + z] = open_
                    active[(h - U1) * words + z] |= sent
                    if left == 0:
                        break
                excess[h * n + i] = left
                if left == 0:
                    stuck ^= bit_i
            active[h * words + x] = stuck
    value = np.int64(0)
    sink_bit, sink_word = U1 << (sink & U63), sink >> U6
    for x in range(words):
        nodes = active[words + x]
        active[words + x] = U0
        while nodes != U0:
            i = (x << U6) + np.uint64(trailing_zeros(nodes))
            nodes &= nodes - U1
            y = excess[n + i]
            excess[n + i] = 0
            value += y
            flow[i * n + sink] = y
            used[i * words + sink_word] = sink_bit
            if y == cap[i * n + sink]:
                ahead[i * words + sink_word] &= ~sink_bit
    return value


@inner
def _distances(w, n, words, height, sink, last, mixed):
    """Rings of nodes by distance to the sink; the farthest ring needed, or 0 if no excess can reach it.

    ``mixed``: by distance to the sink or to a node that lacks something, whichever is nearer.

    All excess moves along shortest paths, so no distance ever falls. So a node is looked at only from the distance on
    that it had in the search before, whose rings reach up to ``last``; one that could not reach the sink, never again.
    """
    ahead, used, ring, seen, active = w.ahead, w.used, w.ring, w.seen, w.active
    alive, near, beyond, lacking = w.alive, w.near, w.beyond, w.lacking
    size = (height + U1) * words
    anywhere = U0
    for y in range(size):
        beyond[y] = alive[y] & ~seen[y] if last > U0 else alive[y]
        near[y] = ring[y] if last > U0 else U0
        seen[y] = U0
        ring[y] = U0
        anywhere |= active[y]
    ring[sink >> U6] = U1 << (sink & U63)
    if mixed and anywhere == U0:
        return U0
    if mixed:
        for y in range(words, height * words):
            ring[y] = lacking[y]
            seen[y] = lacking[y]
    d = U0
    while True:
        here = d * size
        there = here + size
        if d < last:
            for y in range(size):
                near[y] |= ring[there + y]
        elif d == last:
            for y in range(size):
                near[y] |= beyond[y]
        for y in range(size):
            ring[there + y] = U0
        found = U0
        low, high, by = (U0, height, U1) if mixed else (d & U1, min(d, height - U1) + U1, U2)
        for h in range(low, high, by):
            now = here + h * words
            some = U0
            for x in range(words):
                some |= ring[now + x]
            if some == U0:
                continue
            up, down = (h + U1) * words, (h - U1) * words
            for x in range(words):
                new = U0
                nodes = near[up + x] & ~seen[up + x] if h < height - U1 else U0
                while nodes != U0:
                    i = (x << U6) + np.uint64(trailing_zeros(nodes))
                    row = (h * n + i) * words
                    edges = U0
                    z = U0
                    while words < U4 and z < words:
                        edges |= ahead[row + z] & ring[now + z]
                        z += U1
                    while z < words:
                        a, b = row + z, now + z
                        edges = (ahead[a] & ring[b]) | (ahead[a + U1] & ring[b + U1])
                        edges |= (ahead[a + U2] & ring[b + U2]) | (ahead[a + U3] & ring[b + U3])
                        if edges != U0:
                            break
                        z += U4
                    if COUNTING:
                        w.reads[SETS] += min(z + U4, words)
                    if edges != U0:
                        new |= nodes & (~nodes + U1)
                    nodes &= nodes - U1
                seen[up + x] |= new
                ring[there + up + x] |= new
                found |= new
                nodes = ring[now + x] if h >= U2 else U0
                while nodes != U0:
                    row = ((h - U1) * n + (x << U6) + np.uint64(trailing_zeros(nodes))) * words
                    nodes &= nodes - U1
                    if COUNTING:
                        w.reads[SETS] += words
                    z = U0
                    while words < U4 and z < words:
                        new = used[row + z] & ~seen[down + z]
                        seen[down + z] |= new
                        ring[there + down + z] |= new
                        found |= new
                        z += U1
                    while z < words:
                        a, b = row + z, down + z
                        x0 = used[a] & ~seen[b]
                        x1 = used[a + U1] & ~seen[b + U1]
                        x2 = used[a + U2] & ~seen[b + U2]
                        x3 = used[a + U3] & ~seen[b + U3]
                        new = x0 | x1 | x2 | x3
                        if new != U0:
                            found = U1
                            c = there + b
                            seen[b] |= x0
                            seen[b + U1] |= x1
                            seen[b + U2] |= x2
                            seen[b + U3] |= x3
                            ring[c] |= x0
                            ring[c + U1] |= x1
                            ring[c + U2] |= x2
                            ring[c + U3] |= x3
                        z += U4
        if found == U0:
            for y in range(words, height * words):
                alive[y] = seen[y]
                active[y] &= seen[y]
            break
        d += U1
        missing = U0
        for y in range(words, height * words):
            missing |= active[y] & ~seen[y]
        if missing == U0 and anywhere != U0:
            break
    reached = U0
    for y in range(words, height * words):
        reached |= active[y] & seen[y]
    return d if reached != U0 else U0


@inner
def _push_wave(w, n, words, height, sink, far, mixed):
    """Push all excess one ring nearer, the farthest ring first; return what arrives at the sink.

    ``mixed``: the nodes that lack something are in ring 0 too, and get no more than they lack.
    """
    cap, flow, excess, ahead = w.cap, w.flow, w.excess, w.ahead
    used, used_t, ring, active = w.used, w.used_t, w.ring, w.active
    size = (height + U1) * words
    value = np.int64(0)
    sink_bit, sink_word = U1 << (sink & U63), sink >> U6
    for step in range(far):
        d = far - step
        near = (d - U1) * size
        first, last, by = (U1, height, U1) if mixed else (((d - U1) & U1) + U1, min(d, height - U1) + U1, U2)
        for h in range(first, last, by):
            low = (h - U1) * n
            for x in range(words):
                nodes = ring[near + size + h * words + x] & active[h * words + x]
                while nodes != U0:
                    i = (x << U6) + np.uint64(trailing_zeros(nodes))
                    bit_i = nodes & (~nodes + U1)
                    nodes ^= bit_i
                    left = excess[h * n + i]
                    row = low + i
                    if d == U1 and h == U1:
                        edge = i * n + sink
                        f = flow[edge] if used[i * words + sink_word] != U0 else 0
                        y = min(left, cap[edge] - f)
                        flow[edge] = f + y
                        used[i * words + sink_word] = sink_bit
                        if f + y == cap[edge]:
                            ahead[i * words + sink_word] &= ~sink_bit
                        value += y
                        left -= y
                    for z in range(words if h > U1 else U0):
                        free = ahead[row * words + z]
                        if COUNTING:
                            w.reads[SETS] += U1
                        edges = free & ring[near + (h - U1) * words + z]
                        if edges == U0:
                            continue
                        sent = used[row * words + z]
                        pushed = U0
                        while edges != U0:
                            k = (z << U6) + np.uint64(trailing_zeros(edges))
                            bit_k = edges & (~edges + U1)
                            edges ^= bit_k
                            f = flow[row * n + k] * np.int64((sent & bit_k) != U0)
                            c = cap[row * n + k]
                            if COUNTING:
                                w.reads[EDGES] += U1
                            y = min(left, c - f)
                            if mixed and d == U1:  # what the node below lacks, and no more
                                y = min(y, -excess[low + k])
                            flow[row * n + k] = f + y
                            excess[low + k] += y
                            used_t[(low + k) * words + x] |= bit_i
                            pushed |= bit_k
                            free ^= bit_k * np.uint64(f + y == c)
                            left -= y
                            if left == 0:
                                break
                        ahead[row * words + z] = free
                        used[row * words + z] = sent | pushed
                        active[(h - U1) * words + z] |= pushed
                        if left == 0:
                            break
                    column = h * n + i
                    for z in range(words if left > 0 and h < height - U1 else U0):
                        sent = used_t[column * words + z]
                        edges = sent & ring[near + (h + U1) * words + z]
                        if edges == U0:
                            continue
                        pushed = U0
                        while edges != U0:
                            k = (z << U6) + np.uint64(trailing_zeros(edges))
                            bit_k = edges & (~edges + U1)
                            edges ^= bit_k
                            back = h * n + k
                            f = flow[back * n + i]
                            y = min(left, f)
                            if mixed and d == U1:
                                y = min(y, -excess[(h + U1) * n + k])
                            flow[back * n + i] = f - y
                            ahead[back * words + x] |= bit_i
                            excess[(h + U1) * n + k] += y
                            pushed |= bit_k
                            if y == f:
                                used[back * words + x] &= ~bit_i
                                sent ^= bit_k
                            left -= y
                            if left == 0:
                                break
                        used_t[column * words + z] = sent
                        active[(h + U1) * words + z] |= pushed
                        if left == 0:
                            break
                    excess[h * n + i] = left
                    if left == 0:
                        active[h * words + x] &= ~bit_i
    return value


@inner
def _exchange(w, n, height, before, source):
    """What another source hands out takes the place of what ``before`` handed out; the sum of it."""
    cap, excess, limit = w.cap, w.excess, w.limit
    old, new = ((height - U1) * n + before) * n, ((height - U1) * n + source) * n
    below = (height - U1) * n
    total = np.int64(0)
    for k in range(n):
        x = min(cap[new + k], limit[below + k])
        total += x
        excess[below + k] += x - min(cap[old + k], limit[below + k])
    return total


@inner
def _sort_out(w, n, words, height):
    """Note which nodes have excess and which lack; any that could ever reach the sink may be searched for again."""
    excess, active, lacking = w.excess, w.active, w.lacking
    some = U0
    for y in range((height + U1) * words):
        w.alive[y] = w.useful[y]
    for h in range(U1, height):
        for x in range(words):
            more, less = U0, U0
            at = h * n + (x << U6)
            for k in range(min(U64, n - min(x << U6, n))):
                e = excess[at + k]
                more |= np.uint64(e > 0) << k
                less |= np.uint64(e < 0) << k
            active[h * words + x] = more
            lacking[h * words + x] = less
            some |= less
    return some


@inner
def _still_lacking(w, n, words, height):
    """Forget the nodes that lack nothing any more; whether any is left."""
    lacking, active, excess = w.lacking, w.active, w.excess
    some = U0
    for h in range(U1, height):
        for x in range(words):
            nodes = lacking[h * words + x]
            while nodes != U0:
                bit = nodes & (~nodes + U1)
                e = excess[h * n + (x << U6) + np.uint64(trailing_zeros(nodes))]
                nodes ^= bit
                if e >= 0:
                    lacking[h * words + x] ^= bit
                if e <= 0:
                    active[h * words + x] &= ~bit
            some |= lacking[h * words + x]
    return some


@inner
def _drain(w, n, words, height, sink, last):
    """Nodes from height ``last`` on take back what they hand on without having it; return what the sink loses."""
    flow, excess, ahead, used, used_t = w.flow, w.excess, w.ahead, w.used, w.used_t
    lost = np.int64(0)
    sink_word, sink_bit = sink >> U6, U1 << (sink & U63)
    for step in range(U1, height + U1 - last):
        h = height - step
        low = (h - U1) * n
        for i in range(n):
            lack = -excess[h * n + i]
            if lack <= 0:
                continue
            excess[h * n + i] = 0
            row = low + i
            if h == U1:
                flow[i * n + sink] -= lack
                ahead[i * words + sink_word] |= sink_bit
                lost += lack
                continue
            x, bit_i = i >> U6, U1 << (i & U63)
            for z in range(words):
                edges = used[row * words + z]
                if edges == U0:
                    continue
                sent, free = edges, ahead[row * words + z]
                while edges != U0:
                    k = (z << U6) + np.uint64(trailing_zeros(edges))
                    bit_k = edges & (~edges + U1)
                    edges ^= bit_k
                    f = flow[row * n + k]
                    y = min(lack, f)
                    flow[row * n + k] = f - y
                    excess[low + k] -= y
                    free |= bit_k
                    if y == f:
                        sent ^= bit_k
                        used_t[(low + k) * words + x] &= ~bit_i
                    lack -= y
                    if lack == 0:
                        break
                used[row * words + z] = sent
                ahead[row * words + z] = free
                if lack == 0:
                    break
    return lost


@inner
def solve_next(w, n, words, height, before, source, sink, bound, value):
    """The same for another source, from the preflow of ``before``, of which ``value`` arrives.

    Only what the source itself hands out changes. Some nodes below it then have more than they hand on, and some hand
    on more than they have: these *lack*. They take back one step of what they hand on, and excess is pushed to nodes
    that lack as to the sink. Where none can come any more, the rest is taken back down to the sink. What is
    then there is a preflow like any other, and waves make it a maximum one.
    """
    bound = min(bound, _exchange(w, n, height, before, source))
    if COUNTING:
        w.reads[PAIRS] += U1
    value -= _drain(w, n, words, height, sink, height - U1)
    lacks = _sort_out(w, n, words, height)
    far = U0
    while lacks != U0:
        if COUNTING:
            w.reads[WAVES] += U1
        far = _distances(w, n, words, height, sink, far, True)
        if far == U0:
            value -= _drain(w, n, words, height, sink, U1)
            _sort_out(w, n, words, height)
            break
        value += _push_wave(w, n, words, height, sink, far, True)
        lacks = _still_lacking(w, n, words, height)
    proof = BOUND
    while value < bound:
        if COUNTING:
            w.reads[WAVES] += U1
        far = _distances(w, n, words, height, sink, far, False)
        if far == U0:
            proof = CUT
            break
        value += _push_wave(w, n, words, height, sink, far, False)
    return value, proof


@inner
def solve_pair(w, n, words, height, source, sink, bound, explicit):
    """Maximum preflow from (height, source) to (0, sink): its value, what proves it, and the number of searches.

    It stops at ``bound``, a proven upper bound; ``explicit`` goes on until the cut itself is found.
    """
    bound = min(bound, _inject(w, n, words, height, source))
    value = np.int64(0)
    proof = BOUND
    if bound > 0 or explicit:
        for y in range(height * n * words):
            w.ahead[y] = w.fresh[y]
            w.used[y] = U0
            w.used_t[y] = U0
        for y in range((height + U1) * words):
            w.alive[y] = w.useful[y]
        value = _first_wave(w, n, words, height, sink)
    if COUNTING:
        w.reads[PAIRS] += U1
    far, waves = U0, U0
    while explicit or value < bound:
        waves += U1
        if COUNTING:
            w.reads[WAVES] += U1
        far = _distances(w, n, words, height, sink, far, False)
        if far == U0:
            proof = CUT
            break
        value += _push_wave(w, n, words, height, sink, far, False)
    return value, proof, waves
