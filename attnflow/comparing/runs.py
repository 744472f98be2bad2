"""Long runs over a data set: what ``compare`` and ``rank`` share. They resume, show progress, and run here or on Ray.

A job says what is computed: its settings, the columns of its records, and the worker that turns one row of data into
records. A run brings together a job, a model and data, and keeps the records.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from attnflow.comparing.records import Layout, Records, open_records, to_table
from attnflow.comparing.scorer import Costs
from attnflow.errors import AttnFlowError, FileError, InputError, SelectionError
from attnflow.inputs.datasets import Data, Row, Rows
from attnflow.inputs.untrained import accepting, check_trained
from attnflow.numbers import at_least, word

if TYPE_CHECKING:
    import pyarrow as pa

ENGINES = ("local", "ray")
# A part is written after this many examples or seconds, whichever comes first: a killed run repeats at most these.
PART_EXAMPLES, PART_SECONDS = 64, 5.0


class Job(Protocol):
    """What a run computes for each row of data; it can be sent to other machines."""

    @property
    def on_error(self) -> str:
        """ "raise", or "skip" to note rows that cannot be done."""

    @property
    def layout(self) -> Layout:
        """The columns of its records."""

    @property
    def doing(self) -> str:
        """What the progress bar says."""

    def worker(self, model: Any, tokenizer: Any) -> Worker:
        """What turns rows into records, with one model."""


class Worker(ABC):
    """Makes the records of a job, the same here and on every machine; a model given by name is loaded here."""

    def __init__(
        self, model: Any, tokenizer: Any, on_error: str, untrained: bool = True, what: str = "This run"
    ) -> None:
        if isinstance(model, str):
            from attnflow.models.loading import load

            model, loaded = load(model)
            tokenizer = loaded if tokenizer is None else tokenizer
        self.model, self.tokenizer, self.on_error, self.untrained = model, tokenizer, on_error, untrained
        with accepting(untrained):
            check_trained(model, what)
        self.costs = Costs()

    def take_costs(self) -> dict[str, float]:
        """Seconds by part since the last time."""
        costs, self.costs = self.costs, Costs()
        return costs.seconds

    def records(self, row: Row) -> list[dict[str, Any]]:
        """The records of one row; with ``on_error="skip"``, of a row that cannot be done, the reason."""
        head = {"example": row.number, "digest": row.digest}
        try:
            with accepting(self.untrained):
                return [{**head, **record} for record in self.score(row)]
        except AttnFlowError as error:
            if self.on_error == "skip":
                return [{**head, "error": str(error)}]
            raise type(error)(
                f"Example {row.number}: {error}\nLeave such examples out by on_error='skip' (--skip-errors)."
            ) from error

    @abstractmethod
    def score(self, row: Row) -> Iterator[dict[str, Any]]:
        """The records of one row, without its number and digest."""


@dataclass(eq=False)
class Run:
    """A job, a model (or its name), and the data that it goes over.

    ``settings`` is everything that decides what the records are: a run is resumed with the same settings only.
    """

    job: Job
    model: Any
    tokenizer: Any
    data: Data | Rows
    settings: dict[str, Any]

    def __post_init__(self) -> None:
        self.settings = {"attnflow": _version(), **self.settings}

    def go(
        self,
        out: Any = None,
        resume: bool = False,
        *,
        show_progress: bool = False,
        engine: str = "local",
        workers: int | None = None,
    ) -> tuple[pa.Table, dict[str, float]]:
        """Make the records that are not there yet; (all records, seconds by part).

        Args:
            out: a folder for the records, written as they are made; None keeps them in memory.
            engine: one of :data:`ENGINES`.
        """
        check_engine(engine, workers)
        bar = _progress(show_progress, self.data.count, self.job.doing)
        with open_records(out, self.settings, resume, self.job.layout) as records, bar as advance:
            todo = _undone(self.data, records, advance)
            if engine == "ray":
                from attnflow.comparing.cluster import run

                run(self.model, self.tokenizer, self.job, todo, records, advance, workers)
            else:
                _run_here(self.job.worker(self.model, self.tokenizer), todo, records, advance)
            _complete(self.data, records, resume)
            return records.table(), records.costs()


def check_engine(engine: str, workers: int | None) -> None:
    """Refuse an engine that there is not, and a number of workers below one."""
    if word(engine, "engine") not in ENGINES:
        raise SelectionError(f"engine={engine!r} is not known. Use one of: {', '.join(ENGINES)}.")
    if workers is not None:
        at_least(workers, 1, "workers")


def _version() -> str:
    from attnflow.version import __version__

    return __version__


def _undone(data: Data | Rows, records: Records, advance: Any) -> Iterator[Row]:
    """The rows without records; a row whose text is not the one on record is an error."""
    known = dict(records.done)
    for row in data:
        digest = known.get(row.number)
        if digest is None:
            yield row
            continue
        if digest != row.digest:
            raise FileError(
                f"Example {row.number} has another text or target than on record in {records.folder}: the data have "
                "changed. Use the same data, or give another folder."
            )
        advance(1)


def _run_here(worker: Worker, rows: Iterator[Row], records: Records, advance: Any) -> None:
    """One example after the other; a part is written every few seconds, and when anything ends the run."""
    made: list[dict[str, Any]] = []
    count, since = 0, time.monotonic()
    try:
        for row in rows:
            made += worker.records(row)
            count += 1
            advance(1)
            if count >= PART_EXAMPLES or time.monotonic() - since >= PART_SECONDS:
                records.add(to_table(made, worker.take_costs(), records.layout))
                made, count, since = [], 0, time.monotonic()
    finally:
        if made:
            records.add(to_table(made, worker.take_costs(), records.layout))


def _complete(data: Data | Rows, records: Records, resume: bool) -> None:
    """Records of examples that the data no longer have would count in the result."""
    if not records.done:
        raise InputError("The dataset gave 0 examples: give at least one.")
    if resume and data.count is not None and max(records.done) >= data.count:
        raise FileError(
            f"{records.folder} holds example {max(records.done)}, but the data now end at {data.count - 1}. "
            "Use the same data and no smaller limit, or give another folder."
        )


@contextmanager
def _progress(show: bool, total: int | None, what: str) -> Iterator[Any]:
    if not show:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, rate="")
        start, done = time.monotonic(), 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            rate = done / max(time.monotonic() - start, 1e-9)
            bar.update(task, advance=count, rate=f"{rate:.1f} a second")

        yield advance
