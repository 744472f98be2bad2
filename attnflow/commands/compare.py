"""``attnflow compare``: a comparison from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attnflow.commands.console import Edges, Untrained, check_data, goes_on, listed, numbers_of, position_of, quiet
from attnflow.commands.names import CORRELATIONS, NAMED, OF_ATTENTION, REFERENCES, UNITS, one_of, some_of
from attnflow.formats import check_file, endings, write_file

TABLE, PLOT = ("markdown", "latex"), ("figure",)


def compare_command(
    model: Annotated[str, typer.Argument(help="A hub name or a folder with a saved model.")],
    data: Annotated[
        str, typer.Argument(help="A file (.csv, .tsv, .json, .jsonl, .parquet, .txt) or a dataset's name.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the records.")],
    text_column: Annotated[
        str | None, typer.Option(help="Name of the text column (default: text or sentence).")
    ] = None,
    target_column: Annotated[
        str | None,
        typer.Option(help="Name of the column with the class or token to explain (default: what is predicted)."),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Comma-separated methods: raw, rollout, flow, direct, chefer, rollout:alti, …",
            autocompletion=some_of(OF_ATTENTION),
        ),
    ] = "raw,rollout,flow",
    edges: Edges = None,
    references: Annotated[
        str,
        typer.Option(
            help="Comma-separated references: gradient, input_x_gradient, integrated_gradients, blankout, …",
            autocompletion=some_of(REFERENCES),
        ),
    ] = "gradient,blankout",
    correlation: Annotated[
        str,
        typer.Option(
            help="Comma-separated coefficients: spearman, kendall, pearson, …", autocompletion=some_of(CORRELATIONS)
        ),
    ] = "spearman",
    layers: Annotated[
        str | None, typer.Option(help="Comma-separated layers, by the model's own numbers (default: all).")
    ] = None,
    position: Annotated[
        str | None, typer.Option(help="Output position: a number, cls, last or mask.", autocompletion=one_of(NAMED))
    ] = None,
    special_tokens: Annotated[
        bool | None,
        typer.Option("--special/--no-special", help="Include [CLS] and other special tokens (default: both ways)."),
    ] = None,
    unit: Annotated[
        str, typer.Option(help="What one score stands for: token or word.", autocompletion=one_of(UNITS))
    ] = "token",
    split: Annotated[str | None, typer.Option(help="The split, if DATA is the name of a dataset.")] = None,
    streaming: Annotated[bool, typer.Option("--streaming", help="Read the data while the comparison runs.")] = False,
    limit: Annotated[int | None, typer.Option(help="Use only this many examples.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Cut texts to this many tokens.")] = None,
    batch_size: Annotated[int, typer.Option(help="Variants of an example per forward pass.")] = 32,
    skip_errors: Annotated[
        bool, typer.Option("--skip-errors", help="Leave out examples that cannot be scored.")
    ] = False,
    untrained: Untrained = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
    engine: Annotated[str, typer.Option(help="Where to compute: local, or ray for many machines.")] = "local",
    workers: Annotated[int | None, typer.Option(help="Number of workers with ray.")] = None,
    table: Annotated[Path | None, typer.Option(help=f"Also write the table to this file: {endings(*TABLE)}.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help=f"Also draw the layer curves into this file: {endings(*PLOT)}.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the table and the plot if they exist.")
    ] = False,
    progress: Annotated[bool, typer.Option("--progress/--no-progress", help="Show a progress bar.")] = True,
) -> None:
    """Correlate attention with gradients and blank-out, layer by layer, over a data set."""
    _check_files(table, plot, overwrite)
    check_data(data)
    from attnflow.comparing.compare import compare
    from attnflow.scoring.registry import with_edges

    quiet()
    wanted = with_edges(listed(methods), edges or ())
    with goes_on(f"what was done is in {out.resolve()}. Go on with the same command and  --resume"):
        result = compare(
            model, None, data, methods=wanted, references=listed(references), correlation=listed(correlation),
            layers=numbers_of("--layers", layers), position=position_of(position), special_tokens=special_tokens,
            unit=unit, text_column=text_column, target_column=target_column, split=split, streaming=streaming,
            limit=limit,
            max_length=max_length, batch_size=batch_size, on_error="skip" if skip_errors else "raise", out=out,
            resume=resume, untrained=untrained, show_progress=progress, engine=engine, workers=workers,
        )  # fmt: skip
    typer.echo(result.to_markdown())
    typer.echo(f"{result}; records: {out.resolve()}", err=True)
    for number, reason in list(result.failed.items())[:5]:
        typer.echo(f"example {number} left out: {reason}", err=True)
    _write(result, table, plot, overwrite)


def _check_files(table: Path | None, plot: Path | None, overwrite: bool) -> None:
    """Refuse what cannot be written before a model is loaded."""
    check_file("--table", table, TABLE, overwrite)
    check_file("--plot", plot, PLOT, overwrite)


def _write(result: Any, table: Path | None, plot: Path | None, overwrite: bool) -> None:
    if table is not None:
        tables = {"markdown": lambda: f"{result.to_markdown()}\n", "latex": lambda: f"{result.to_latex()}\n"}
        write_file(table, tables, overwrite)
    if plot is not None:
        write_file(plot, {"figure": lambda: result.plot().figure}, overwrite)
