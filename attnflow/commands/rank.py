"""``attnflow rank``: the league of methods from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnflow.commands.console import Edges, Untrained, check_data, goes_on, listed, numbers_of, position_of, quiet
from attnflow.commands.names import METHODS, NAMED, UNITS, one_of, some_of
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
            autocompletion=some_of(METHODS),
        ),
    ] = None,
    edges: Edges = None,
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
    position: Annotated[
        str | None, typer.Option(help="Output position: a number, cls, last or mask.", autocompletion=one_of(NAMED))
    ] = None,
    unit: Annotated[
        str, typer.Option(help="What one score stands for: token or word.", autocompletion=one_of(UNITS))
    ] = "token",
    text_column: Annotated[
        str | None, typer.Option(help="Name of the text column (default: text or sentence).")
    ] = None,
    target_column: Annotated[
        str | None,
        typer.Option(help="Name of the column with the class or token to explain (default: what is predicted)."),
    ] = None,
    truth_column: Annotated[str | None, typer.Option(help="Name of the column with the word that must matter.")] = None,
    split: Annotated[str | None, typer.Option(help="The split, if DATA is the name of a dataset.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use only this many examples.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Cut texts to this many tokens.")] = None,
    randomised: Annotated[int, typer.Option(help="Examples of the measure randomisation.")] = 16,
    batch_size: Annotated[int, typer.Option(help="Variants of an example per forward pass.")] = 64,
    skip_errors: Annotated[
        bool, typer.Option("--skip-errors", help="Leave out examples that cannot be judged.")
    ] = False,
    untrained: Untrained = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
    engine: Annotated[str, typer.Option(help="Where to compute: local, or ray for many machines.")] = "local",
    workers: Annotated[int | None, typer.Option(help="Number of workers with ray.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the ties, the intervals and the package's own grammar.")] = 0,
    table: Annotated[Path | None, typer.Option(help=f"Also write the table to this file: {endings(*TABLE)}.")] = None,
    plot: Annotated[Path | None, typer.Option(help=f"Also draw the league into this file: {endings(*PLOT)}.")] = None,
    page: Annotated[Path | None, typer.Option(help=f"Also write a page with the verdict: {endings(*PAGE)}.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace table, plot and page if they exist.")] = False,
    progress: Annotated[bool, typer.Option("--progress/--no-progress", help="Show a progress bar.")] = True,
) -> None:
    """Rank methods by measures of faithfulness: which score may be believed for this model and data?"""
    for option, path, parts in (("--table", table, TABLE), ("--plot", plot, PLOT), ("--page", page, PAGE)):
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
    kept = (
        f"what was done is in {out.resolve()}. Go on with the same command and  --resume"
        if out
        else ("nothing was kept. With  --out FOLDER  a run can go on after it was stopped.")
    )
    with goes_on(kept):
        result = rank(
            str(FOLDER) if model == INSIDE else model, None, data,
            methods=with_edges(BY_DEFAULT if methods is None else listed(methods), edges or ()),
            measures=None if measures is None else listed(measures), blank=listed(blank), task=task,
            layers=None if layers == "all" else numbers_of("--layers", layers), position=position_of(position),
            unit=unit,
            text_column=text_column, target_column=target_column, truth_column=truth_column, split=split, limit=limit,
            max_length=max_length, randomised=randomised, batch_size=batch_size,
            on_error="skip" if skip_errors else "raise", out=out, resume=resume, untrained=untrained,
            show_progress=progress, engine=engine,
            workers=workers, seed=seed,
        )  # fmt: skip
    typer.echo(result.to_markdown())
    note = result.settings.get("examples")
    typer.echo(f"{result}{f'; records: {out.resolve()}' if out else ''}{f'. {note}' if note else ''}", err=True)
    for number, reason in list(result.failed.items())[:5]:
        typer.echo(f"example {number} left out: {reason}", err=True)
    tables = {
        "markdown": lambda: f"{result.to_markdown()}\n", "latex": lambda: f"{result.to_latex()}\n",
        "frame": result.to_frame, "figure": lambda: result.plot().figure, "page": result.to_html,
    }  # fmt: skip
    for path, parts in ((table, TABLE), (plot, PLOT), (page, PAGE)):
        if path is not None:
            write_file(path, {part: tables[part] for part in parts}, overwrite)
