"""One scoring of one example, as the measures see it, and the order in which it puts the inputs.

"The top 10 %" is arbitrary where scores are equal, and saturated flows are equal by the dozen. So each measure that
ranks is the mean over draws, in which equal scores come in random order. The draws come in pairs, one the reverse of
the other within each tie: their errors cancel in part, and for a constant score the texts that are run are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnflow.faithfulness.variants import Variants

Floats = npt.NDArray[np.float64]
Orders = npt.NDArray[np.int64]
DRAWS = STEPS = 10


def orders(scores: Floats, draws: int = DRAWS, seed: int | tuple[int, ...] = 0) -> Orders:
    """``[draws, units]``: the units best first; one draw where no two scores are equal. NaN comes last.

    >>> orders(np.array([0.1, 0.7, 0.2]))
    array([[1, 2, 0]])
    >>> orders(np.array([0.5, 0.5, 0.9]), draws=2).tolist()
    [[2, 1, 0], [2, 0, 1]]
    """
    known = np.where(np.isnan(scores), -np.inf, scores)
    if len(np.unique(known)) == len(known):
        return np.argsort(-known)[None]
    rng = np.random.default_rng(seed)
    noise = rng.random(((draws + 1) // 2, len(known)))
    both = np.stack([noise, -noise], 1).reshape(-1, len(known))[:draws]
    return np.stack([np.lexsort((row, -known)) for row in both])


def top(order: Orders, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """``[draws × counts, units]``: True for the first ``counts`` of each order.

    >>> top(np.array([[2, 0, 1]]), np.array([1, 2])).tolist()
    [[False, False, True], [True, False, True]]
    """
    ranks = np.argsort(order, axis=1)
    return (ranks[:, None, :] < counts[None, :, None]).reshape(-1, order.shape[1])


def count_of(fractions: Floats, units: int) -> npt.NDArray[np.int64]:
    """How many units a share of them is, rounded up, so that a share above 0 is at least one unit.

    >>> count_of(np.array([0.01, 0.1, 0.5]), 12).tolist()
    [1, 2, 6]
    """
    return np.ceil(np.asarray(fractions) * units - 1e-9).astype(np.int64)


def steps_of(steps: int, units: int) -> npt.NDArray[np.int64]:
    """How many units are gone, or have come, after each step of a curve: rounded up from the nearer end.

    So the counts are the same from either end, and what is left after one step is what has come after another: where
    one order is the reverse of another, deletion by one and insertion by the other run the same texts.

    >>> steps_of(4, 10).tolist()
    [0, 3, 5, 7, 10]
    """
    share = np.linspace(0, 1, steps + 1)
    half = share <= 0.5
    return np.unique(np.where(half, count_of(share, units), units - count_of(1 - share, units)))


@dataclass(frozen=True, eq=False)
class Case:
    """The scores of one method for one example, with what a measure needs to judge them.

    Attributes:
        scores: ``[units]``: one number for each unit that can be blanked (:attr:`Variants.units`).
        variants: what the model says about texts with some units blanked.
        blank: how units are blanked, as :func:`attnflow.scoring.blankout.settle_blank` settled it.
        draws: how often ties are broken at random.
        seed: of these draws; the same for all methods of an example, so that they are compared on the same chances.
        steps: of the deletion and insertion curves.
        pointed: ``[inputs]``: the scores of all units but special tokens, also the one at which the model predicts.
        truth: ``[inputs]``: True for those that must matter; None where that is not known.
        shaken: scores of the same method for the example with noise at its embeddings, one row per noise.
    """

    scores: Floats
    variants: Variants
    blank: str | int = "delete"
    draws: int = DRAWS
    seed: int | tuple[int, ...] = 0
    steps: int = STEPS
    pointed: Floats | None = None
    truth: npt.NDArray[np.bool_] | None = None
    shaken: Callable[[Floats], Floats] | None = None

    @property
    def orders(self) -> Orders:
        """``[draws, units]``: best first."""
        return orders(self.scores, self.draws, self.seed)

    @property
    def settled(self) -> bool:
        """True if no two scores are equal, so that there is nothing to draw."""
        both = [self.scores] if self.pointed is None else [self.scores, self.pointed]
        return all(len(np.unique(row[~np.isnan(row)])) == len(row) for row in both)

    def rng(self, purpose: int) -> np.random.Generator:
        """Chance for one purpose, the same for every method of the example."""
        seed = self.seed if isinstance(self.seed, tuple) else (self.seed,)
        return np.random.default_rng((*seed, purpose))
