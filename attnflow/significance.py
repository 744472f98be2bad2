"""How sure a difference is: paired tests over the same texts, corrected for their number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# The p-value below which a difference is called one.
LEVEL = 0.05


def sign_flips(apart: npt.ArrayLike) -> float:
    """The p-value that differences of the same texts, in whole numbers, have a mean of zero; exact and two-sided.

    The test of Fisher (1935) and Pitman (1937): where two models do not differ, each difference is as likely with the
    other sign. Of all 2ⁿ choices of signs the p-value is the share whose sum is at least as far from 0 as the one
    seen. For differences of −1, 0 and 1 that is the exact McNemar test.

    >>> sign_flips([1, 1, 1, 1, 0, -1])
    0.375
    """
    sizes = np.abs(np.asarray(apart, np.int64))
    seen, most = abs(int(np.sum(apart))), int(sizes.sum())
    # chance[most + s]: the probability of the sum s.
    chance = np.zeros(2 * most + 1)
    chance[most] = 1.0
    for size in sizes[sizes > 0]:
        chance = (np.roll(chance, size) + np.roll(chance, -size)) / 2
    far = np.abs(np.arange(-most, most + 1)) >= seen
    return float(min(chance[far].sum(), 1.0))


def of_seeds(apart: npt.ArrayLike) -> float:
    """The p-value that two kinds of models, each trained from several seeds, answer the same texts alike.

    ``apart`` is ``[seeds, texts]``: 1 where only the first kind is right, −1 where only the second is, 0 elsewhere.
    Texts decide, by :func:`sign_flips` of their sums over the seeds; but many texts cannot make up for seeds that
    contradict each other. So where the seeds' means do not show a difference by themselves (paired t-test, p ≥ 0.05),
    the larger of the two p-values stands. One seed has no spread, and is judged by its texts alone.

    >>> of_seeds([[1] * 10, [0] * 10]) > 0.05 > of_seeds([[1] * 10, [1] * 10])
    True
    """
    from scipy.stats import ttest_1samp

    found = np.asarray(apart, np.int64)
    by_text, means = sign_flips(found.sum(0)), found.mean(1)
    if len(means) < 2:
        return by_text
    # Equal means have no spread, and scipy's test no value.
    by_seed = float(ttest_1samp(means, 0.0).pvalue) if np.ptp(means) > 0 else float(means[0] == 0)
    return by_text if by_seed < LEVEL else max(by_text, by_seed)


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
