"""Ways to bring the heads of a layer down to one matrix, and how they share the room of one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnflow.attention import Attention

Way = str | int | tuple[int, ...]

# Edges that the engine may look at for the other ways: steps × inputs × half of the network for each.
SOLVED = 8e8
# Outputs × tokens³ of the outputs besides the first one, whose flows take most of the time of a page of a long text.
OTHERS = 2.5e9


@dataclass(frozen=True)
class Room:
    """What a graph may hold: a page has at most 2 MB and is made in a few seconds.

    Attributes:
        scores: numbers of the bars; about 4 bytes each in the page.
        edges: edges of the flows, all pairs together; about 5 bytes each with their places.
        work: pairs × (steps × tokens² + what a pair costs in any case); 15 nanoseconds each.
    """

    scores: int = 120_000
    edges: int = 90_000
    work: float = 1.0e8

    def outputs(self, layers: int, tokens: int, numbers: int) -> int:
        """How many outputs get scores, of ``numbers`` each: one position at every layer, and others as time allows.

        >>> Room().outputs(12, 128, 3 * 128), Room().outputs(12, 512, 3 * 512)
        (312, 30)
        """
        return min(self.scores // numbers, layers + int(OTHERS / tokens**3))

    def part(self, count: int) -> Room:
        """The room of one of ``count`` that share it alike."""
        return Room(self.scores // count, self.edges // count, self.work / count)

    def rest(self, scores: int, edges: int, others: int) -> Room:
        """What each of the others may have, where the first took ``scores`` and ``edges``."""
        return Room((self.scores - scores) // others, (self.edges - edges) // others, self.work / 2 / others)


def head_count(attention: Attention) -> int:
    """How many heads each layer has at least; 0 where they are one matrix already."""
    if attention.heads != "all":
        return 0
    return min(w.shape[0] if w.ndim == 3 else 1 for b in attention.blocks.values() for w in b.weights)


def ways(attention: Attention, first: str | int | Sequence[int] = "mean") -> list[Way]:
    """``first``, mean, max, min and every single head: those for which there is time and room.

    >>> import numpy as np
    >>> ways(Attention.of(np.full((1, 2, 3, 3), 1 / 3), heads="all"))
    ['mean', 'max', 'min', 0, 1]
    """
    kept = attention.heads if attention.heads != "all" else first
    chosen = kept if isinstance(kept, str | int) else tuple(kept)
    heads = head_count(attention)
    few: list[Way] = list(dict.fromkeys([chosen, "mean", "max", "min"])) if heads else [chosen]
    every = list(dict.fromkeys([*few, *range(heads)]))
    return next((some for some in (every, few) if _fits(attention, len(some) - 1)), [chosen])


def _fits(attention: Attention, others: int) -> bool:
    """Whether each can have the scores of one position at all layers, and all of them in a few seconds."""
    n = sum({len(b.keys) for b in attention.blocks.values()})
    steps = sum(len(b.layers) for b in attention.blocks.values())
    return 3 * steps * n * others <= Room().scores // 2 and steps**2 / 2 * n**3 * others <= SOLVED


def name_of(way: str | int | Sequence[int]) -> str:
    """What the switch calls it.

    >>> name_of("mean"), name_of(3), name_of((0, 2))
    ('mean', 'head 3', 'heads 0, 2')
    """
    if isinstance(way, str):
        return way
    return f"head {way}" if isinstance(way, int) else f"heads {', '.join(map(str, way))}"
