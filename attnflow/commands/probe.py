"""The command line of the probes: ``attnflow probe verb-number | pronouns``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnflow.commands.console import progress, show, status
from attnflow.commands.options import METHODS, Edges, listed, one_of
from attnflow.errors import AttnFlowError
from attnflow.formats import check_file, write_file
from attnflow.formats import endings as file_endings
from attnflow.probes.data import endings as data_endings

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from attnflow.probes.pronoun_data import PronounExample
    from attnflow.probes.rates import Rate

app = typer.Typer(no_args_is_help=True, help="The tasks of Abnar & Zuidema (2020): verb number and pronoun resolution.")
INSIDE = "inside"
PARTS = ("frame", "json")

Model = Annotated[
    str, typer.Argument(help="A hub name, a folder, a .gguf file, or 'inside' for the model of the package.")
]
Limit = Annotated[int, typer.Option(help="Maximum number of examples.", min=1)]
Methods = Annotated[
    list[str] | None, typer.Option("--method", "-m", help="A method; may be repeated.", autocompletion=one_of(METHODS))
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help=f"Write the layer table to a {file_endings(*PARTS)} file.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")]


@app.command("verb-number")
def verb_number(
    model: Model = INSIDE,
    data: Annotated[
        str | None,
        typer.Option(help=f"A {data_endings()} file, or the name of a dataset (default: own grammar)."),
    ] = None,
    limit: Limit = 200,
    layers: Annotated[bool, typer.Option("--layers/--no-layers", help="Also compare attention with gradients.")] = True,
    methods: Methods = None,
    edges: Edges = None,
    seed: Annotated[int, typer.Option(help="Seed of the package's own grammar.")] = 0,
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Does the model know the verb's number, and do its attention, gradients and blank-out agree on why?"""
    from attnflow.probes import grammar
    from attnflow.probes import verb_number as probe
    from attnflow.probes.data import read
    from attnflow.scoring.registry import find, names, with_edges

    known = names("attention")
    wanted = with_edges(methods or names("attention", shown=True), edges or ())
    attention = [m for m in wanted if find(m, argument="--method").needs == "attention"]
    if not attention:
        raise AttnFlowError(f"--method {' '.join(methods or [])}, but the table's rows are {', '.join(known)}.")
    check_file("--out", out, PARTS, overwrite)
    examples = grammar.sentences(limit, seed) if data is None else read(data, limit)
    loaded, tokenizer = _load(model)
    with progress("Asking the model") as step:
        choices = probe.choose(loaded, tokenizer, examples, progress=step)
    rows = []
    for rate, base in zip(probe.accuracy(choices), probe.majority(choices), strict=True):
        low, high = rate.interval
        rows.append([rate.name, rate.count, f"{rate.share:.3f}", f"{low:.3f}–{high:.3f}", f"{base.share:.3f}"])
    show(["attractors", "n", "accuracy", "95 %", "majority"], rows, f"Verb number, {_name(model)}")
    _show_unknown(probe.unknown(choices))
    _echo_left_out(len(choices), len(examples))
    if not layers:
        return
    with progress("Comparing") as step:
        found = probe.layers(loaded, tokenizer, examples, attention, progress=step).to_frame()
    _show_layers(found)
    _write(found, out, overwrite)


