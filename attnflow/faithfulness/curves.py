"""Deletion and insertion curves, and the areas under them (Petsiuk et al. 2018, for texts).

Deletion starts from the text and blanks units, best first; insertion starts from a text of blanks and puts them back.
The x axis is the share of units that went or came, from 0 to 1, in steps of one tenth by default (rounded up to whole
units). The area is by the trapezoid rule.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attnflow.faithfulness.case import Case
from attnflow.faithfulness.ranking import count_of, top

Floats = npt.NDArray[np.float64]


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
    counts = np.unique(count_of(np.linspace(0, 1, case.steps + 1), units))
    best = top(case.orders, counts)
    values = case.variants.values(case.blank, ~best if going else best)
    return counts / units, values.reshape(-1, len(counts)).mean(0)


def area(x: Floats, y: Floats) -> float:
    """The area under a curve by the trapezoid rule.

    >>> area(np.array([0.0, 0.5, 1.0]), np.array([1.0, 0.5, 0.0]))
    0.5
    """
    return float(np.trapezoid(y, x))
