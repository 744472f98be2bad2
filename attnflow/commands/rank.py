"""``attnflow rank``: the league of methods from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnflow.commands import options
from attnflow.commands.console import check_data, echo_failed, goes_on, quiet
from attnflow.commands.options import listed, numbers_of, position_of, some_of
from attnflow.errors import AttnFlowError
from attnflow.formats import check_file, endings, write_file

TABLE, PLOT, PAGE = ("markdown", "latex", "frame"), ("figure",), ("page",)
INSIDE = "inside"


def rank_command(
    model: Annotated[str, typer.Argument(help="A hub name, a folder, or 'inside' for the model of the package.")],
    data: Annotated[
        str | None,
        typer.Argument(help="A file (.csv, .tsv, .json, .jsonl, .parquet, .txt) or a dataset's name; tasks have data."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the records; such a run can resume.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="verb-number: which method points to the subject of the verb?")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated methods: raw, rollout:alti, flow, gradient, blankout, …",
            autocompletion=some_of(options.METHODS),
        ),
    ] = None,
    edges: options.Edges = None,
    measures: Annotated[
        str | None,
        typer.Option(help="Comma-separated measures: comprehensiveness, deletion, randomisation, …"),
    ] = None,
    blank: Annotated[
        str,
        typer.Option(help="Comma-separated blanks, two at least: auto, mask, unk, pad, delete, mean-embedding."),
    ] = "auto,delete",
    layers: Annotated[
        str, typer.Option(help="Comma-separated layers, by the model's own numbers, or all (default: the last).")
    ] = "-1",
    position: options.Position = None,
    unit: options.Unit = "token",
    text_column: options.TextColumn = None,
    target_column: options.TargetColumn = None,
    truth_column: Annotated[str | None, typer.Option(help="Name of the column with the word that must matter.")] = None,
    split: options.Split = None,
    limit: options.Limit = None,
    max_length: options.MaxLength = None,
    randomised: Annotated[int, typer.Option(help="Examples of the measure randomisation.")] = 16,
    batch_size: options.BatchSize = 64,
    skip_errors: Annotated[
        bool, typer.Option("--skip-errors", help="Leave out examples that cannot be judged.")
    ] = False,
    untrained: options.Untrained = False,
    resume: options.Resume = False,
    engine: options.Engine = "local",
    workers: options.Workers = None,
    seed: Annotated[int, typer.Option(help="Seed of the ties, the intervals and the package's own grammar.")] = 0,
    table: Annotated[Path | None, typer.Option(help=f"Also write the table to this file: {endings(*TABLE)}.")] = None,
    plot: Annotated[Path | None, typer.Option(help=f"Also draw the league into this file: {endings(*PLOT)}.")] = None,
    page: Annotated[Path | None, typer.Option(help=f"Also write a page with the verdict: {endings(*PAGE)}.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace table, plot and page if they exist.")] = False,
    progress: options.Progress = True,
) -> None:
    """Rank methods by measures of faithfulness: which score may be believed for this model and data?"""
    files = (("--table", table, TABLE), ("--plot", plot, PLOT), ("--page", page, PAGE))
    for option, path, parts in files:
        check_file(option, path, parts, overwrite)
    if data is None and task is None:
        raise AttnFlowError(
            "No DATA and no --task: name a file, a data set, or a task with its own:  --task verb-number"
        )
    check_data(data)
    if resume and out is None:
        raise AttnFlowError("--resume goes on with the run in a folder, and none is named:  --out FOLDER")
    from attnflow.faithfulness.plan import METHODS as BY_DEFAULT
    from attnflow.faithfulness.rank import rank
    from attnflow.models.shipped import FOLDER
    from attnflow.scoring.registry import with_edges

    quiet()
    kept = "nothing was kept. With  --out FOLDER  a run can go on after it was stopped."
    if out is not None:
        kept = f"what was done is in {out.resolve()}. Go on with the same command and  --resume"
    with goes_on(kept):
        result = rank(
            str(FOLDER) if model == INSIDE else model, None, data,
            methods=with_edges(BY_DEFAULT if methods is None else listed(methods), edges or ()),
            measures=None if measures is None else listed(measures), blank=listed(blank), task=task,
            layers=None if layers == options.ALL else numbers_of("--layers", layers), position=position_of(position),
            unit=unit, text_column=text_column, target_column=target_column, truth_column=truth_column, split=split,
            limit=limit, max_length=max_length, randomised=randomised, batch_size=batch_size,
            on_error="skip" if skip_errors else "raise", out=out, resume=resume, untrained=untrained,
            show_progress=progress, engine=engine, workers=workers, seed=seed,
        )  # fmt: skip
    typer.echo(result.to_markdown())
    note = result.settings.get("examples")
    typer.echo(f"{result}{f'; records: {out.resolve()}' if out else ''}{f'. {note}' if note else ''}", err=True)
    echo_failed(result.failed)
    made = {
        "markdown": lambda: f"{result.to_markdown()}\n", "latex": lambda: f"{result.to_latex()}\n",
        "frame": result.to_frame, "figure": lambda: result.plot().figure, "page": result.to_html,
    }  # fmt: skip
    for _, path, parts in files:
        if path is not None:
            write_file(path, {part: made[part] for part in parts}, overwrite)
