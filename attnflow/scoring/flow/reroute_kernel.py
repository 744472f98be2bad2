# mypy: ignore-errors
# numba reads these functions and infers their types; annotations would have no effect.
"""A flow that is put right after what the last node takes has changed; compiled. See rerouted.py.

Every edge leads from a node of a higher number to one of a lower number, or into the sink, which has the highest. Node
x has the arcs ``first[x] … first[x + 1]``, as in paths_kernel.py; those before ``split[x]`` are its own edges, the
others are edges into it the other way round.

Nodes are gone through from the lowest number on. What stands on a node and should not is pushed down as far as paths
lead; the rest is taken back along the edges that it came by, and so stands on nodes that come later. A node from which
nothing leads down any more is dead, and stays so: what is taken back makes room only on edges into dead nodes. So each
edge is passed over once.
"""

from __future__ import annotations

import numpy as np
from numba import types

from attnflow.scoring.flow.waves import U0, U1, inner

_INT, _SMALL, _PLACE = types.CPointer(types.int64), types.CPointer(types.int32), types.uint64
SIGNATURE = types.void(*(_PLACE,) * 3, types.int64, *(_SMALL,) * 10, _INT)


@inner
def _push(start, most, sink, split, to, pair, room, arc, path, want, sent):
    """Push at most ``most`` from a node down to the sink; how much arrives. ``path`` holds the nodes on the way."""
    depth = U0
    path[U0], want[U0], sent[U0] = np.int32(start), np.int32(most), np.int32(0)
    while True:
        x = np.uint64(path[depth])
        a, last = np.uint64(arc[x]), np.uint64(split[x])
        if sent[depth] < want[depth]:
            while a < last:
                y = np.uint64(to[a])
                if room[a] > 0 and (y == sink or arc[y] < split[y]):
                    break
                a += U1
            arc[x] = np.int32(a)
        if sent[depth] < want[depth] and a < last:
            y = np.uint64(to[a])
            more = min(want[depth] - sent[depth], room[a])
            if y == sink:
                room[a] -= more
                room[np.uint64(pair[a])] += more
                sent[depth] += more
            else:
                depth += U1
                path[depth], want[depth], sent[depth] = np.int32(y), more, np.int32(0)
        elif depth == U0:
            return np.int64(sent[U0])
        else:
            more = sent[depth]
            depth -= U1
            a = np.uint64(arc[np.uint64(path[depth])])
            room[a] -= more
            room[np.uint64(pair[a])] += more
            sent[depth] += more


def reroute(nodes, source, sink, enough, first, split, to, pair, room, excess, arc, path, want, sent, value):
    """Put the flow right until ``enough`` arrives in the sink, or as far as paths lead down; ``value[0]`` arrives.

    ``excess`` [nodes] is what stands on each node; ``room`` and it are changed in place. ``arc``, ``path``, ``want``
    and ``sent`` [nodes] need not hold anything.
    """
    total = value[U0]
    for x in range(nodes):
        arc[x] = first[x]
    for x in range(source):
        if total >= enough:
            break
        if excess[x] == 0:
            continue
        y = _push(x, min(np.int64(excess[x]), enough - total), sink, split, to, pair, room, arc, path, want, sent)
        total += y
        left = np.int32(excess[x] - y)
        if total < enough:
            for a in range(np.uint64(split[x]), np.uint64(first[x + U1])):
                if left == 0:
                    break
                y = min(left, room[a])
                if y > 0:
                    room[a] -= y
                    room[np.uint64(pair[a])] += y
                    excess[np.uint64(to[a])] += y
                    left -= y
        excess[x] = left
    if total < enough:
        excess[source] = 0
        most = np.int64(2**31 - 1)
        total += _push(source, min(enough - total, most), sink, split, to, pair, room, arc, path, want, sent)
    value[U0] = total
