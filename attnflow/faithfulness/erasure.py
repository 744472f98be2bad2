"""Erasure in bins: comprehensiveness and sufficiency of ERASER (DeYoung et al. 2020, section 4.2).

What does the model still say without the best inputs, and with nothing else? Both are means over five bins, the best
1, 5, 10, 20 and 50 % of the units. (Ferrando et al.'s code sums five bins and divides by six; here it is five.)
"""

from __future__ import annotations

import numpy as np

from attnflow.faithfulness.case import Case
from attnflow.faithfulness.ranking import count_of, top

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
