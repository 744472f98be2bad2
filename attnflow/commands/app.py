"""The command line: ``attnflow explain``, ``answer``, ``compare``, ``rank`` and others; one file per command."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any

import typer
from rich.console import Console

from attnflow.commands.answer import answer_command
from attnflow.commands.audit import audit_command
from attnflow.commands.compare import compare_command
from attnflow.commands.demo import demo_command
from attnflow.commands.explain import explain_command
from attnflow.commands.models import models_command
from attnflow.commands.probe import app as probe_app
from attnflow.commands.rank import rank_command
from attnflow.commands.wording import as_options, command_of
from attnflow.errors import AttnFlowError, AttnFlowWarning

app = typer.Typer(
    name="attnflow",
    help="Which inputs did a transformer's output draw on, layer by layer?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command(name="compare")(compare_command)
app.command(name="rank")(rank_command)
app.add_typer(probe_app, name="probe")
app.command(name="audit")(audit_command)
app.command(name="explain")(explain_command)
app.command(name="answer")(answer_command)
app.command(name="models")(models_command)
app.command(name="demo")(demo_command)


def _version(value: bool) -> None:
    if value:
        from attnflow.version import __version__

        typer.echo(f"attnflow {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """The help of each option says what it does."""


def main(argv: list[str] | None = None) -> None:
    """Entry point: errors of the user's making are one paragraph and exit code 2; ``--debug`` may stand anywhere."""
    given = sys.argv[1:] if argv is None else argv
    end = given.index("--") if "--" in given else len(given)
    debug = "--debug" in given[:end]
    arguments = [*(part for part in given[:end] if part != "--debug"), *given[end:]]
    with warnings.catch_warnings():
        warnings.showwarning = _say
        try:
            app(args=arguments, prog_name="attnflow")
        except (AttnFlowError, OSError, TypeError, UnicodeError) as error:
            if debug:
                raise
            said = str(error) if isinstance(error, AttnFlowError | OSError) else f"{error} (--debug shows where)"
            _print(f"attnflow: {as_options(said, command_of(app, arguments))}", "red")
            raise SystemExit(2) from None


def _say(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """What the library warns of, as a line; what others warn of concerns whoever calls them."""
    if issubclass(category, AttnFlowWarning):
        _print(f"attnflow: {as_options(str(message), command_of(app, sys.argv[1:]))}", "yellow")


def _print(text: str, style: str) -> None:
    # No markup and no wrapping: the message may hold a line to paste. Half of a character cannot be printed.
    shown = text.encode("utf-8", "replace").decode()
    Console(stderr=True, soft_wrap=True).print(shown, markup=False, highlight=False, style=style)
