"""What turns rows of data into records, with one model: the same here and on every machine of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnflow.comparing.plan import Plan
from attnflow.comparing.scorer import Costs, Scorer, at_layers, correlated
from attnflow.errors import AttnFlowError
from attnflow.inputs.datasets import Row
from attnflow.inputs.example import one_example
from attnflow.inputs.running import undisturbed


class Worker:
    """Makes the records of a comparison; a model given by name is loaded here."""

    def __init__(self, model: Any, tokenizer: Any, plan: Plan) -> None:
        if isinstance(model, str):
            from attnflow.models.loading import load

            model, loaded = load(model)
            tokenizer = loaded if tokenizer is None else tokenizer
        self.model, self.tokenizer, self.plan = model, tokenizer, plan
        self.costs = Costs()

    def take_costs(self) -> dict[str, float]:
        """Seconds by part since the last time."""
        costs, self.costs = self.costs, Costs()
        return costs.seconds

    def records(self, row: Row) -> list[dict[str, Any]]:
        """One record per method, reference, correlation and layer, with and without special tokens."""
        head = {"example": row.number, "digest": row.digest}
        try:
            return [{**head, **record} for record in self._records(row)]
        except AttnFlowError as error:
            if self.plan.on_error == "skip":
                return [{**head, "error": str(error)}]
            raise type(error)(
                f"Example {row.number}: {error}\nLeave such examples out by on_error='skip' (--skip-errors)."
            ) from error

    def _records(self, row: Row) -> Iterator[dict[str, Any]]:
        plan = self.plan
        with undisturbed(self.model) as model:
            with self.costs.timed("encode"):
                example = one_example(model, self.tokenizer, row.text, plan.max_length)
                goal, _ = example.goal(row.target, plan.position, None)
            scorer = Scorer(
                example, goal, plan.position, unit=plan.unit, batch_size=plan.batch_size, costs=self.costs
            )  # fmt: skip
            scores = {call.name: at_layers(scorer.score(call), plan.layers) for call in plan.methods}
            references = {call.name: scorer.score(call) for call in plan.references}
        with self.costs.timed("correlate"):
            found = list(
                correlated(
                    scorer.tokens, scores, references, correlations=plan.correlations, special=plan.special, k=plan.k
                )
            )
        for record in found:
            yield {"target": goal.label, **record}
