"""Agreement with leaving one out: Kendall's τ-b between the scores and what the model loses without each unit."""

from __future__ import annotations

import numpy as np

from attnflow.correlation import coefficients, is_constant
from attnflow.faithfulness.case import Case
from attnflow.faithfulness.ranking import orders


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
