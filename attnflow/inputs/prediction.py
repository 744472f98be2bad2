"""What the model said of an example: the class or token that it predicted, how sure it was, and what came next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from attnflow.inputs.example import Example
from attnflow.inputs.target import Goal
from attnflow.inputs.untrained import untrained

BEST = 3


@dataclass(frozen=True)
class Prediction:
    """What a model predicted, for a reader.

    Attributes:
        label: the class or token, as text.
        probability: its share, or its own probability where classes do not exclude one another; None for a model with
            one output, which is no probability, then ``value`` is that output.
        others: the next best, with their probabilities.
        place: where in the text it is predicted: "" for the whole of it.
        chance: True if weights that it depends on were drawn at random when the model was loaded.

    >>> Prediction("singular", 0.984, (("plural", 0.016),)).line
    'The model predicts singular (98.4 %); next plural (1.6 %).'
    """

    label: str
    probability: float | None
    others: tuple[tuple[str, float], ...] = ()
    place: str = ""
    value: float | None = None
    chance: bool = False

    @property
    def line(self) -> str:
        """One sentence, and another where the prediction is chance."""
        return f"{self._said()}{' This is chance: weights behind it were drawn at random.' if self.chance else ''}"

    def _said(self) -> str:
        place = f" {self.place}" if self.place else ""
        if self.probability is None:
            return f"The model gives {self.value:.4g}{place} (one output, which is no probability)."
        after = ", ".join(f"{label} ({_percent(p)})" for label, p in self.others)
        said = f"The model predicts {self.label}{place} ({_percent(self.probability)})"
        return f"{said}; next {after}." if after else f"{said}."


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 or share == 0 else "< 0.1 %"


def prediction_of(example: Example, goal: Goal) -> Prediction | None:
    """What the model predicted where ``goal`` is read; None for a model without a head, which predicts nothing."""
    if goal.kind not in ("classification", "token"):
        return None
    row = goal.row(example.outputs)[0].detach()
    place, chance = _place(example, goal), bool(untrained(example.model))
    if len(row) == 1 and not goal.independent:
        return Prediction("", None, place=place, value=float(row[0]), chance=chance)
    shares = replace(goal, score="prob").scored(row[None])[0]
    best = shares.argsort(descending=True, stable=True)[:BEST].tolist()
    named = [(_label(example, goal, i, len(row)), float(shares[i])) for i in best]
    return Prediction(*named[0], tuple(named[1:]), place, chance=chance)


def _place(example: Example, goal: Goal) -> str:
    if goal.kind != "token" or goal.position is None:
        return ""
    last = goal.position == len(example.queries) - 1
    if last and example.reads_last:
        return "as the next token"
    return f"at position {goal.position} {example.queries[goal.position]}"


def _label(example: Example, goal: Goal, index: int, count: int) -> str:
    """A class by its name; a token as it stands in a text, in quotes, as it may be a space or a comma."""
    names: Any = getattr(getattr(example.model, "config", None), "id2label", None) or {}
    if count == len(names):
        return str(names.get(index, index))
    if goal.kind == "classification" or example.tokenizer is None:
        return str(index)
    return repr(str(example.tokenizer.decode([index])))
