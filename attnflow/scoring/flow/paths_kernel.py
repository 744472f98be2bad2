# mypy: ignore-errors
# numba reads these functions and infers their types; annotations would have no effect.
"""A flow through a sparse network by shortest augmenting paths (Dinic 1970); compiled. See sparse.py.

Node x has the arcs ``first[x] … first[x + 1]``. Arc a leads to node ``to[a]`` and has ``room[a]`` left; ``pair[a]`` is
the same edge the other way round. Each phase finds the distance of every node to the sink by one search backwards, and
then paths along which the distance falls by one, until there are none. The search from the sink meets only nodes that
can reach it, so with a causal mask nothing before the input is looked at.
"""

from __future__ import annotations

import numpy as np
from numba import types

from attnflow.scoring.flow.waves import U0, U1, inner

_INT, _SMALL, _PLACE = types.CPointer(types.int64), types.CPointer(types.int32), types.uint64
SIGNATURE = types.void(*(_PLACE,) * 3, types.int64, *(_SMALL,) * 5, *(_SMALL,) * 3, _INT)
_FAR = np.int32(2**31 - 1)


@inner
def _distances(nodes, source, sink, first, to, pair, room, level, queue):
    """Put the distance of each node to the sink into ``level``; whether the source can reach it."""
    for x in range(nodes):
        level[x] = _FAR
    level[sink] = 0
    queue[0] = sink
    head, tail = U0, U1
    while head < tail:
        x = np.uint64(queue[head])
        head += U1
        if level[x] >= level[source]:
            break
        for a in range(np.uint64(first[x]), np.uint64(first[x + U1])):
            y = np.uint64(to[a])
            if level[y] == _FAR and room[np.uint64(pair[a])] > 0:
                level[y] = level[x] + np.int32(1)
                queue[tail] = np.int32(y)
                tail += U1
    return level[source] < _FAR


@inner
def _augment(depth, path, pair, room):
    """Send along a path what its narrowest arc takes; the amount, and where the first arc is that has no room left."""
    least = room[np.uint64(path[U0])]
    for i in range(U1, depth):
        least = min(least, room[np.uint64(path[i])])
    full = depth
    for i in range(depth):
        at = depth - U1 - i
        a = np.uint64(path[at])
        room[a] -= least
        room[np.uint64(pair[a])] += least
        if room[a] == 0:
            full = at
    return np.int64(least), full


def paths(nodes, source, sink, enough, first, to, pair, room, level, arc, queue, path, value):
    """The size of a flow between two nodes, in ``value[0]``: the largest, or the first of at least ``enough``.

    ``value[0]`` is what flows already; ``room``, what that leaves, is changed in place. ``level``, ``arc``, ``queue``
    [nodes] and ``path`` [nodes] need not hold anything. If no larger flow is there, ``level`` ends as it was filled by
    the last search: only nodes that can reach the sink have a distance.
    """
    total = value[U0]
    while total < enough and _distances(nodes, source, sink, first, to, pair, room, level, queue):
        for x in range(nodes):
            arc[x] = first[x]
        x, depth = source, U0
        while total < enough:
            if x == sink:
                sent, depth = _augment(depth, path, pair, room)
                total += sent
                x = np.uint64(to[np.uint64(pair[np.uint64(path[depth])])])
            a, last, near = np.uint64(arc[x]), np.uint64(first[x + U1]), level[x] - np.int32(1)
            while a < last and (room[a] == 0 or level[np.uint64(to[a])] != near):
                a += U1
            arc[x] = np.int32(a)
            if a < last:
                path[depth] = np.int32(a)
                depth += U1
                x = np.uint64(to[a])
            elif x == source:
                break
            else:  # nothing leads on from here: one step back, and past the arc that led here
                depth -= U1
                back = np.uint64(path[depth])
                x = np.uint64(to[np.uint64(pair[back])])
                arc[x] += np.int32(1)
    value[U0] = total
