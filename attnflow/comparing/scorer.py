"""All records of one example: run the model, score the inputs in every way, correlate."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.comparing.plan import Plan, Step
from attnflow.correlation import coefficients, tie_share, tie_shares
from attnflow.errors import AttnFlowError, SelectionError, ShapeError
from attnflow.inputs.datasets import Row
from attnflow.inputs.example import Example, one_example, ready
from attnflow.inputs.target import Goal
from attnflow.relevance import Relevance
from attnflow.select import pick_layer
from attnflow.tokens import Tokens

Scores = npt.NDArray[np.float64]


class Worker:
    """Makes records with one model; the same here and on every machine of a cluster."""

    def __init__(self, model: Any, tokenizer: Any, plan: Plan) -> None:
        if isinstance(model, str):
            from attnflow.models.loading import load

            model, loaded = load(model)
            tokenizer = loaded if tokenizer is None else tokenizer
        self.model, self.tokenizer, self.plan = model, tokenizer, plan
        self.costs: dict[str, float] = {}

    def take_costs(self) -> dict[str, float]:
        """Seconds by part since the last time."""
        costs, self.costs = self.costs, {}
        return costs

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.costs[part] = self.costs.get(part, 0.0) + time.perf_counter() - start

    def records(self, row: Row) -> list[dict[str, Any]]:
        """One record for each method, reference, correlation and layer, with and without special tokens."""
        head = {"example": row.number, "digest": row.digest}
        try:
            return [{**head, **record} for record in self._records(row)]
        except AttnFlowError as error:
            if self.plan.on_error == "skip":
                return [{**head, "error": str(error)}]
            raise type(error)(
                f"Example {row.number}: {error}\nLeave such examples out by on_error='skip' (--skip-errors)."
            ) from error

    def _records(self, row: Row) -> list[dict[str, Any]]:
        with ready(self.model) as model:
            with self._timed("encode"):
                example = one_example(model, self.tokenizer, row.text, self.plan.max_length)
                goal, _ = example.goal(row.target, self.plan.position, None)
            tokens, scores = self._methods(model, example, goal)
            references = {step.name: self._reference(step, example, goal, tokens) for step in self.plan.references}
        with self._timed("correlate"):
            return [{"target": goal.label, **record} for record in self._correlated(tokens, scores, references)]

    def _methods(self, model: Any, example: Example, goal: Goal) -> tuple[Tokens, dict[str, tuple[list[int], Scores]]]:
        """Names of the compared units, and for each method its layers and ``[layers, units]``."""
        from attnflow.capturing.capture import capture

        with self._timed("capture"):
            attention = capture(model, self.tokenizer, inputs=example.inputs)
        out: dict[str, tuple[list[int], Scores]] = {}
        tokens = example.tokens
        for step in self.plan.methods:
            with self._timed(step.name):
                found = step.function(attention, position=example.place(goal, self.plan.position), **step.options)
                aligned = aligned_to(found, example.tokens)
                aligned = aligned.words() if self.plan.unit == "word" else aligned
                kept = self._layers(aligned)
                tokens = aligned.tokens
                out[step.name] = kept, aligned.scores[[list(aligned.layers).index(i) for i in kept]]
        return tokens, out

    def _layers(self, found: Relevance) -> list[int]:
        if self.plan.layers is None:
            return [int(i) for i in found.layers]
        return [int(found.layers[pick_layer(i, found.layers)]) for i in self.plan.layers]

    def _reference(self, step: Step, example: Example, goal: Goal, tokens: Tokens) -> Scores:
        with self._timed(step.name):
            options = dict(step.options)
            if step.function.__module__ == "attnflow.scoring.gradient":
                goal = _scored(goal, options.pop("score", None), options.get("reduce"))
                found = step.function(example, goal, example.outputs, batch_size=self.plan.batch_size, **options)
                found = found.words() if self.plan.unit == "word" else found
            elif step.function.__module__ == "attnflow.scoring.blankout":
                options = {"batch_size": self.plan.batch_size, **options, "unit": self.plan.unit}
                found = step.function(example, goal, example.outputs, **options)
            else:
                found = step.function(self.model, self.tokenizer, example.inputs)
            scores = found.scores.reshape(-1) if isinstance(found, Relevance) else np.asarray(found).reshape(-1)
        if len(scores) != len(tokens):
            raise ShapeError(f"The reference {step.name} scores {len(scores)} inputs, the methods {len(tokens)}.")
        return np.asarray(scores, np.float64)

    def _correlated(
        self, tokens: Tokens, scores: Mapping[str, tuple[list[int], Scores]], references: Mapping[str, Scores]
    ) -> Iterator[dict[str, Any]]:
        """All methods against one reference at a time: one ranking for all their layers."""
        names = [(method, layer) for method, (layers, _) in scores.items() for layer in layers]
        stacked = np.concatenate([rows for _, rows in scores.values()])
        plain = ~np.array(tokens.special, bool)
        for special in self.plan.special:
            for reference, ref in references.items():
                keep = np.isfinite(ref) & np.isfinite(stacked).all(0) & (plain | special)
                rows, one = stacked[:, keep], ref[keep]
                ties = tie_shares(rows)
                shared = {"reference": reference, "special": special, "n": int(keep.sum()),
                          "reference_ties": tie_share(one)}  # fmt: skip
                for kind in self.plan.correlations:
                    values = coefficients(rows, one, kind, self.plan.k)
                    for (method, layer), value, tied in zip(names, values, ties, strict=True):
                        yield {**shared, "method": method, "layer": layer, "correlation": kind,
                               "value": float(value), "ties": float(tied)}  # fmt: skip


def _scored(goal: Goal, score: str | None, reduce: str | None) -> Goal:
    """Gradients are of logits unless asked otherwise; a single output has no other score."""
    if goal.kind not in ("classification", "token") or goal.score == "logit":
        return goal
    return replace(goal, score=score or ("prob" if reduce == "paper" else "logit"))


def aligned_to(found: Any, tokens: Tokens) -> Relevance:
    """The scores of a method over the tokens that the references score."""
    from attnflow.attention import SINK

    if not isinstance(found, Relevance) or found.scores.ndim != 2:
        raise SelectionError(
            f"A method gave {found!r}, and a Relevance of one position, [layers, keys], is needed:  "
            "methods={'mine': lambda attention, position: …}"
        )
    scores, names = found.scores, tuple(found.tokens)
    if len(names) == len(tokens) + 1 and names[-1] == SINK:
        scores, names = scores[:, :-1], names[:-1]
    if len(names) != len(tokens):
        where = {name: i for i, name in enumerate(names)}
        if len(where) != len(names) or not set(where) & set(tokens):
            raise ShapeError(f"The attention is over {len(names)} positions, the inputs have {len(tokens)}.")
        # Images: one side may not know of tokens that are no patches.
        blank = np.full((len(scores), 1), np.nan)
        padded = np.concatenate([scores, blank], 1)
        scores = padded[:, [where.get(t, -1) for t in tokens]]
    return replace(found, scores=scores, tokens=tokens)
