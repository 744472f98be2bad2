"""Soft erasure at equal retention: units are kept with a probability by their score (Zhao & Aletras 2023).

Soft measures use the scores and not their order alone. Plain ones reward a method that keeps more words, whatever
they are; so here every method keeps the same share π of the units in expectation ("π-Soft", arXiv 2601.03089): the
probability of a unit is c · w, at most 1, where w is its score brought to 0 … 1 and c is such that the mean is π.
The result is the mean drop over five π and several draws, which all methods share. Whole units are blanked, by the
same blanks as in the other measures, and not elements of their embeddings.
"""

from __future__ import annotations

import numpy as np

from attnflow.faithfulness.case import Case, Floats

RETAINED = (0.1, 0.3, 0.5, 0.7, 0.9)
SAMPLES = 4


def soft_comprehensiveness(case: Case) -> float:
    """The mean drop when units go with a probability by their score. Higher is better."""
    return _drop(case, going=True)


def soft_sufficiency(case: Case) -> float:
    """The mean drop when units stay with a probability by their score. Lower is better."""
    return _drop(case, going=False)


def _drop(case: Case, going: bool) -> float:
    chance = case.rng(1).random((len(RETAINED), SAMPLES, len(case.scores)))
    weights = weights_of(case.scores)
    shares = 1 - np.array(RETAINED) if going else np.array(RETAINED)
    picked = chance < np.stack([probabilities(weights, share) for share in shares])[:, None]
    kept = (~picked if going else picked).reshape(-1, len(case.scores))
    return float(case.variants.whole - case.variants.values(case.blank, kept).mean())


def weights_of(scores: Floats) -> Floats:
    """Scores brought to 0 … 1; all 1 where they are equal, 0 where there is none.

    >>> weights_of(np.array([1.0, 3.0, 2.0])).tolist()
    [0.0, 1.0, 0.5]
    """
    low, high = np.nanmin(scores), np.nanmax(scores)
    if not high > low:
        return np.ones_like(scores)
    return np.nan_to_num((scores - low) / (high - low), nan=0.0)


def probabilities(weights: Floats, share: float) -> Floats:
    """``min(1, c · w)`` with a mean of ``share``.

    >>> probabilities(np.array([0.0, 1.0, 0.5]), 0.5).round(3).tolist()
    [0.0, 1.0, 0.5]
    """
    # A unit of weight 0 must be able to go where all others are certain already.
    raised = weights + 1e-6
    low, high = 0.0, 2e6
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1, middle * raised).mean() < share else (low, middle)
    return np.minimum(1, high * raised)
