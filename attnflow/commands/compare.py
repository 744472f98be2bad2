"""``attnflow compare``: a comparison from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnflow.commands import options
from attnflow.commands.console import check_data, echo_failed, goes_on, quiet
from attnflow.commands.options import listed, numbers_of, position_of, some_of
from attnflow.formats import check_file, endings, write_file

TABLE, PLOT = ("markdown", "latex"), ("figure",)


def compare_command(
    model: Annotated[str, typer.Argument(help="A hub name or a folder with a saved model.")],
    data: Annotated[
        str, typer.Argument(help="A file (.csv, .tsv, .json, .jsonl, .parquet, .txt) or a dataset's name.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the records.")],
    text_column: options.TextColumn = None,
    target_column: options.TargetColumn = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Comma-separated methods: raw, rollout, flow, direct, chefer, rollout:alti, …",
            autocompletion=some_of(options.OF_ATTENTION),
        ),
    ] = "raw,rollout,flow",
    edges: options.Edges = None,
    references: Annotated[
        str,
        typer.Option(
            help="Comma-separated references: gradient, input_x_gradient, integrated_gradients, blankout, …",
            autocompletion=some_of(options.REFERENCES),
        ),
    ] = "gradient,blankout",
    correlation: Annotated[
        str,
        typer.Option(
            help="Comma-separated coefficients: spearman, kendall, pearson, …",
            autocompletion=some_of(options.CORRELATIONS),
        ),
    ] = "spearman",
    layers: Annotated[
        str | None, typer.Option(help="Comma-separated layers, by the model's own numbers (default: all).")
    ] = None,
    position: options.Position = None,
    special_tokens: Annotated[
        bool | None,
        typer.Option("--special/--no-special", help="Include [CLS] and other special tokens (default: both ways)."),
    ] = None,
    unit: options.Unit = "token",
    split: options.Split = None,
    streaming: Annotated[bool, typer.Option("--streaming", help="Read the data while the comparison runs.")] = False,
    limit: options.Limit = None,
    max_length: options.MaxLength = None,
    batch_size: options.BatchSize = 32,
    skip_errors: Annotated[
        bool, typer.Option("--skip-errors", help="Leave out examples that cannot be scored.")
    ] = False,
    untrained: options.Untrained = False,
    resume: options.Resume = False,
    engine: options.Engine = "local",
    workers: options.Workers = None,
    table: Annotated[Path | None, typer.Option(help=f"Also write the table to this file: {endings(*TABLE)}.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help=f"Also draw the layer curves into this file: {endings(*PLOT)}.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the table and the plot if they exist.")
    ] = False,
    progress: options.Progress = True,
) -> None:
    """Correlate attention with gradients and blank-out, layer by layer, over a data set."""
    files = (("--table", table, TABLE), ("--plot", plot, PLOT))
    for option, path, parts in files:
        check_file(option, path, parts, overwrite)
    check_data(data)
    from attnflow.comparing.compare import compare
    from attnflow.scoring.registry import with_edges

    quiet()
    wanted = with_edges(listed(methods), edges or ())
    with goes_on(f"what was done is in {out.resolve()}. Go on with the same command and  --resume"):
        result = compare(
            model, None, data, methods=wanted, references=listed(references), correlation=listed(correlation),
            layers=None if layers is None else numbers_of("--layers", layers), position=position_of(position),
            special_tokens=special_tokens, unit=unit, text_column=text_column, target_column=target_column,
            split=split, streaming=streaming, limit=limit, max_length=max_length, batch_size=batch_size,
            on_error="skip" if skip_errors else "raise", out=out, resume=resume, untrained=untrained,
            show_progress=progress, engine=engine, workers=workers,
        )  # fmt: skip
    typer.echo(result.to_markdown())
    typer.echo(f"{result}; records: {out.resolve()}", err=True)
    echo_failed(result.failed)
    made = {
        "markdown": lambda: f"{result.to_markdown()}\n", "latex": lambda: f"{result.to_latex()}\n",
        "figure": lambda: result.plot().figure,
    }  # fmt: skip
    for _, path, parts in files:
        if path is not None:
            write_file(path, {part: made[part] for part in parts}, overwrite)
