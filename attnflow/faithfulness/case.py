"""One scoring of one example, as the measures see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnflow.faithfulness.ranking import DRAWS, Orders, orders
from attnflow.faithfulness.variants import Variants

Floats = npt.NDArray[np.float64]
STEPS = 10


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
