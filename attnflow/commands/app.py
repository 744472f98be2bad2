"""The command line: ``attnflow explain | compare | probe | audit | models | demo``."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from attnflow.commands.audit import audit_command
from attnflow.commands.compare import compare_command
from attnflow.commands.console import check_out, position_of
from attnflow.commands.probe import app as probe_app
from attnflow.errors import AttnFlowError
from attnflow.scoring.explain import METHODS

app = typer.Typer(
    name="attnflow",
    help="Which inputs did a transformer's output draw on, layer by layer?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
BY_ATTENTION = METHODS[:3]
BY_DEFAULT = ", ".join(BY_ATTENTION)
SUFFIXES = (".html", ".png", ".pdf", ".svg", ".csv", ".json", ".safetensors")


app.command(name="compare")(compare_command)
app.add_typer(probe_app, name="probe")
app.command(name="audit")(audit_command)


def _version(value: bool) -> None:
    if value:
        from attnflow import __version__

        typer.echo(f"attnflow {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """What both options mean is in their help."""


@app.command()
def explain(
    model: Annotated[str, typer.Argument(help="A hub name or a folder with a saved model.")],
    text: Annotated[str, typer.Argument(help="The text to explain.")],
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            help=f"{', '.join(METHODS)}; may be given several times. [default: {BY_DEFAULT}; all for a page]",
        ),
    ] = None,
    layer: Annotated[int, typer.Option(help="The layer to show, by its true number; negatives from the top.")] = -1,
    position: Annotated[
        str | None, typer.Option(help="Output position: a number, cls, last or mask. [default: cls, else last]")
    ] = None,
    heads: Annotated[str, typer.Option(help="mean, max, min, or numbers: 3 or 0,2,5.")] = "mean",
    residual: Annotated[float, typer.Option(help="Share of the residual connection in rollout and flow.")] = 0.5,
    words: Annotated[bool, typer.Option("--words", help="Add word pieces up to words.")] = False,
    drop_special: Annotated[bool, typer.Option("--drop-special", help="Leave out [CLS], </s> and the like.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help=f"Write to a file: {', '.join(SUFFIXES)}.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
) -> None:
    """Explain one text: tokens × methods at a layer, for one output position."""
    from attnflow.models.loading import load

    page = out is not None and out.suffix == ".html"
    methods = _methods(method or list(METHODS if page else BY_ATTENTION))
    options = {"heads": _heads(heads), "residual": residual, "position": position_of(position)}
    _check_out(out, overwrite, methods)
    _quiet()
    with _console().status(f"Loading {escape(model)}"):
        loaded, tokenizer = load(model)
    _explain(loaded, tokenizer, text, methods, layer, words, drop_special, out, overwrite, options)


@app.command()
def models(
    only: Annotated[str | None, typer.Argument(help="A model type, for instance bert.")] = None,
) -> None:
    """What can be captured in the installed transformers, and how."""
    from attnflow.models.families import families, tried_with

    found = families()
    if only is not None:
        if only not in found:
            near = [name for name in found if only.lower() in name]
            hint = f" Near it: {', '.join(near[:8])}." if near else ""
            raise AttnFlowError(f"{only!r} is not one of the {len(found)} model types of transformers.{hint}")
        typer.echo(f"{only}: {found[only]}")
        return
    for name, route in found.items():
        typer.echo(f"{name}\t{route}")
    counts = Counter(route.split(" (as a part")[0] for route in found.values())
    told = "; ".join(f"{n} {route}" for route, n in counts.most_common())
    typer.echo(f"{len(found)} model types, tried with transformers {tried_with()}: {told}", err=True)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("attnflow-demo.html"),
) -> None:
    """Explain one sentence on the model inside the package, without any network."""
    from attnflow import demo as inside

    _quiet()
    options: dict[str, Any] = {"position": "cls"}
    _explain(inside.model(), inside.tokenizer(), inside.SENTENCE, METHODS, -1, False, False, out, True, options)
    typer.echo(inside.NOTE)


def _quiet() -> None:
    """Reports of the loader, such as a pooler that was not saved, do not touch attention and hide the answer."""
    import transformers

    logging: Any = transformers.logging  # typed as Any: its functions are untyped
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _console() -> Console:
    return Console(stderr=True)


def _methods(given: list[str]) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(given))
    for name in chosen:
        if name not in METHODS:
            raise AttnFlowError(f"--method {name} is not known. Use {', '.join(METHODS)}.")
    return chosen


def _check_out(out: Path | None, overwrite: bool, methods: tuple[str, ...]) -> None:
    """Refuse what cannot be written before a model is loaded."""
    check_out("--out", out, SUFFIXES, overwrite)
    if out is not None and out.suffix == ".safetensors" and len(methods) > 1:
        raise AttnFlowError(
            f"--out {out} holds one result, and {len(methods)} methods are asked for. "
            f"Choose one:  --method {methods[-1]}"
        )


def _heads(value: str) -> str | int | list[int]:
    if value in ("mean", "max", "min"):
        return value
    try:
        numbers = [int(part) for part in value.split(",")]
    except ValueError:
        raise AttnFlowError(f"--heads {value} is not known. Use mean, max, min, or numbers: 3 or 0,2,5.") from None
    return numbers[0] if len(numbers) == 1 else numbers


def _explain(
    model: Any,
    tokenizer: Any,
    text: str,
    methods: tuple[str, ...],
    layer: int,
    words: bool,
    drop_special: bool,
    out: Path | None,
    overwrite: bool,
    options: dict[str, Any],
) -> None:
    """Run the model once, show the table, write the file."""
    from attnflow.scoring.explain import explain as run
    from attnflow.views.terminal import footer, highlight, tables

    with _console().status("Running the model"):
        page = out is not None and out.suffix == ".html"
        results = run(model, tokenizer, text, methods=methods, every_head=page, **options)
    # The layer is taken before special tokens are dropped, so that the share in the footer is that layer's.
    shown = [_shaped(_at(r, layer), words, drop_special) for r in results]
    console = Console()
    for table in tables(shown, console):
        console.print(table)
    if console.is_terminal and console.color_system in ("256", "truecolor"):
        console.print(highlight(next((r for r in shown if r.method == "flow"), shown[-1])))
    for line in footer(shown):
        console.print(escape(line), style="dim", highlight=False)
    if out is None:
        return
    if out.suffix == ".html":
        _write_page(results, layer, words, drop_special, out, overwrite)
    else:
        _write([_shaped(r, words, drop_special) for r in results], out, overwrite)
    typer.echo(f"Written: {out.resolve()}")


def _at(result: Any, layer: int) -> Any:
    """The result at one layer; gradients and blank-out have none."""
    return result if result.layers == ("input",) else result.at(layer=layer)


def _shaped(result: Any, words: bool, drop_special: bool) -> Any:
    result = result.words() if words else result
    return result.drop_special() if drop_special else result


def _write_page(results: list[Any], layer: int, words: bool, drop_special: bool, out: Path, overwrite: bool) -> None:
    """The page has switches for words and special tokens, so it gets the results whole."""
    from attnflow.files import write_bytes
    from attnflow.views.html import document

    with _console().status("Computing the flows of the page"):
        text = document(results, words=words, special=not drop_special, layer=layer)
    write_bytes(out, text.encode(), overwrite)


def _write(results: list[Any], out: Path, overwrite: bool) -> None:
    import io
    import json

    from attnflow.files import write_bytes

    if out.suffix == ".safetensors":
        results[0].save(out, overwrite=overwrite)
        return
    if out.suffix == ".csv":
        import pandas as pd

        frames = [r.to_frame().assign(method=r.method) for r in results]
        data = pd.concat(frames).to_csv(index=False).encode()
    elif out.suffix == ".json":
        data = json.dumps([r.to_dict() for r in results], ensure_ascii=False, indent=1).encode()
    else:
        from attnflow.views.plot import plot_all

        buffer = io.BytesIO()
        plot_all(results).savefig(buffer, format=out.suffix[1:])
        data = buffer.getvalue()
    write_bytes(out, data, overwrite)


def main(argv: list[str] | None = None) -> None:
    """Entry point: errors of the user's making are one paragraph and exit code 2."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        app(args=arguments, prog_name="attnflow")
    except (AttnFlowError, OSError) as error:
        if "--debug" in arguments:
            raise
        # No markup and no wrapping: the message may hold a line to paste.
        Console(stderr=True, soft_wrap=True).print(f"attnflow: {error}", markup=False, highlight=False, style="red")
        raise SystemExit(2) from None
