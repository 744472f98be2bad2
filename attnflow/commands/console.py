"""What the commands share on screen: a progress bar, a table, lines on the error stream; and files that are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from attnflow.commands.wording import suggested
from attnflow.errors import AttnFlowError


def quiet() -> None:
    """Silence the loader: reports such as a pooler that was not saved do not concern attention and hide the answer."""
    import transformers

    logging: Any = transformers.logging  # typed as Any: its functions are untyped
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def status(what: str) -> Status:
    """A line on the error stream while something runs."""
    return Console(stderr=True).status(escape(what))


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on the error stream that disappears at the end; it is called with (done, total)."""
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def check_data(*files: str | None) -> None:
    """Refuse a file of data that is not there, before a model is loaded: a name with an ending is a file's."""
    from attnflow.files import as_path
    from attnflow.inputs.tables import SUFFIXES, kind_of

    for path in (as_path(file, "DATA") for file in files if file is not None):
        if kind_of(path) in SUFFIXES and not path.exists():
            near = [p.name for p in path.parent.glob("*") if p.suffix == path.suffix] if path.parent.is_dir() else []
            raise AttnFlowError(f"{path} is not a file: nothing to read.{suggested(path.name, sorted(near))}")


@contextmanager
def goes_on(how: str) -> Iterator[None]:
    """Ctrl-C in here ends with a line that says how to go on, and with the exit code that shells give it."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"attnflow: interrupted; {how}", err=True)
        raise typer.Exit(130) from None


def echo_failed(failed: Mapping[int, str], what: str = "example") -> None:
    """The first examples that were left out, with the reason, on the error stream."""
    for number, reason in list(failed.items())[:5]:
        typer.echo(f"{what} {number} left out: {reason}", err=True)


def show(head: Sequence[str], rows: Sequence[Sequence[object]], title: str) -> None:
    """A table with its title above it."""
    from rich.table import Table

    table = Table()
    for i, name in enumerate(head):
        table.add_column(escape(name), justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    # The title is a line of its own: rich would wrap it to the width of a narrow table.
    Console(soft_wrap=True).print(title, markup=False, highlight=False)
    Console().print(table)
