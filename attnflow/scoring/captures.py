"""Every kind of edges that some methods need, captured once per example, however many methods ask for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from attnflow.attention import RESIDUAL_INSIDE, Attention
from attnflow.capturing.capture import capture
from attnflow.inputs.target import Goal
from attnflow.reprs import one_line
from attnflow.scoring.registry import MethodCall


@one_line
@dataclass(eq=False)
class Captures:
    """The attention of one example by kind of edges.

    Attributes:
        model, tokenizer: as everywhere.
        given: the example, as ``text`` or ``inputs`` of :func:`attnflow.capture`.
        goal: gives the number that gradient edges explain; called once they are asked for.
        heads: how heads are brought down to one matrix, where the edges have heads.
    """

    model: Any
    tokenizer: Any
    given: dict[str, Any]
    goal: Callable[[], Goal]
    heads: Any = "mean"
    kept: dict[tuple[tuple[str, Any], ...], Attention] = field(default_factory=dict)

    def of(self, call: MethodCall) -> Attention:
        """What ``call`` reads."""
        return self._kind(call.captured)

    def any(self) -> Attention:
        """Any of the captures, for what all kinds have in common: names and numbers of positions."""
        return next(iter(self.kept.values())) if self.kept else self._kind({})

    def _kind(self, wanted: dict[str, Any]) -> Attention:
        key = tuple(sorted(wanted.items()))
        if key not in self.kept:
            edges = wanted.get("edges", "attention")
            options = dict(wanted) if edges in RESIDUAL_INSIDE else {**wanted, "heads": self.heads}
            if edges == "gradient":
                options |= explained_by(self.goal())
            found = capture(self.model, self.tokenizer, **self.given, **options)
            self.kept[key] = found[0] if isinstance(found, list) else found  # a list of one text
        return self.kept[key]


def explained_by(goal: Goal) -> dict[str, Any]:
    """The options of capture by which gradient edges explain the same number as ``goal``."""
    return {"target": goal.index if goal.function is None else goal.function, "position": goal.position}
