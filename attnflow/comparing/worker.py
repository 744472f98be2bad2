"""What turns rows of data into the records of a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnflow.comparing.plan import ComparePlan
from attnflow.comparing.runs import Worker
from attnflow.comparing.scorer import Scorer, at_layers, correlated
from attnflow.inputs.datasets import Row
from attnflow.inputs.example import one_example
from attnflow.inputs.running import undisturbed


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
