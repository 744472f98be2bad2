"""``attnflow audit``: the experiments of the debate from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnflow.commands.console import check_data, goes_on, progress
from attnflow.commands.options import ALL, EXPERIMENTS, Edges, TextColumn, numbers_of, one_of
from attnflow.formats import check_file, endings

if TYPE_CHECKING:
    from attnflow.audit.finding import Finding

PARTS = ("page", "markdown")


def audit_command(
    experiment: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(EXPERIMENTS)}, or {ALL} for a report.", autocompletion=one_of((*EXPERIMENTS, ALL))
        ),
    ],
    model: Annotated[
        str, typer.Argument(help="A hub name or folder; or lstm (the papers' model) or transformer, trained here.")
    ],
    data: Annotated[str, typer.Argument(help="Texts: a file (.csv, .tsv, .jsonl, .txt, …) or a dataset's name.")],
    text_column: TextColumn = None,
    label_column: Annotated[str | None, typer.Option(help="Name of the label column; training needs it.")] = None,
    valid: Annotated[
        str | None, typer.Option(help="Data that decides when training stops (default: 15 % of DATA).")
    ] = None,
    test: Annotated[str | None, typer.Option(help="Data for the final measurement (default: 15 % of DATA).")] = None,
    limit: Annotated[
        int, typer.Option(help="Number of texts for correlation, permutation and adversary.", min=1)
    ] = 200,
    rows: Annotated[int | None, typer.Option(help="Read only this many rows of DATA.", min=1)] = None,
    layers: Annotated[
        str,
        typer.Option(
            help="Layers of correlation, permutation, adversary: the model's own numbers, comma-separated, or 'all'."
        ),
    ] = "-1",
    edges: Edges = None,
    permutations: Annotated[int, typer.Option(help="Number of permutations per text.", min=1)] = 100,
    epsilon: Annotated[
        float, typer.Option(help="Largest change of the output (TVD) that the adversary may cause.")
    ] = 0.01,
    steps: Annotated[int, typer.Option(help="Number of steps of the adversary's search.", min=1)] = 500,
    seeds: Annotated[str, typer.Option(help="Comma-separated further seeds for 'seeds' and 'uniform'.")] = "1,2,3,4",
    penalties: Annotated[
        str, typer.Option(help="Comma-separated λ for the experiment 'imposter'.")
    ] = "0,0.0001,0.0005,0.001",
    epochs: Annotated[int, typer.Option(help="Maximum number of training epochs.", min=1)] = 8,
    patience: Annotated[int, typer.Option(help="Epochs without improvement before training stops.", min=1)] = 3,
    batch: Annotated[int, typer.Option(help="Texts per training step.", min=1)] = 32,
    rate: Annotated[
        float | None, typer.Option(help="Learning rate (default: lstm 0.001, transformer 0.0003, others 0.00005).")
    ] = None,
    min_count: Annotated[
        int, typer.Option(help="For lstm and transformer: words rarer than this are unknown.", min=1)
    ] = 2,
    max_length: Annotated[int, typer.Option(help="Cut texts to this many tokens.", min=3)] = 256,
    seed: Annotated[int, typer.Option(help="Seed of the base model, the permutations and the split.")] = 0,
    work: Annotated[
        Path, typer.Option(help="Folder for checkpoints, where a stopped run goes on, and for the records.")
    ] = Path("attnflow-audit"),
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help=f"Write the report to this file: {endings(*PARTS)}.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the report if it exists.")] = False,
) -> None:
    """Is attention explanation, here? The experiments of the debate on your model and data."""
    import attnflow.audit  # noqa: F401 - the experiments enter their list when they are imported
    from attnflow.audit.registry import named
    from attnflow.audit.report import save_records, write_report
    from attnflow.audit.runner import run
    from attnflow.scoring.registry import names, with_edges

    wanted = [e.name for e in named(experiment)]
    if out is None and experiment == ALL:
        out = Path("attnflow-audit.html")
    check_file("--out", out, PARTS, overwrite)
    check_data(data, valid, test)
    # Only correlation and guide compare methods; without --edges they choose what fits the model.
    methods = {"methods": with_edges(names("attention", shown=True), edges)} if edges else {}
    again = f"the checkpoints are in {work.resolve()}. Give the same command again to go on from there."
    facts = {"Model": model, "Data": data, "Experiments": ", ".join(wanted)}
    # What decides the numbers and is not among an experiment's own settings.
    chosen = {
        "model": model, "data": data, "text_column": text_column, "label_column": label_column, "valid": valid,
        "test": test, "rows": rows, "limit": limit, "epochs": epochs, "patience": patience, "batch": batch,
        "rate": rate, "min_count": min_count, "max_length": max_length, "seed": seed,
    }  # fmt: skip

    def show_finding(finding: Finding) -> None:
        typer.echo(finding.to_markdown() + "\n")
        typer.echo(f"Records: {save_records(finding, work / 'records', chosen).resolve()}\n")

    with goes_on(again):
        findings = run(
            wanted, model, data, text_column=text_column, label_column=label_column, valid=valid, test=test, rows=rows,
            limit=limit, min_count=min_count, max_length=max_length, epochs=epochs, patience=patience, batch=batch,
            rate=rate, seed=seed, work=work, bar=progress, report=show_finding,
            layers=layers if layers == ALL else numbers_of("--layers", layers), permutations=permutations,
            epsilon=epsilon, steps=steps, seeds=numbers_of("--seeds", seeds),
            penalties=numbers_of("--penalties", penalties, float, "0,0.0005"), **methods,
        )  # fmt: skip
    if out is not None:
        for path in write_report(list(findings.values()), out, f"Audit of {model}", facts, overwrite):
            typer.echo(f"Written: {path.resolve()}")
