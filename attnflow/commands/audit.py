"""``attnflow audit``: the experiments of the debate from the command line.

Apart from the package of the experiments, whose models take long to import, so that other commands start at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnflow.commands.console import check_out, numbers_of, progress
from attnflow.errors import AttnFlowError, InputError

if TYPE_CHECKING:
    from attnflow.audit.finding import Finding
    from attnflow.audit.splits import Splits
    from attnflow.audit.training import Recipe
    from attnflow.models.factories import Factory

READ = ("correlation", "permutation", "adversary")
TRAIN = ("uniform", "seeds", "guide", "imposter")
ALL = "all"
# Models that are made here, with the learning rate of each; any other name is loaded.
RATES = {"lstm": 1e-3, "transformer": 3e-4}
Pairs = tuple[list[str], list[Any]]


def audit_command(
    experiment: Annotated[str, typer.Argument(help=f"{', '.join((*READ, *TRAIN))}, or {ALL} for a report.")],
    model: Annotated[
        str, typer.Argument(help="A hub name or folder; or lstm (the papers' model) or transformer, trained here.")
    ],
    data: Annotated[str, typer.Argument(help="Texts: a file (.csv, .tsv, .jsonl, .txt, …) or a dataset's name.")],
    text_column: Annotated[str | None, typer.Option(help="The text's column. [default: text or sentence]")] = None,
    label_column: Annotated[str | None, typer.Option(help="The label's column; needed to train.")] = None,
    valid: Annotated[str | None, typer.Option(help="To stop training by. [default: 15 % of DATA]")] = None,
    test: Annotated[str | None, typer.Option(help="Measured at the end. [default: 15 % of DATA]")] = None,
    limit: Annotated[int, typer.Option(help="Texts for correlation, permutation and adversary.", min=1)] = 200,
    rows: Annotated[int | None, typer.Option(help="Only the first so many rows of DATA.", min=1)] = None,
    layers: Annotated[str, typer.Option(help="True numbers by commas, or all, for the first three.")] = "-1",
    permutations: Annotated[int, typer.Option(help="Of permutation.", min=1)] = 100,
    epsilon: Annotated[float, typer.Option(help="How far the adversary's output may go (TVD).")] = 0.01,
    steps: Annotated[int, typer.Option(help="Of the adversary's search.", min=1)] = 500,
    seeds: Annotated[str, typer.Option(help="Of seeds, by commas.")] = "1,2,3,4",
    penalties: Annotated[str, typer.Option(help="The λ of imposter, by commas.")] = "0,0.0001,0.0005,0.001",
    epochs: Annotated[int, typer.Option(help="At most, of a training.", min=1)] = 8,
    patience: Annotated[int, typer.Option(help="Epochs without improvement before it stops.", min=1)] = 3,
    batch: Annotated[int, typer.Option(help="Texts in a step of training.", min=1)] = 32,
    rate: Annotated[
        float | None, typer.Option(help="Learning rate. [default: lstm 0.001, transformer 0.0003, others 0.00005]")
    ] = None,
    min_count: Annotated[int, typer.Option(help="lstm, transformer: words rarer than this are unknown.", min=1)] = 2,
    max_length: Annotated[int, typer.Option(help="Cut longer texts to so many tokens.", min=3)] = 256,
    seed: Annotated[int, typer.Option(help="Of the base model, the permutations and the split.")] = 0,
    work: Annotated[Path, typer.Option(help="Folder for checkpoints; what was stopped goes on from there.")] = Path(
        "attnflow-audit"
    ),
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The report: .html or .md.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the report if it is there.")] = False,
) -> None:
    """Is attention explanation, here? The experiments of the debate on your model and data."""
    from attnflow.audit.report import SUFFIXES, write_report

    chosen = _experiments(experiment)
    if out is None and experiment == ALL:
        out = Path("attnflow-audit.html")
    check_out("--out", out, SUFFIXES, overwrite)
    how: dict[str, Any] = {
        "layers": layers if layers == ALL else numbers_of("--layers", layers), "permutations": permutations,
        "epsilon": epsilon, "steps": steps, "seeds": numbers_of("--seeds", seeds), "penalties": _floats(penalties),
    }  # fmt: skip
    subject = Subject(
        model, Source(data, text_column, label_column, valid, test, rows, seed), limit, min_count, max_length, seed,
        work, {"epochs": epochs, "patience": patience, "batch": batch}, rate,
    )  # fmt: skip
    findings: dict[str, Finding] = {}
    for name in chosen:
        findings[name] = subject.run(name, how, findings)
        typer.echo(findings[name].to_markdown() + "\n")
    if out is not None:
        facts = {"Model": model, "Data": data, "Experiments": ", ".join(chosen)}
        for path in write_report(list(findings.values()), out, f"Audit of {model}", facts, overwrite):
            typer.echo(f"Written: {path.resolve()}")


def _experiments(name: str) -> tuple[str, ...]:
    if name == ALL:
        return (*READ, *TRAIN)
    if name not in (*READ, *TRAIN):
        raise AttnFlowError(f"{name!r} is no experiment. Use one of: {', '.join((*READ, *TRAIN, ALL))}.")
    return (name,)


def _floats(value: str) -> list[float]:
    try:
        return [float(part) for part in value.split(",")]
    except ValueError:
        raise AttnFlowError(f"--penalties {value} is not known. Use numbers: 0,0.0005.") from None


@dataclass(frozen=True)
class Source:
    """Where texts and labels come from."""

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

        found = open_data(name, text_column=self.text_column, target_column=self.label_column, limit=limit)
        texts = list(found)
        return [str(row.text) for row in texts], [row.target for row in texts]

    def parts(self) -> tuple[Pairs, Pairs, Pairs]:
        """Training, validation and test texts; what has no file of its own is taken from DATA by chance."""
        import numpy as np

        if self.label_column is None:
            raise InputError(f"Training needs labels, and no column of {self.data} was named:  --label-column label")
        texts, labels = self.read(self.data, self.rows)
        order = np.random.default_rng(self.seed).permutation(len(texts))
        share = max(1, round(0.15 * len(texts)))
        out = []
        for name in (self.valid, self.test):
            if name is not None:
                out.append(self.read(name))
            else:
                taken, order = order[:share], order[share:]
                out.append(([texts[i] for i in taken], [labels[i] for i in taken]))
        train = ([texts[i] for i in order], [labels[i] for i in order])
        return train, out[0], out[1]


@dataclass
class Subject:
    """The model under audit, loaded or trained when an experiment first needs it."""

    name: str
    source: Source
    limit: int
    min_count: int
    max_length: int
    seed: int
    work: Path
    training: dict[str, int]
    rate: float | None

    @cached_property
    def recipe(self) -> Recipe:
        """How every model is trained."""
        from attnflow.audit.training import Recipe

        rate = self.rate or RATES.get(self.name, 5e-5)
        return Recipe(**self.training, rate=rate, balanced=True)

    @cached_property
    def named(self) -> tuple[Pairs, Pairs, Pairs]:
        """The three parts, their labels as they stand in the data."""
        return self.source.parts()

    @cached_property
    def parts(self) -> tuple[Pairs, Pairs, Pairs]:
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
        return word_tokenizer(vocabulary_of(self.parts[0][0], self.min_count), self.max_length)

    @cached_property
    def splits(self) -> Splits:
        """The three parts as ids."""
        from attnflow.audit.splits import Splits

        return Splits.of(self.tokenizer, *self.parts, max_length=self.max_length)

    @cached_property
    def factory(self) -> Factory:
        """Gives a new model for a seed."""
        from attnflow.models import factories

        classes = self.splits.classes
        if self.name == "lstm":
            return factories.lstm(self.splits.vocabulary, classes)
        if self.name == "transformer":
            return factories.transformer(self.splits.vocabulary, classes, positions=self.max_length)
        return factories.pretrained(self.name, classes)

    @cached_property
    def ready(self) -> tuple[Any, Any, list[str], list[Any] | None]:
        """(model, tokenizer, texts, labels) for the experiments that train nothing."""
        if self.name in RATES:
            from attnflow.audit.training import trained

            with progress("Training the base") as step:
                base = trained(
                    self.factory, self.splits, seed=self.seed, folder=self.work, recipe=self.recipe, progress=step
                )
            texts, labels = self.named[2]
            return base.model, self.tokenizer, texts[: self.limit], labels[: self.limit]
        from attnflow.models.loading import load

        model, tokenizer = load(self.name)
        texts, labels = self.source.read(self.source.test or self.source.data, self.limit)
        return model, tokenizer, texts, labels if self.source.label_column is not None else None

    def run(self, experiment: str, how: dict[str, Any], before: dict[str, Finding]) -> Finding:
        """One experiment; ``before`` has the findings that it can be shown beside."""
        from attnflow import audit

        function: Callable[..., Finding] = getattr(audit, experiment)
        own = {
            "correlation": {"layers": how["layers"]},
            "permutation": {"layers": how["layers"], "permutations": how["permutations"], "seed": self.seed},
            "adversary": {
                "layers": how["layers"], "epsilon": how["epsilon"], "steps": how["steps"], "seed": self.seed,
            },
            "seeds": {"seeds": how["seeds"]},
            "guide": {"adversary": next((p for p in how["penalties"] if p > 0), None)},
            "imposter": {
                "penalties": how["penalties"], "adversaries": before.get("adversary"), "seeds": before.get("seeds"),
            },
        }.get(experiment, {})  # fmt: skip
        if experiment in READ:
            model, tokenizer, texts, labels = self.ready
            with progress(experiment) as step:
                return function(
                    model, tokenizer, texts, labels=labels, max_length=self.max_length, progress=step, **own
                )
        with progress(experiment) as step:
            return function(
                self.factory, self.splits, folder=self.work, seed=self.seed, recipe=self.recipe, progress=step, **own
            )
