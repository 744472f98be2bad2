"""Methods against references over a data set: the layer-wise correlations of Abnar & Zuidema (2020), Tables 1–3."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from attnflow.comparing.comparison import Comparison
from attnflow.comparing.plan import identity, make_plan
from attnflow.comparing.records import Records, open_records, to_table
from attnflow.comparing.worker import Worker
from attnflow.errors import FileError, InputError, SelectionError
from attnflow.inputs.datasets import Data, Row, open_data
from attnflow.numbers import word
from attnflow.scoring.registry import Spec, names

ENGINES = ("local", "ray")
# A part is written after this many examples or seconds, whichever comes first: a killed run repeats at most these.
PART_EXAMPLES, PART_SECONDS = 64, 5.0


def compare(
    model: Any,
    tokenizer: Any,
    dataset: Any,
    *,
    methods: Spec | None = None,
    references: Spec | None = None,
    correlation: str | Sequence[str] = "spearman",
    layers: int | Sequence[int] | None = None,
    position: int | str | None = None,
    special_tokens: bool | None = None,
    unit: str = "token",
    k: int = 5,
    text_column: str | None = None,
    target_column: str | None = None,
    split: str | None = None,
    streaming: bool = False,
    limit: int | None = None,
    max_length: int | None = None,
    batch_size: int = 32,
    on_error: str = "raise",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    show_progress: bool = False,
    engine: str = "local",
    workers: int | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
) -> Comparison:
    """The rank correlation of each attention method with each reference, layer by layer, over a data set.

    For each example the model is run once for its attention; raw attention, rollout and flow are read at the
    position that is explained, and correlated over the input positions with gradients and blank-out
    (Abnar & Zuidema 2020, Tables 1–3; Jain & Wallace 2019, Algorithm 1; Neely et al. 2022).

    Args:
        model, tokenizer: as everywhere; the model may be a name or folder.
        dataset: a list of texts, a ``datasets.Dataset`` (also streaming), the name of one, or a file (.csv, .tsv,
            .json, .jsonl, .parquet, .txt).
        methods: methods that need attention, by their names in :func:`attnflow.methods` (by default raw attention,
            rollout and flow); or a dict of options or functions:
            ``{"rollout 0.2": {"method": "rollout", "residual": 0.2}, "mine": my_function}``.
        references: methods that need the model, by their names (by default gradient and blank-out); or a dict as for
            ``methods``.
        correlation: one or several of "spearman", "kendall", "weighted_kendall", "top_k_kendall", "pearson" and the
            legacy "spearman_dense"; see :func:`attnflow.correlate`.
        layers: only these, by the model's own numbers (negative ones count from the top); None for all.
        position: the output position that is explained and whose attention is read; by default the mask, the last
            position of a causal model, or [CLS].
        special_tokens: True with, False without [CLS] and its like; None records both.
        unit: "token" or "word".
        k: for "top_k_kendall".
        text_column, target_column, split, streaming, limit: which data; see :func:`attnflow.inputs.datasets.open_data`.
            The target is the class or token that is explained; without one, what the model predicts.
        max_length: cut texts to this many tokens; without it, a text that is too long is an error.
        batch_size: the largest number of variants of an example per forward pass.
        on_error: "raise", or "skip" to note examples that cannot be scored in ``failed``.
        out: a folder for the records, written as they are made. A run killed at any moment goes on with
            ``resume=True``, which refuses to mix settings.
        show_progress: show a bar with rate and remaining time.
        engine: "local", or "ray" for many machines (``pip install "attnflow[ray]"``), with the same records.
        workers: the number of workers with Ray; by default one for every two processors.
        bootstrap, seed: resamples for the confidence intervals.

    >>> from attnflow import demo
    >>> c = compare(demo.model(), demo.tokenizer(), ["the key to the doors", "the author of the books"],
    ...             references="blankout", layers=[0, -1])
    >>> c
    Comparison(2 examples × 3 methods × 1 references × 2 layers)
    >>> list(c.to_frame().columns)[5:]
    ['mean', 'std', 'low', 'high', 'n', 'nan', 'ties']
    """
    if word(engine, "engine") not in ENGINES:
        raise SelectionError(f"engine={engine!r} is not known. Use one of: {', '.join(ENGINES)}.")
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    rest: dict[str, Any] = {"position": position, "unit": unit, "k": k, "max_length": max_length}
    plan = make_plan(
        names("attention", shown=True) if methods is None else methods,
        names("model", shown=True) if references is None else references,
        correlation,
        special_tokens,
        layers,
        batch_size=batch_size,
        on_error=on_error,
        **rest,
    )
    columns: dict[str, Any] = {"text_column": text_column, "target_column": target_column}
    data = open_data(dataset, split=split, streaming=streaming, limit=limit, **columns)
    settings = {"attnflow": _version(), "model": identity(model, tokenizer), **plan.settings(), **columns}
    with open_records(out, settings, resume) as records, _progress(show_progress, data.count) as advance:
        todo = _undone(data, records, advance)
        if engine == "ray":
            from attnflow.comparing.cluster import run

            run(model, tokenizer, plan, todo, records, advance, workers)
        else:
            _run(Worker(model, tokenizer, plan), todo, records, advance)
        _complete(data, records, resume)
        return Comparison(records.table(), settings, records.costs(), bootstrap, seed)


def _version() -> str:
    from attnflow.version import __version__

    return __version__


def _undone(data: Data, records: Records, advance: Any) -> Iterator[Row]:
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


def _run(worker: Worker, rows: Iterator[Row], records: Records, advance: Any) -> None:
    """One example after the other; a part is written every few seconds, and when anything ends the run."""
    made: list[dict[str, Any]] = []
    count, since = 0, time.monotonic()
    try:
        for row in rows:
            made += worker.records(row)
            count += 1
            advance(1)
            if count >= PART_EXAMPLES or time.monotonic() - since >= PART_SECONDS:
                records.add(to_table(made, worker.take_costs()))
                made, count, since = [], 0, time.monotonic()
    finally:
        if made:
            records.add(to_table(made, worker.take_costs()))


def _complete(data: Data, records: Records, resume: bool) -> None:
    """Records of examples that the data no longer have would count in the result."""
    if not records.done:
        raise InputError("The dataset gave 0 examples: give at least one.")
    if resume and data.count is not None and max(records.done) >= data.count:
        raise FileError(
            f"{records.folder} holds example {max(records.done)}, but the data now end at {data.count - 1}. "
            "Use the same data and no smaller limit, or give another folder."
        )


@contextmanager
def _progress(show: bool, total: int | None) -> Iterator[Any]:
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
        TextColumn("comparing"),
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
