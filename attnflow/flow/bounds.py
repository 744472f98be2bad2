"""Lower bounds that settle many pairs at once."""

from __future__ import annotations

from collections.abc import Sequence

from attnflow.flow.integers import Capacities, Ints


def floor_of(caps: Capacities, sinks: Sequence[int], threads: int) -> Ints | None:
    """Proven lower bounds ``[sinks, n]`` of the flows from the highest nodes, or None where none is worth its cost."""
    return None
