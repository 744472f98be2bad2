"""What turns one row of data into records of a league: every method, judged by every measure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from attnflow.comparing.runs import Worker
from attnflow.comparing.scorer import Scored, Scorer, at_layers
from attnflow.correlation import coefficients, is_constant, tie_share
from attnflow.faithfulness.case import Case, Floats
from attnflow.faithfulness.perturbation import NOISES
from attnflow.faithfulness.plan import LENGTH, RANDOM, RAW, LeaguePlan
from attnflow.faithfulness.randomise import Randomised
from attnflow.faithfulness.registry import RANDOMISATION, Measure
from attnflow.faithfulness.tasks import true_positions
from attnflow.faithfulness.variants import Variants, group
from attnflow.inputs.datasets import Row
from attnflow.inputs.embedding import find
from attnflow.inputs.example import Example, one_example
from attnflow.inputs.running import undisturbed
from attnflow.inputs.target import Goal
from attnflow.scoring.blankout import blankout_of, settle_blank
from attnflow.scoring.registry import MethodCall

RADIUS = 0.1  # of the noise of max-sensitivity, in deviations of the embeddings


@dataclass(eq=False)
class Entry:
    """One line of the league: the scores ``[units]`` of a method at one of its layers; None for the random ranking.

    ``counted``: how many of them are judged and how many are equal, once that was asked. ``rounding``: what is left of
    sums that cancel, where the scores are rounding error.
    """

    method: str
    layer: int | None
    scores: Floats
    call: MethodCall | None = None
    counted: tuple[int, float] | None = None
    rounding: float | None = None

    @property
    def is_blankout(self) -> bool:
        """Leaving one out is what blank-out does, so it cannot be judged by it."""
        return self.call is not None and self.call.method.function is blankout_of


@dataclass(eq=False)
class Judge:
    """All lines of one example, and what they are judged on."""

    plan: LeaguePlan
    row: Row
    scorer: Scorer
    variants: Variants

    @property
    def example(self) -> Example:
        """What the model is given."""
        return self.scorer.example

    def entries(self) -> list[Entry]:
        """The baselines, and each method at each layer that was asked for."""
        names = self.variants.groups.tokens
        out = [
            Entry(RANDOM, None, np.zeros(len(names))),
            Entry(LENGTH, None, np.array([float(len(name)) for name in names])),
        ]
        for call in self.plan.methods:
            found = self._layers(call, self._scores(call))
            layers = [None if layer == "input" else int(layer) for layer in found.layers]
            rows = zip(layers, found.rows, strict=True)
            out += [Entry(call.name, at, row, call, rounding=found.rounding) for at, row in rows]
        return out

    def _layers(self, call: MethodCall, found: Scored) -> Scored:
        kept = at_layers(found, self.plan.layers)
        if call.name == RAW and found.layers[-1] not in kept.layers:
            kept = at_layers(found, (*(self.plan.layers or ()), -1))
        return kept

    def _scores(self, call: MethodCall) -> Scored:
        """Blank-out by one kind of blank is what leaving one out runs anyway, so its texts are shared."""
        options = {**call.method.defaults, **call.options}
        plain = self.variants.groups.tokens.special.count(False) == len(self.variants.units)
        if call.method.function is not blankout_of or not set(options) <= {"blank", "signed"} or not plain:
            return self.scorer.score(call)
        with self.scorer.costs.timed(call.name):
            drop = self.variants.one_out(settle_blank(self.example, options.get("blank", "auto")))
            scores = np.full(len(self.variants.groups.members), np.nan)
            scores[self.variants.units] = drop if options.get("signed") else np.abs(drop)
        return Scored(scores[None], ("input",))

    def case(self, entry: Entry, noisy: list[Scorer] | None = None) -> Case:
        """What the measures are given for one line."""
        names, units = self.variants.groups.tokens, self.variants.units
        plain = ~np.array(names.special, bool)
        truth = None
        if self.plan.pointed:
            where = set(
                true_positions(self.example.tokenizer, self.row, len(self.example.tokens), self.plan.max_length)
            )
            truth = np.array([bool(where & set(members)) for members in self.variants.groups.members])[plain]
        shaken = None
        if noisy is not None:

            def shaken(row: Floats) -> Floats:
                return self._shaken(entry, noisy, int(row[0]))[units]

        return Case(
            entry.scores[units], self.variants, draws=self.plan.draws, seed=(self.plan.seed, self.row.number),
            steps=self.plan.steps, pointed=entry.scores[plain], truth=truth, shaken=shaken,
        )  # fmt: skip

    def _shaken(self, entry: Entry, noisy: list[Scorer], number: int) -> Floats:
        if number == 0 or entry.call is None:
            return entry.scores
        embedder = find(self.example.model, self.example.inputs)
        points = embedder.embeddings(self.example.model, self.example.inputs)
        generator = torch.Generator().manual_seed(number)
        noise = [
            RADIUS * float(p.std()) * (2 * torch.rand(p.shape, generator=generator) - 1).to(p.device) for p in points
        ]
        with embedder.shaken(noise):
            found = noisy[number - 1].score(entry.call)
        return _at(found, entry.layer)

    def records(self, entries: list[Entry], needs: Sequence[str] = ("blank", "truth", "model")) -> Iterator[Any]:
        """One record per line, measure that needs one of ``needs``, and kind of blank."""
        blanks = self.plan.settled(self.example)
        measures = [m for m in self.plan.measures if m.function is not None and m.needs in needs]
        noisy = None
        if any(m.needs == "model" for m in measures):
            fresh = [replace(self.example, cache={}) for _ in range(NOISES)]
            noisy = [replace(self.scorer, example=example) for example in fresh]
        for entry in entries:
            case = self.case(entry, noisy)
            for measure in measures:
                kinds: Any = blanks if measure.needs == "blank" else {None: "delete"}
                if measure.name == "leave_one_out" and entry.is_blankout:
                    continue
                for kind, blank in kinds.items():
                    value, drawn = _values(measure, replace(case, blank=blank), entry.method == RANDOM)
                    yield self.record(entry, measure.name, kind, value, drawn)

    def record(self, entry: Entry, measure: str, kind: str | None, value: float, drawn: float) -> dict[str, Any]:
        """One number, the same for the first draw alone, and the share of ties among the scores that it judges."""
        count, ties = self._counted(entry)
        return {
            "method": entry.method, "layer": entry.layer, "measure": measure, "kind": kind, "value": value,
            "drawn": drawn, "n": count, "ties": ties, "rounding": entry.rounding,
        }  # fmt: skip

    def _counted(self, entry: Entry) -> tuple[int, float]:
        """(units, share of ties among their scores), the same for every measure."""
        if entry.counted is None:
            scores = entry.scores[self.variants.units]
            entry.counted = (len(scores), tie_share(scores[~np.isnan(scores)]))
        return entry.counted

    def survival(self, entries: list[Entry], copies: Randomised) -> Iterator[dict[str, Any]]:
        """The rank correlation of the scores with those of the same method on weights that are random."""
        units = self.variants.units
        for stage, copy in copies:
            example = replace(self.example, model=copy, cache={})
            scorer = replace(self.scorer, example=example)
            for entry in entries:
                # The baselines ask no model, so that nothing changes for them.
                after = entry.scores if entry.call is None else _at(scorer.score(entry.call), entry.layer)
                value = _spearman(entry.scores[units], after[units])
                yield self.record(entry, RANDOMISATION, stage, value, value)


class RankWorker(Worker):
    """One record per method, layer, measure and kind of blank."""

    def __init__(self, model: Any, tokenizer: Any, plan: LeaguePlan) -> None:
        super().__init__(model, tokenizer, plan.on_error, plan.untrained, "Ranking")
        self.plan = plan
        self.copies: Randomised | None = None

    def score(self, row: Row) -> Iterator[dict[str, Any]]:
        """The records of one example."""
        plan = self.plan
        with undisturbed(self.model) as model:
            with self.costs.timed("encode"):
                example = one_example(model, self.tokenizer, row.text, plan.max_length)
                goal = goal_of(example, row.target, plan.position)
            scorer = Scorer(example, goal, plan.position, plan.unit, batch_size=plan.batch_size, costs=self.costs)
            judge = Judge(plan, row, scorer, Variants(example, goal, group(example, plan.unit), plan.batch_size))
            entries = judge.entries()
            with self.costs.timed("variants"), judge.variants.planning():
                for _ in judge.records(entries, ("blank",)):
                    pass
            with self.costs.timed("measures"):
                found = list(judge.records(entries))
            if row.number < plan.randomised and any(m.name == RANDOMISATION for m in plan.measures):
                with self.costs.timed(RANDOMISATION):
                    self.copies = self.copies or Randomised(model, plan.seed)
                    quiet = replace(judge, scorer=replace(scorer, costs=type(self.costs)()))
                    found += quiet.survival(entries, self.copies)
        counts = {"target": goal.label, "passes": judge.variants.passes, "variants": judge.variants.ran}
        yield from ({**counts, **record} for record in found)


def goal_of(example: Example, target: Any, position: int | str | None) -> Goal:
    """The number that is explained; of two tokens their logits are compared, for the probabilities may be tiny."""
    return example.goal(target, position, "logit" if isinstance(target, tuple) else None)[0]


def _values(measure: Measure, case: Case, is_random: bool) -> tuple[float, float]:
    """(the mean over the draws, the value of the first draw alone).

    A random ranking, where the scores count and not their order alone, is drawn as scores. Methods are compared by
    single draws: the mean of a random ranking is no ranking, and would win where values are skewed.
    """
    assert measure.function is not None
    if measure.ranks:
        value = measure.function(case)
        return value, value if case.settled else measure.function(replace(case, draws=1))
    if not is_random or measure.needs == "model":
        value = measure.function(case)
        return value, value
    rng = case.rng(3)
    drawn = []
    for _ in range(case.draws):
        pointed = None if case.pointed is None else rng.random(len(case.pointed))
        drawn.append(measure.function(replace(case, scores=rng.random(len(case.scores)), pointed=pointed)))
    return float(np.mean(drawn)), drawn[0]


def _at(found: Scored, layer: int | None) -> Floats:
    row: Floats = found.rows[0 if layer is None else list(found.layers).index(layer)]
    return row


def _spearman(before: Floats, after: Floats) -> float:
    known = ~(np.isnan(before) | np.isnan(after))
    if is_constant(before[known]) or is_constant(after[known]):
        return float("nan")
    return float(coefficients(before[known][None], after[known], "spearman")[0])
