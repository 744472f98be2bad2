"""The one list of measures of faithfulness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnflow.errors import SelectionError
from attnflow.faithfulness import erasure, perturbation, soft, truth
from attnflow.faithfulness.case import Case
from attnflow.numbers import word

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Measure:
    """One way to judge scores.

    Attributes:
        name: what tables and options call it.
        function: from a :class:`Case` to a number; None where the worker compares several models (randomisation).
        needs: "blank" (there is one number for each kind of blank), "truth" (the inputs that must matter) or "model"
            (the method is run again).
        higher: True if more is better.
        ranks: True if only the order of the scores counts, so that ties are broken at random.
        judged: True if methods are ranked by it. Stability and randomisation say whether a score may be read at all; a
            score that never changes would win them.
        help: what it does, in one line.
        reference: the paper.
    """

    name: str
    function: Callable[[Case], float] | None
    needs: str
    higher: bool
    help: str
    reference: str = ""
    ranks: bool = True
    judged: bool = True


RANDOMISATION = "randomisation"
_ERASER, _SOFT, _YEH, _ARRAS = "DeYoung et al. 2020", "Zhao & Aletras 2023", "Yeh et al. 2019", "Arras et al. 2025"
MEASURES = {
    measure.name: measure
    for measure in (
        Measure("comprehensiveness", erasure.comprehensiveness, "blank", True,
                "How much the value falls without the best 1, 5, 10, 20, 50 %.", _ERASER),
        Measure("sufficiency", erasure.sufficiency, "blank", False,
                "How much it falls with the best 1, 5, 10, 20, 50 % alone.", _ERASER),
        Measure("deletion", erasure.deletion, "blank", False,
                "The area under the value as inputs go, best first.", "Petsiuk et al. 2018"),
        Measure("insertion", erasure.insertion, "blank", True,
                "The area under the value as inputs come, best first.", "Petsiuk et al. 2018"),
        Measure("leave_one_out", erasure.leave_one_out, "blank", True,
                "Kendall's τ-b with what the model loses without each input.", "Jain & Wallace 2019"),
        Measure("soft_comprehensiveness", soft.soft_comprehensiveness, "blank", True,
                "The fall when inputs go with a probability by their score.", _SOFT, ranks=False),
        Measure("soft_sufficiency", soft.soft_sufficiency, "blank", False,
                "The fall when inputs stay with a probability by their score.", _SOFT, ranks=False),
        Measure("infidelity", perturbation.infidelity, "blank", False,
                "Sums of scores against what the model loses without random sets.", _YEH, ranks=False),
        Measure("max_sensitivity", perturbation.max_sensitivity, "model", False,
                "The largest change of the scores under small noise.", _YEH, ranks=False, judged=False),
        Measure("pointing", truth.pointing, "truth", True,
                "Whether the best input is one that must matter.", "Zhang et al. 2016"),
        Measure("reciprocal_rank", truth.reciprocal_rank, "truth", True,
                "1 / rank of the input that must matter.", _ARRAS),
        Measure("relevance_mass", truth.relevance_mass, "truth", True,
                "The share of all scores on what must matter.", _ARRAS, ranks=False),
        Measure(RANDOMISATION, None, "model", False,
                "Rank correlation of the scores before and after the weights are random, from the top down.",
                "Adebayo et al. 2018", ranks=False, judged=False),
    )
}  # fmt: skip
DEFAULT = ("comprehensiveness", "sufficiency", "deletion", "insertion", "leave_one_out")
WITH_TRUTH = ("pointing", "reciprocal_rank", "relevance_mass", "comprehensiveness", "sufficiency")


def find_measures(names: str | Sequence[str]) -> tuple[Measure, ...]:
    """The measures of these names; for an unknown one, an error that lists them.

    >>> [m.needs for m in find_measures(["deletion", "pointing"])]
    ['blank', 'truth']
    """
    given = (names,) if isinstance(names, str) else tuple(names)
    if not given:
        raise SelectionError(f"measures is empty: choose from {', '.join(MEASURES)}.")
    for name in given:
        if word(name, "measures") not in MEASURES:
            raise SelectionError(f"measures: {name!r} is not known. Use some of: {', '.join(MEASURES)}.")
    return tuple(MEASURES[name] for name in dict.fromkeys(given))


def measures() -> pd.DataFrame:
    """Every measure: name, what it needs, which way is better, whether methods are ranked by it, help and paper.

    >>> measures().set_index("name").loc["sufficiency", "better"]
    'lower'
    """
    import pandas as pd

    rows = [
        [m.name, m.needs, "higher" if m.higher else "lower", m.judged, m.help, m.reference] for m in MEASURES.values()
    ]
    return pd.DataFrame(rows, columns=["name", "needs", "better", "ranked by", "help", "reference"])
