"""How sure a difference is: paired tests over the same texts, corrected for their number."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
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


def paired(a: Floats, b: Floats) -> float:
    """The p-value of Wilcoxon's signed-rank test that ``a`` and ``b`` of the same texts do not differ; two-sided.

    >>> paired(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0]))
    1.0
    """
    from scipy.stats import wilcoxon

    known = ~(np.isnan(a) | np.isnan(b))
    apart = (a - b)[known]
    if not np.any(apart):
        return 1.0 if len(apart) else float("nan")
    return float(wilcoxon(apart, zero_method="zsplit").pvalue)


def holm(p_values: npt.ArrayLike) -> Floats:
    """p-values corrected for their number (Holm 1979): the k-th smallest of m times m − k + 1, in rising order.

    With each corrected value below 0.05 called significant, the chance of even one false claim is at most 0.05,
    whatever the tests have to do with each other. A missing value (NaN) stays missing and counts as no test.

    >>> holm([0.01, 0.04, 0.03]).round(3).tolist()
    [0.03, 0.06, 0.06]
    """
    given = np.asarray(p_values, np.float64)
    out = np.full(given.shape, np.nan)
    known = np.flatnonzero(~np.isnan(given))
    order = known[np.argsort(given[known], kind="stable")]
    scaled = given[order] * np.arange(len(order), 0, -1)
    out[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return out


def duels(values: Floats, opponents: npt.NDArray[np.bool_]) -> Floats:
    """``[texts, lines]``: the share of ``opponents`` that each line beats, for ``values`` ``[texts, lines]``.

    A tie is half a win; a line without a value (NaN) fights nobody.

    >>> duels(np.array([[3.0, 2.0, 2.0]]), np.array([True, True, True])).tolist()
    [[1.0, 0.25, 0.25]]
    """
    mine, theirs = values[:, :, None], values[:, None, :]
    won = np.where(np.isnan(mine) | np.isnan(theirs), np.nan, (mine > theirs) + 0.5 * (mine == theirs))
    lines = np.arange(values.shape[1])
    won[:, lines, lines] = np.nan
    won[:, :, ~opponents] = np.nan
    fought = (~np.isnan(won)).sum(2)
    return np.where(fought > 0, np.nansum(won, 2) / np.maximum(fought, 1), np.nan)
