"""Measures that blank inputs in the order of their scores: bins, curves, and one input at a time.

Bins are those of ERASER (DeYoung et al. 2020, section 4.2): what does the model still say without the best inputs, and
with nothing else? Both measures are means over five bins, the best 1, 5, 10, 20 and 50 % of the units. (Ferrando et
al.'s code sums five bins and divides by six; here it is five.)

Curves are those of Petsiuk et al. (2018), for texts. Deletion starts from the text and blanks units, best first;
insertion starts from a text of blanks and puts them back. The x axis is the share of units that went or came, from 0 to
1, in steps of one tenth by default (rounded up to whole units from the nearer end). The area is by the trapezoid rule.

Agreement with leaving one out is Kendall's τ-b between the scores and what the model loses without each unit.
"""

from __future__ import annotations

import numpy as np

from attnflow.correlation import coefficients, is_constant
from attnflow.faithfulness.case import Case, Floats, count_of, orders, steps_of, top

BINS = (0.01, 0.05, 0.1, 0.2, 0.5)


def comprehensiveness(case: Case) -> float:
    """Mean over bins of p(x) − p(x without the best k %). Higher is better: the model needed what is gone."""
    return _drop(case, without_best=True)


def sufficiency(case: Case) -> float:
    """Mean over bins of p(x) − p(the best k % alone). Lower is better: what is left is enough."""
    return _drop(case, without_best=False)


def _drop(case: Case, without_best: bool) -> float:
    counts = count_of(np.array(BINS), len(case.scores))
    best = top(case.orders, counts)
    return float(case.variants.whole - case.variants.values(case.blank, ~best if without_best else best).mean())


def deletion(case: Case) -> float:
    """The area under the deletion curve. Lower is better: the value falls early."""
    return area(*deletion_curve(case))


def insertion(case: Case) -> float:
    """The area under the insertion curve. Higher is better: the value rises early."""
    return area(*insertion_curve(case))


def deletion_curve(case: Case) -> tuple[Floats, Floats]:
    """(share of units that are gone, value), the mean over the draws."""
    return _curve(case, going=True)


def insertion_curve(case: Case) -> tuple[Floats, Floats]:
    """(share of units that have come, value), the mean over the draws."""
    return _curve(case, going=False)


def _curve(case: Case, going: bool) -> tuple[Floats, Floats]:
    units = len(case.scores)
    counts = steps_of(case.steps, units)
    best = top(case.orders, counts)
    values = case.variants.values(case.blank, ~best if going else best)
    return counts / units, values.reshape(-1, len(counts)).mean(0)


def area(x: Floats, y: Floats) -> float:
    """The area under a curve by the trapezoid rule.

    >>> area(np.array([0.0, 0.5, 1.0]), np.array([1.0, 0.5, 0.0]))
    0.5
    """
    return float(np.trapezoid(y, x))


def leave_one_out(case: Case) -> float:
    """τ-b with the drop of the value when each unit alone is blanked. Higher is better.

    Units that say the same hide each other: without either of them nothing is lost. A constant score agrees as a
    random ranking does, 0; where the model loses the same whatever goes, there is nothing to agree with: NaN.
    """
    drop, known = case.variants.one_out(case.blank), ~np.isnan(case.scores)
    if is_constant(drop[known]):
        return float("nan")
    scores = case.scores[known]
    if case.draws == 1:
        scores = -np.argsort(orders(scores, 1, case.seed)[0]).astype(np.float64)
    elif is_constant(scores):
        return 0.0
    return float(coefficients(scores[None], drop[known], "kendall")[0])
