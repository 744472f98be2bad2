"""``attnflow audit``: the experiments of the debate from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnflow.audit.registry import ALL, experiments, named
from attnflow.audit.report import PARTS, write_report
from attnflow.audit.runner import run
from attnflow.commands.console import numbers_of, progress
from attnflow.errors import AttnFlowError
from attnflow.formats import check_file, endings


def audit_command(
    experiment: Annotated[str, typer.Argument(help=f"{', '.join(experiments())}, or {ALL} for a report.")],
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
    out: Annotated[Path | None, typer.Option("--out", "-o", help=f"The report: {endings(*PARTS)}.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the report if it is there.")] = False,
) -> None:
    """Is attention explanation, here? The experiments of the debate on your model and data."""
    wanted = [e.name for e in named(experiment)]
    if out is None and experiment == ALL:
        out = Path("attnflow-audit.html")
    check_file("--out", out, PARTS, overwrite)
    findings = run(
        wanted, model, data, text_column=text_column, label_column=label_column, valid=valid, test=test, rows=rows,
        limit=limit, min_count=min_count, max_length=max_length, epochs=epochs, patience=patience, batch=batch,
        rate=rate, seed=seed, work=work, bar=progress,
        report=lambda finding: typer.echo(finding.to_markdown() + "\n"),
        layers=layers if layers == ALL else numbers_of("--layers", layers), permutations=permutations,
        epsilon=epsilon, steps=steps, seeds=numbers_of("--seeds", seeds), penalties=_floats(penalties),
    )  # fmt: skip
    if out is not None:
        facts = {"Model": model, "Data": data, "Experiments": ", ".join(wanted)}
        for path in write_report(list(findings.values()), out, f"Audit of {model}", facts, overwrite):
            typer.echo(f"Written: {path.resolve()}")


def _floats(value: str) -> list[float]:
    try:
        return [float(part) for part in value.split(",")]
    except ValueError:
        raise AttnFlowError(f"--penalties {value} is not known. Use numbers: 0,0.0005.") from None
