"""Lower bounds that settle most pairs of a deep encoder with a few flows each.

Hub bound: for any node *k* at a height between, the flow from *t* down to it and the flow from it down to *j* can be
joined, so

    F[t, j] ≥ min( flow (S, t) → (m, k),  flow (m, k) → (0, j) )

because the smaller of the two, scaled to the other, is a flow through *k* that keeps to all capacities: they use
disjoint steps. One flow for every source and one for every sink bound all pairs. Where the bound meets
min(row sum, column sum) the pair is settled. In deep encoders a token that many attend to is such a hub for nearly
all pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnflow.scoring.flow.integers import Capacities, Ints

DEEP = 8  # steps from which a hub settles enough pairs to pay for itself
WIDE = 16  # the same for nodes


def known_by_hubs(caps: Capacities, sinks: Sequence[int], threads: int) -> Ints | None:
    """Flows ``[sinks, n]`` from the highest nodes that hubs settle, -1 where they do not; None if not worth it."""
    if caps.steps < DEEP or caps.n < WIDE or 2 * len(sinks) < caps.n or is_triangular(caps):
        return None
    limit = np.minimum(caps.rowsum[-1][None], caps.cap[0].sum(0)[list(sinks), None])
    floor: Ints = np.zeros_like(limit)
    left, worth = limit.size, 2 * caps.n  # a hub costs about two flows per node, so it should settle more than that
    height = min(7, caps.steps - 4)
    for m in (height, height - 1):
        for k in np.argsort(-caps.cap[m].sum(0), kind="stable")[:2]:
            floor = np.maximum(floor, hub(caps, m, int(k), sinks, threads))
            before, left = left, int((floor < limit).sum())
            if left <= worth or before - left <= worth:
                break
        if left <= worth:
            break
    return np.where(floor >= limit, limit, -1)


def hub(caps: Capacities, height: int, node: int, sinks: Sequence[int], threads: int = 1) -> Ints:
    """The bound of one hub for all sources at the top and the given sinks: ``[sinks, n]``."""
    from attnflow.scoring.flow.search import run

    above = caps.replaced(np.ascontiguousarray(caps.cap[height:]))
    below = caps.upto(height).reversed()
    into = run(above, [above.steps], [node], threads=threads).units[0, 0]
    out = run(below, [below.steps], [node], threads=threads).units[0, 0]
    joined: Ints = np.minimum(into[None], out[list(sinks), None])
    return joined


def is_triangular(caps: Capacities) -> bool:
    """Causal networks have no hub for all: a token is reached from later ones only, and reaches earlier ones."""
    joined = caps.cap.max(0)
    return not np.triu(joined, 1).any() or not np.tril(joined, -1).any()
