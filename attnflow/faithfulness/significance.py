"""How sure a difference is: paired tests over the same texts, corrected for their number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LEVEL = 0.05


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


def holm(p: Floats) -> Floats:
    """p-values corrected by Holm (1979): the smallest times their number, the next times one less, …; NaN stays.

    >>> holm(np.array([0.01, 0.04, 0.03])).round(3).tolist()
    [0.03, 0.06, 0.06]
    """
    known = np.flatnonzero(~np.isnan(p))
    out = np.array(p, np.float64)
    order = known[np.argsort(p[known])]
    steps = p[order] * np.arange(len(order), 0, -1)
    out[order] = np.minimum(1.0, np.maximum.accumulate(steps)) if len(order) else steps
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