@app.command()
def pronouns(
    model: Annotated[str, typer.Argument(help="A masked or causal language model: hub name, folder or .gguf file.")],
    text: Annotated[str | None, typer.Option(help="A sentence with [MASK] (or a pronoun and --pronoun).")] = None,
    referents: Annotated[str | None, typer.Option(help="The two candidates in it: author,Sara")] = None,
    forms: Annotated[str, typer.Option(help="The forms that stand for them: his,her")] = "his,her",
    pronoun: Annotated[str, typer.Option(help="The pronoun in the text.")] = "[MASK]",
    data: Annotated[
        str | None, typer.Option(help="WinoBias, Winogender or GAP: a file or folder (default: the paper's sentences).")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="form: which form fits; referent: which name follows.")] = None,
    limit: Limit = 100,
    methods: Methods = None,
    edges: Edges = None,
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Which referent does the model choose, and to which of them does its attention point?"""
    from attnflow.probes import pronouns as probe
    from attnflow.scoring.registry import names, with_edges

    wanted = with_edges(methods or names(shown=True), edges or ())
    check_file("--out", out, PARTS, overwrite)
    examples = _examples(text, referents, forms, pronoun, data, limit)
    loaded, tokenizer = _load(model)
    with progress("Asking the model") as step:
        results = probe.probe_all(loaded, tokenizer, examples, wanted, mode, progress=step)
    if len(results) <= 4:
        for result in results:
            _show_result(result)
    else:
        show(
            ["group", "n", "right", "95 %"],
            rows=_cells(probe.choices(results)),
            title=f"The model's choice, {_name(model)}",
        )
        _show_unknown(probe.unknown(results))
    _echo_left_out(len(results), len(examples))
    found = probe.table(results)
    if len(results) > 1:
        _show_shares(found)
    _write(found if len(results) > 1 else results[0].to_frame(), out, overwrite)


def _examples(
    text: str | None, referents: str | None, forms: str, pronoun: str, data: str | None, limit: int
) -> list[PronounExample]:
    from attnflow.probes.pronoun_data import PAPER, PronounExample, read

    if text is None:
        return read(data, limit) if data is not None else list(PAPER)[:limit]
    if data is not None:
        raise AttnFlowError("--text asks about one sentence and --data about a data set: leave one of them out.")
    names, pair = _pair(referents or "", "--referents author,Sara"), _pair(forms, "--forms his,her")
    return [PronounExample.of(text, names, pair, pronoun)]


def _pair(value: str, usage: str) -> tuple[str, str]:
    parts = listed(value)
    if len(parts) != 2:
        raise AttnFlowError(f"{value!r} names {len(parts)}, and two are compared:  {usage}")
    return parts[0], parts[1]


def _load(name: str) -> tuple[Any, Any]:
    from attnflow.models import loading, shipped

    with status(f"Loading {name}"):
        return shipped.load() if name == INSIDE else loading.load(name)


def _name(model: str) -> str:
    return "the model inside the package" if model == INSIDE else model


def _cells(rates: Sequence[Rate]) -> list[list[object]]:
    return [[r.name, r.count, f"{r.share:.3f}", f"{r.interval[0]:.3f}–{r.interval[1]:.3f}"] for r in rates]


def _show_unknown(rates: Sequence[Rate]) -> None:
    """The accuracy with and without unknown words, where there are any."""
    if rates[0].count:
        show(["sentences", "n", "right", "95 %"], _cells(rates), "Words that the tokenizer does not know")


def _echo_left_out(asked: int, count: int) -> None:
    """How many examples the model could not be asked, where there are any."""
    if asked < count:
        typer.echo(f"{count - asked} of {count} examples cannot be asked of this model.")


def _show_layers(frame: pd.DataFrame) -> None:
    for reference, part in frame.groupby("reference", sort=False):
        numbers = list(dict.fromkeys(part["layer"]))
        rows = []
        for method, own in part.groupby("method", sort=False):
            cells = [f"{m:.2f} ± {s:.2f}" for m, s in zip(own["mean"], own["std"], strict=True)]
            rows.append([method, *cells])
        count = int(part["n"].max())
        show(["layer", *map(str, numbers)], rows, f"Rank correlation with {reference}, {count} examples")


def _show_shares(frame: pd.DataFrame) -> None:
    rows = []
    for method, own in frame.groupby("method", sort=False):
        best = own.iloc[int(own["share"].to_numpy().argmax())]
        last = own.iloc[-1]
        span = f"{last['low']:.2f}–{last['high']:.2f}"
        rows.append(
            [
                method,
                f"{last['share']:.2f}",
                span,
                f"{last['ties']:.2f}",
                f"{best['share']:.2f} (layer {best['layer']})",
            ]
        )
    title = f"Points to the chosen referent, {int(frame['n'].max())} examples"
    show(["method", "last layer", "95 %", "ties", "best layer"], rows, title)


def _show_result(result: Any) -> None:
    a, b = result.example.names
    rows = []
    for method, part in result.to_frame().groupby("method", sort=False):
        last = part.iloc[-1]
        agree = {1.0: "yes", 0.0: "no"}.get(float(last["agrees"]), "tie")
        share = f"{part['agrees'].mean():.2f}" if len(part) > 1 else ""
        rows.append([method, f"{last[a]:.4f}", f"{last[b]:.4f}", agree, share])
    chosen = result.example.names[result.choice]
    odds = "  ".join(f"log p = {value:.2f}" for value in result.odds)
    title = f"{result.example.text}\n{a} or {b}: the model chooses {chosen} ({odds})"
    show(["last layer", a, b, "agrees", "of all layers"], rows, title)


def _write(frame: pd.DataFrame, out: Path | None, overwrite: bool) -> None:
    if out is None:
        return
    parts = {"frame": lambda: frame, "json": lambda: frame.to_json(orient="records", indent=1)}
    write_file(out, parts, overwrite)
    typer.echo(f"Written: {out.resolve()}")
