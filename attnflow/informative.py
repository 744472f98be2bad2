"""Is this informative? Figures that say whether scores tell something about this text, or what any text would give.

Attention of language models goes to the first token whatever the text says, and that of encoders to [CLS] and [SEP].
Many scores rank the inputs by their position alone, and flows of deep models are the same for every output. Such scores
are right as computed and tell nothing about this text. Each figure is taken at the last layer of a result.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.correlation import coefficients
from attnflow.relevance import Relevance

Array = npt.NDArray[np.float64]

# From here on a figure is called a reason for doubt.
MUCH = 0.5
ORDERED = 0.9
ALIKE = 0.98
# Scores that differ by less than this share of the largest are called flat.
FLAT = 0.01
# The least number of inputs whose rankings are compared, and the largest number of outputs.
FEWEST = 4
SAMPLE = 16


@dataclass(frozen=True)
class Informative:
    """How far scores may be believed to be about this text.

    Attributes:
        first: the share of the mass on the first input.
        special: the share on special tokens; the share that they had, where they were dropped.
        position: Spearman's rank correlation with plain position: 1 where earlier inputs score higher, −1 where later
            ones do; None with fewer than four inputs.
        rows: how far the outputs rank the inputs alike: the mean rank correlation between outputs, 1 where all have the
            same ranking; None where one output is known.
        flat: True if one output is known and all inputs have nearly the same score for it.
        rounding: the share that is left of sums that cancel, where the scores are such sums and so rounding error.

    >>> i = Informative(first=0.9997, special=0.0, position=0.4, rows=None)
    >>> i.doubts
    ('100% of the mass is on the first token',)
    >>> i.line
    'is this informative? careful: 100% of the mass is on the first token'
    """

    first: float
    special: float
    position: float | None
    rows: float | None
    flat: bool = False
    rounding: float | None = None

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons to doubt that the scores say something about this text."""
        out = ["all inputs have nearly the same score, which ranks nothing"] if self.flat else []
        if self.rounding is not None:
            out.append(f"the scores are rounding error: {_left(self.rounding)}")
        if self.first >= MUCH:
            out.append(f"{self.first:.0%} of the mass is on the first token")
        if self.special >= MUCH and self.special > self.first + 0.01:
            out.append(f"{self.special:.0%} of the mass is on special tokens")
        if self.position is not None and abs(self.position) >= ORDERED and not self.flat:
            way = "earlier" if self.position > 0 else "later"
            out.append(
                f"{way} tokens score higher, whatever they are (rank agreement with position {self.position:.2f})"
            )
        if self.rows is not None and self.rows >= ALIKE:
            out.append("every output ranks the inputs alike, so it is not about this one in particular")
        return tuple(out)

    @property
    def line(self) -> str:
        """The answer in one line, with all figures where there is no doubt."""
        if self.doubts:
            return f"is this informative? careful: {'; '.join(self.doubts)}"
        parts = [f"{self.first:.0%} of the mass on the first token", f"{self.special:.0%} on special tokens"]
        if self.position is not None:
            parts.append(f"rank agreement with position {self.position:.2f}")
        if self.rows is not None:
            parts.append(f"between outputs {self.rows:.2f}")
        return f"is this informative? nothing speaks against it: {', '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        """The figures and the line."""
        figures = {name: getattr(self, name) for name in ("first", "special", "position", "rows", "flat", "rounding")}
        return {**figures, "line": self.line}


def informative(r: Relevance) -> Informative:
    """The figures of one result, at its last layer.

    >>> import numpy as np
    >>> scores = np.array([[0.97, 0.01, 0.015, 0.005]])
    >>> informative(Relevance(scores, list("abcd"), (0,), "rollout", {"position": 3})).doubts
    ('97% of the mass is on the first token',)
    """
    scores = np.abs(np.nan_to_num(np.asarray(r.scores[-1], np.float64)))
    rows = scores if scores.ndim == 2 else scores[None]
    total = float(rows.sum())
    first = float(rows[:, 0].sum()) / total if total else 0.0
    special = r.dropped if r.dropped is not None else r.special_share
    agreed = r.row_agreement if scores.ndim == 1 else row_agreement(scores)
    alike = scores.ndim == 1 and flat(r.scores[-1])
    return Informative(first, special, _with_position(rows), agreed, alike, r.rounding)


def rounding_note(name: str, shares: Sequence[float], examples: int) -> str:
    """What stands below a table over ``examples`` of which some have scores that are rounding error.

    ``shares`` are their :attr:`Relevance.rounding`.

    >>> rounding_note("gradient-paper", [1e-8, 3e-8, 2e-8], 3)
    'gradient-paper is rounding error here: |Σg| is 2e-08 of Σ|g| (median over 3 examples)'
    """
    over = f"{len(shares)} of {examples}" if len(shares) < examples else f"{examples}"
    plural = "s" if examples != 1 else ""
    return f"{name} is rounding error here: {_left(float(np.median(shares)))} (median over {over} example{plural})"


def _left(share: float) -> str:
    return f"|Σg| is {share:.0e} of Σ|g|"


def flat(scores: npt.NDArray[np.floating[Any]]) -> bool:
    """True if the scores of three inputs or more differ by less than ``FLAT`` of the largest: they rank nothing.

    >>> flat(np.array([0.25, 0.251, 0.25])), flat(np.array([0.2, 0.3, 0.5]))
    (True, False)
    """
    found = scores[np.isfinite(scores)]
    return len(found) >= 3 and bool(np.ptp(found) <= FLAT * np.abs(found).max())


def row_agreement(scores: Array) -> float | None:
    """The mean rank correlation between rows ``[outputs, inputs]``, over the inputs that both outputs reach."""
    found = []
    rows = _some(scores)
    for one, other in itertools.pairwise(rows):
        seen = (one > 0) & (other > 0)
        value = _spearman(one[seen], other[seen])
        found += [] if value is None else [value]
    return float(np.mean(found)) if found else None


def _with_position(rows: Array) -> float | None:
    found = []
    for row in _some(rows):
        seen = np.flatnonzero(row > 0)
        value = _spearman(row[seen], -seen.astype(np.float64))
        found += [] if value is None else [value]
    return float(np.mean(found)) if found else None


def _some(rows: Array) -> Array:
    """At most ``SAMPLE`` rows, evenly spread, the last among them."""
    at = np.unique(np.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).round().astype(int))
    some: Array = rows[at]
    return some


def _spearman(one: Array, other: Array) -> float | None:
    if len(one) < FEWEST:
        return None
    # Scores that are all the same rank nothing.
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 1.0 if np.ptp(one) == np.ptp(other) else None
    return float(coefficients(one[None], other, "spearman", 5)[0])
