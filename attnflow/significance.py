"""Tests of significance: two models on the same texts, and several tests at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# The p-value below which a difference is called one.
LEVEL = 0.05


def mcnemar(one: Any, two: Any) -> tuple[int, int, float]:
    """(right only in ``one``, right only in ``two``, p) of two models on the same texts; the exact test.

    >>> mcnemar([True, True, False], [True, False, False])
    (1, 0, 1.0)
    """
    from scipy.stats import binomtest

    a, b = np.asarray(one, bool), np.asarray(two, bool)
    gained, lost = int((a & ~b).sum()), int((b & ~a).sum())
    return gained, lost, float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm 1979): the k-th smallest of m times m − k + 1, in rising order.

    With each corrected value at 0.05 or less called significant, the chance of even one false claim is at most 0.05,
    whatever the tests have to do with each other. A missing value (NaN) stays missing and counts as no test.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    given = np.asarray(p_values, np.float64)
    out = np.full(given.shape, np.nan)
    known = np.flatnonzero(~np.isnan(given))
    order = known[np.argsort(given[known], kind="stable")]
    scaled = given[order] * np.arange(len(order), 0, -1)
    out[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return [float(p) for p in out]
