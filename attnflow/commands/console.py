"""What the commands share: options read from text, a progress bar, a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from attnflow.commands.names import EDGES, NAMED, RESIDUALS, one_of
from attnflow.commands.wording import suggested
from attnflow.errors import AttnFlowError

Edges = Annotated[
    list[str] | None,
    typer.Option(
        "--edges",
        help=f"What a layer's matrix holds: {', '.join(EDGES)}; may be repeated.",
        autocompletion=one_of(EDGES),
    ),
]
"""``--edges``, for the methods that are not named with edges of their own (rollout:alti)."""


def residual_of(value: str | None) -> float | str | None:
    """``--residual``: a number, or the name of a way.

    >>> residual_of("0.3"), residual_of("measured")
    (0.3, 'measured')
    """
    if value is None or value in RESIDUALS:
        return value
    try:
        return float(value)
    except ValueError:
        raise AttnFlowError(f"--residual {value} is not known. Use a number, none, add or measured.") from None


def position_of(value: str | None, words: bool = False) -> int | str | None:
    """``--position``: a number or the name of one; with ``words``, for one text, also a word of it.

    >>> position_of("-1"), position_of("mask"), position_of("bank", words=True)
    (-1, 'mask', 'bank')
    """
    if value is None or value in NAMED:
        return value
    try:
        return int(value)
    except ValueError:
        if words:
            return value
        raise AttnFlowError(f"--position {value} is not known. Use a number, cls, last or mask.") from None


def listed(value: str) -> list[str]:
    """Names separated by commas.

    >>> listed("raw, flow")
    ['raw', 'flow']
    """
    return [part.strip() for part in value.split(",") if part.strip()]


def numbers_of(option: str, value: str | None) -> list[int] | None:
    """Whole numbers separated by commas."""
    if value is None:
        return None
    try:
        return [int(part) for part in value.split(",")]
    except ValueError:
        raise AttnFlowError(f"{option} {value} is not known. Use numbers: 0,5 or -1.") from None


Untrained = Annotated[
    bool,
    typer.Option(
        "--untrained", help="Explain the model's answer also where its head was drawn at random when it was loaded."
    ),
]
"""``--untrained``, for a model whose saved weights lack a part."""


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
    from attnflow.inputs.tables import PACKED, SUFFIXES

    for path in (as_path(file, "DATA") for file in files if file is not None):
        inner = path.with_suffix("") if path.suffix.lower() in PACKED else path
        if inner.suffix.lower() in SUFFIXES and not path.exists():
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
