"""What a comparison computes: methods, references and their options, checked before anything runs; and its worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from attnflow.comparing.records import COMPARE, Layout
from attnflow.comparing.runs import Worker
from attnflow.comparing.scorer import Scorer, at_layers, correlated
from attnflow.correlation import METHODS as CORRELATIONS
from attnflow.digests import config_digest, files_digest, tokenizer_digest, weights_digest
from attnflow.errors import SelectionError
from attnflow.inputs.datasets import Row
from attnflow.inputs.example import one_example
from attnflow.inputs.running import undisturbed, unwrap
from attnflow.models.loading import commit_of
from attnflow.numbers import check_max_length, wholes, word
from attnflow.scoring.registry import MethodCall, Spec, calls

UNITS = ("token", "word")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What every run over examples has to know, whatever it computes."""

    layers: tuple[int, ...] | None
    position: int | str | None = None
    unit: str
    max_length: int | None
    batch_size: int
    on_error: str
    untrained: bool = False
    layout: ClassVar[Layout]
    doing: ClassVar[str]

    def settings(self) -> dict[str, Any]:
        """Plain JSON: two runs with the same settings have the same records."""
        layers = None if self.layers is None else list(self.layers)
        return {"layers": layers, "position": self.position, "unit": self.unit, "max_length": self.max_length}


@dataclass(frozen=True, kw_only=True)
class ComparePlan(Plan):
    """Everything that decides what the records are; see :func:`attnflow.compare`."""

    methods: tuple[MethodCall, ...]
    references: tuple[MethodCall, ...]
    correlations: tuple[str, ...]
    special: tuple[bool, ...]
    k: int
    layout = COMPARE
    doing = "comparing"

    def worker(self, model: Any, tokenizer: Any) -> Worker:
        """What turns rows into records."""
        return CompareWorker(model, tokenizer, self)

    def settings(self) -> dict[str, Any]:
        """Plain JSON: two runs with the same settings have the same records."""
        return {
            **super().settings(),
            "methods": {s.name: s.settings() for s in self.methods},
            "references": {s.name: s.settings() for s in self.references},
            "correlations": list(self.correlations),
            "special_tokens": list(self.special),
            "k": self.k,
        }


def check_choices(unit: str, on_error: str) -> None:
    """Refuse a unit or a way to take errors that there is not."""
    for argument, value, known in (("unit", unit, UNITS), ("on_error", on_error, ("raise", "skip"))):
        if word(value, argument) not in known:
            raise SelectionError(f"{argument}={value!r} is not known. Use one of: {', '.join(known)}.")


def make_plan(
    methods: Spec,
    references: Spec,
    correlation: str | Sequence[str],
    special_tokens: bool | None,
    layers: int | Sequence[int] | None,
    **rest: Any,
) -> ComparePlan:
    """Check the names and options, and find the functions."""
    chosen = (correlation,) if isinstance(correlation, str) else tuple(correlation)
    for name in chosen:
        if word(name, "correlation") not in CORRELATIONS:
            raise SelectionError(f"correlation={name!r} is not known. Use one of: {', '.join(CORRELATIONS)}.")
    check_choices(rest["unit"], rest["on_error"])
    return ComparePlan(
        methods=calls("methods", methods, "attention"),
        references=calls("references", references, "model"),
        correlations=chosen,
        special=(False, True) if special_tokens is None else (special_tokens,),
        layers=None if layers is None else wholes(layers, "layers"),
        **{**rest, "max_length": check_max_length(rest["max_length"])},
    )


class CompareWorker(Worker):
    """One record per method, reference, correlation and layer, with and without special tokens."""

    def __init__(self, model: Any, tokenizer: Any, plan: ComparePlan) -> None:
        super().__init__(model, tokenizer, plan.on_error, plan.untrained, "Comparing")
        self.plan = plan

    def score(self, row: Row) -> Iterator[dict[str, Any]]:
        """The correlations of one example."""
        plan = self.plan
        with undisturbed(self.model) as model:
            with self.costs.timed("encode"):
                example = one_example(model, self.tokenizer, row.text, plan.max_length)
                goal, _ = example.goal(row.target, plan.position, None)
            scorer = Scorer(example, goal, plan.position, plan.unit, batch_size=plan.batch_size, costs=self.costs)
            scores = {call.name: at_layers(scorer.score(call), plan.layers) for call in plan.methods}
            references = {call.name: scorer.score(call) for call in plan.references}
        with self.costs.timed("correlate"):
            how: dict[str, Any] = {"correlations": plan.correlations, "special": plan.special, "k": plan.k}
            found = list(correlated(scorer.tokens, scores, references, **how))
        yield from ({"target": goal.label, **record} for record in found)


def identity(model: Any, tokenizer: Any, kept: bool) -> dict[str, Any]:
    """What tells one model and tokenizer from another: names, and digests of every byte of their content.

    Content is read where records are ``kept``, because only such a run can be gone on with.
    """
    if not kept:
        return {"name": model if isinstance(model, str) else str(getattr(unwrap(model), "name_or_path", ""))}
    known = None if tokenizer is None else {"class": type(tokenizer).__name__, "digest": tokenizer_digest(tokenizer)}
    if isinstance(model, str):
        content = files_digest(Path(model)) if Path(model).exists() else commit_of(model)
        return {"name": model, "content": content, "tokenizer": known}
    model = unwrap(model)
    return {
        "name": str(getattr(model, "name_or_path", "")),
        "class": type(model).__name__,
        "weights": weights_digest(model),
        "config": config_digest(getattr(model, "config", None)),
        "tokenizer": known,
    }
