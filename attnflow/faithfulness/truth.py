"""Measures for data where the truth is known: does the score point to the input that must matter?

For agreement this is the subject: whatever else a model reads, it cannot know the verb's number without it. See Arras
et al. (2022; 2025, arXiv 2502.15886) for these measures, and Zhang et al. (2016) for the pointing game.
"""

from __future__ import annotations

import numpy as np

from attnflow.faithfulness.case import Case, Floats, orders


def pointing(case: Case) -> float:
    """1 where the best input is a true one, else 0; the share of true ones where several are best."""
    scores, truth = _given(case)
    if case.draws == 1:
        return float(truth[orders(scores, 1, case.seed)[0, 0]])
    best = scores == scores.max()
    return float((best & truth).sum() / best.sum())


def reciprocal_rank(case: Case) -> float:
    """1 / rank of the best true input, the mean over the draws."""
    scores, truth = _given(case)
    ranks = np.argsort(orders(scores, case.draws, case.seed), axis=1) + 1
    return float((1 / ranks[:, truth].min(1)).mean())


def relevance_mass(case: Case) -> float:
    """The share of the true inputs in the sum of all scores, by their size."""
    scores, truth = _given(case)
    size = np.where(np.isfinite(scores), np.abs(scores), 0.0)
    return float(size[truth].sum() / size.sum()) if size.sum() > 0 else float(truth.mean())


def _given(case: Case) -> tuple[Floats, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
    assert case.pointed is not None and case.truth is not None
    return np.where(np.isnan(case.pointed), -np.inf, case.pointed), case.truth
