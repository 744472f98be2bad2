"""Several experiments on one model and one set of data, which are loaded, split and trained once for all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.audit.finding import Finding
from attnflow.audit.registry import Experiment, named
from attnflow.audit.registry import experiments as every_experiment
from attnflow.audit.splits import Progress, Splits
from attnflow.audit.training import Recipe, trained
from attnflow.errors import InputError, SelectionError
from attnflow.files import as_path
from attnflow.numbers import at_least, seed_of, word

if TYPE_CHECKING:
    from attnflow.models.factories import Factory

RATES = {"lstm": 1e-3, "transformer": 3e-4}
"""Models that are made and trained here, with the learning rate of each; any other name is loaded."""
FINE_TUNING = 5e-5
_SHARE = 0.15
Pairs = tuple[list[str], list[Any]]
Bar = Callable[[str], AbstractContextManager[Progress | None]]


def run(
    experiments: str | Sequence[str],
    model: str,
    data: str | os.PathLike[str],
    *,
    text_column: str | None = None,
    label_column: str | None = None,
    valid: str | None = None,
    test: str | None = None,
    rows: int | None = None,
    limit: int = 200,
    min_count: int = 2,
    max_length: int = 256,
    epochs: int = 8,
    patience: int = 3,
    batch: int = 32,
    rate: float | None = None,
    seed: int = 0,
    work: str | os.PathLike[str] = "attnflow-audit",
    report: Callable[[Finding], None] | None = None,
    bar: Bar | None = None,
    **options: Any,
) -> dict[str, Finding]:
    """Run experiments of the debate on one model and data; what ``attnflow audit`` does.

    Args:
        experiments: one name or several of :func:`attnflow.audit.experiments`, or "all".
        model: a hub name or folder; or "lstm" (the papers' model) or "transformer", which are trained here.
        data: a file or the name of a dataset, see :func:`attnflow.inputs.datasets.open_data`.
        text_column, label_column: columns of the data; training needs labels.
        valid, test: data that decide when training stops, and data for the final measurement; by default 15 % of
            ``data`` each.
        rows: read only this many rows of ``data``.
        limit: the number of texts for the experiments that train nothing.
        min_count: for "lstm" and "transformer", words rarer than this are unknown.
        max_length: texts are cut to this many tokens.
        epochs, patience, batch, rate: how models are trained (see :class:`Recipe`); ``rate`` has a default per model.
        seed: the seed of the base model, the permutations and the split.
        work: a folder for checkpoints; a run that was stopped goes on from there.
        report: called with each finding as soon as it stands.
        bar: ``with bar(what) as progress`` shows how far a stage is; ``progress`` is called with (done, total).
        options: options of experiments: ``layers``, ``methods``, ``permutations``, ``epsilon``, ``steps``, ``seeds``,
            ``penalties``.

    Returns:
        The findings by experiment, for :func:`attnflow.audit.report.write_report`.
    """
    model, seed, min_count = word(model, "model"), seed_of(seed), at_least(min_count, 1, "min_count")
    limit, max_length = at_least(limit, 1, "limit"), at_least(max_length, 3, "max_length")
    wanted = named(list(experiments) if not isinstance(experiments, str) else experiments)
    _refuse_unknown(options)
    texts = TextFiles(os.fspath(as_path(data, "data")), text_column, label_column, valid, test, rows, seed)
    rate = RATES.get(model, FINE_TUNING) if rate is None else rate
    recipe = Recipe(epochs, patience, batch, rate, balanced=True)
    subject = Subject(model, texts, recipe, limit, min_count, max_length, seed, as_path(work, "work"), bar or _no_bar)
    findings: dict[str, Finding] = {}
    for one in wanted:
        findings[one.name] = subject.run(one, one.options({"seed": seed, **options}, findings))
        if report is not None:
            report(findings[one.name])
    return findings


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    """An option that no experiment reads is a mistake: it would change nothing, and nobody would know."""
    asked = _Asked(options)
    for one in every_experiment().values():
        with suppress(Exception):  # an experiment that is not run may miss what it needs
            one.options(asked, {})
    unknown = [name for name in options if name not in asked.names]
    if unknown:
        known = ", ".join(sorted(asked.names))
        raise SelectionError(f"{unknown[0]!r} is an option of no experiment. Use some of: {known}.")


class _Asked(Mapping[str, Any]):
    """Options that note which names they are asked for."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return self.options[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.options)

    def __len__(self) -> int:
        return len(self.options)


@contextmanager
def _no_bar(what: str) -> Iterator[None]:
    yield None


@dataclass(frozen=True)
class TextFiles:
    """The files or data sets that texts and labels are read from."""

    data: str
    text_column: str | None
    label_column: str | None
    valid: str | None
    test: str | None
    rows: int | None
    seed: int

    def read(self, name: str, limit: int | None = None) -> Pairs:
        """(texts, labels) of a file or data set; labels are None where no column is named."""
        from attnflow.inputs.datasets import open_data

        rows = list(open_data(name, text_column=self.text_column, target_column=self.label_column, limit=limit))
        return [str(row.text) for row in rows], [row.target for row in rows]

    def parts(self) -> tuple[Pairs, Pairs, Pairs]:
        """Training, validation and test texts; a part without a file of its own is drawn from the data by chance."""
        import numpy as np

        if self.label_column is None:
            raise InputError(
                f'Training needs labels, and no column of {self.data} was named:  label_column="label"  (on the '
                "command line:  --label-column label)"
            )
        texts, labels = self.read(self.data, self.rows)
        order = np.random.default_rng(self.seed).permutation(len(texts))
        share = max(1, round(_SHARE * len(texts)))
        out = []
        for name in (self.valid, self.test):
            if name is not None:
                out.append(self.read(name))
            else:
                drawn, order = order[:share], order[share:]
                out.append(([texts[i] for i in drawn], [labels[i] for i in drawn]))
        train = ([texts[i] for i in order], [labels[i] for i in order])
        return train, out[0], out[1]


@dataclass
class Subject:
    """The model under audit, loaded or trained when an experiment first needs it."""

    name: str
    texts: TextFiles
    recipe: Recipe
    limit: int
    min_count: int
    max_length: int
    seed: int
    work: Path
    bar: Bar = field(repr=False, default=_no_bar)

    @cached_property
    def named(self) -> tuple[Pairs, Pairs, Pairs]:
        """The three parts, their labels as they stand in the data."""
        return self.texts.parts()

    @cached_property
    def numbered(self) -> tuple[Pairs, Pairs, Pairs]:
        """The three parts, their labels numbered from 0 in the order of their names."""
        names = sorted({label for _, labels in self.named for label in labels}, key=str)
        number = {label: i for i, label in enumerate(names)}
        first, second, third = ((texts, [number[y] for y in labels]) for texts, labels in self.named)
        return first, second, third

    @cached_property
    def tokenizer(self) -> Any:
        """The model's own, or one over the words of the training texts."""
        from attnflow.models.factories import pretrained_tokenizer, vocabulary_of
        from attnflow.models.tokenizers import word_tokenizer

        if self.name not in RATES:
            return pretrained_tokenizer(self.name)
        return word_tokenizer(vocabulary_of(self.numbered[0][0], self.min_count), self.max_length)

    @cached_property
    def splits(self) -> Splits:
        """The three parts as ids."""
        return Splits.of(self.tokenizer, *self.numbered, max_length=self.max_length)

    @cached_property
    def factory(self) -> Factory:
        """Gives a new model for a seed."""
        from attnflow.models import factories

        classes = self.splits.classes
        if self.name == "lstm":
            return factories.lstm(self.splits.vocabulary, classes)
        if self.name == "transformer":
            return factories.transformer(self.splits.vocabulary, classes, positions=self.max_length)
        return factories.pretrained(self.name, classes, self.splits.pad)

    @cached_property
    def base(self) -> tuple[Any, Any, list[str], list[Any] | None]:
        """(model, tokenizer, texts, labels) for the experiments that train nothing themselves."""
        if self.name in RATES:
            with self.bar("Training the base") as step:
                base = trained(
                    self.factory, self.splits, seed=self.seed, folder=self.work, recipe=self.recipe, progress=step
                )
            texts, labels = self.named[2]
            return base.model, self.tokenizer, texts[: self.limit], labels[: self.limit]
        from attnflow.models.loading import load

        model, tokenizer = load(self.name)
        texts, labels = self.texts.read(self.texts.test or self.texts.data, self.limit)
        return model, tokenizer, texts, labels if self.texts.label_column is not None else None

    def run(self, experiment: Experiment, options: Mapping[str, Any]) -> Finding:
        """One experiment on this model."""
        if not experiment.trains:
            model, tokenizer, texts, labels = self.base
            with self.bar(experiment.name) as step:
                return experiment.function(
                    model, tokenizer, texts, labels=labels, max_length=self.max_length, progress=step, **options
                )
        factory, splits = self.factory, self.splits
        with self.bar(experiment.name) as step:
            return experiment.function(
                factory, splits, folder=self.work, recipe=self.recipe, progress=step, **{"seed": self.seed, **options}
            )
