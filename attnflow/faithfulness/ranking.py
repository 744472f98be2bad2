"""From scores to an order of the inputs: ties are broken at random, several times.

"The top 10 %" is arbitrary where scores are equal, and saturated flows are equal by the dozen. So each measure that
ranks is the mean over draws, in which equal scores come in random order. The draws come in pairs, one the reverse of
the other within each tie: their errors cancel in part, and for a constant score the texts that are run are the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Orders = npt.NDArray[np.int64]
DRAWS = 10


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
