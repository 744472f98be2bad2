"""A data set of questions: the sources of each answer, and how often the greatest is a gold one.

Rows are dicts: ``context`` and ``question`` (or ``prompt``: a text or messages), ``answer`` (or the model writes it),
and ``gold``: numbers of context sources (from 0), their names, or words that stand in them; several are a list. In a
.csv or .tsv file a list is written as JSON, and an empty cell is a value that is not given.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from attnflow.answers.attribute import CHECKED, RECOMMENDED, attribute, checked_count
from attnflow.answers.attribution import Attribution
from attnflow.answers.leave_one_out import check_ways
from attnflow.answers.reading import check_methods
from attnflow.comparing.plan import identity
from attnflow.comparing.records import Layout, failures
from attnflow.comparing.runs import Run, Worker, check_engine
from attnflow.errors import InputError, SelectionError
from attnflow.files import as_path
from attnflow.inputs.datasets import Row, Rows
from attnflow.inputs.running import arguments
from attnflow.inputs.tables import Table, open_table
from attnflow.numbers import at_least

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

COLUMNS = {
    "example": "int64", "digest": "string", "method": "string", "answer": "string", "sources": "int32",
    "tokens": "int32", "top": "int32", "name": "string", "share": "double", "gold": "int32", "hit": "bool",
    "rank": "int32", "without": "double", "logprob": "double", "error": "string",
}  # fmt: skip
LAYOUT = Layout("attnflow answer", COLUMNS)
_KNOWN = ("context", "question", "prompt", "answer", "gold", "sources")


@dataclass(frozen=True)
class QuestionJob:
    """What is computed for each question; a job of :mod:`attnflow.comparing.runs`."""

    methods: tuple[str, ...] | None
    sources: Any = None
    check: int | str | None = CHECKED
    check_by: str = "mask"
    max_new_tokens: int | None = None
    on_error: str = "raise"
    doing: str = "attributing"

    @property
    def layout(self) -> Layout:
        """The columns of its records."""
        return LAYOUT

    def worker(self, model: Any, tokenizer: Any) -> Worker:
        """What turns questions into records."""
        return QuestionWorker(model, tokenizer, self)

    def settings(self) -> dict[str, Any]:
        """Plain JSON: two runs with the same settings have the same records."""
        return {
            "methods": list(self.methods or RECOMMENDED), "sources": self.sources, "check": self.check,
            "check_by": self.check_by, "max_new_tokens": self.max_new_tokens,
        }  # fmt: skip


class QuestionWorker(Worker):
    """One record per question and method."""

    def __init__(self, model: Any, tokenizer: Any, job: QuestionJob) -> None:
        super().__init__(model, tokenizer, job.on_error)
        self.job = job

    def score(self, row: Row) -> Iterator[dict[str, Any]]:
        """The greatest source of one answer by each method, and whether it is gold."""
        asked: Mapping[str, Any] = row.text
        job = self.job
        with self.costs.timed("attribute"):
            found: Any = attribute(
                self.model, self.tokenizer, _prompt(asked), asked.get("answer"),
                sources=asked.get("sources", job.sources), methods=job.methods, units="whole", check=job.check,
                check_by=job.check_by, max_new_tokens=job.max_new_tokens,
            )  # fmt: skip
        gold = gold_of(found, asked.get("gold"), row.number)
        for name in found.scores:
            yield _record(found, name, gold, job.check_by)


def _record(found: Attribution, name: str, gold: set[int], way: str) -> dict[str, Any]:
    order = found.ranked(0, name)
    top = order[0]
    without = float(found.checks[way][0, top]) if way in found.checks else math.nan
    return {
        "method": name, "answer": found.answer, "sources": len(order), "tokens": len(found.tokens), "top": top,
        "name": found.sources[top].name, "share": float(found.shares(name)[0, top]), "gold": len(gold),
        "hit": top in gold if gold else None,
        "rank": next((i for i, s in enumerate(order, 1) if s in gold), 0) if gold else None,
        "without": None if math.isnan(without) else without, "logprob": float(sum(found.logprobs)),
    }  # fmt: skip


def gold_of(found: Attribution, gold: Any, number: int = 0) -> set[int]:
    """The numbers of the sources that a row names as gold."""
    if gold is None or (isinstance(gold, float) and math.isnan(gold)) or gold == "":
        return set()
    context = [i for i, s in enumerate(found.sources) if s.kind != "question"]
    out: set[int] = set()
    for one in gold if isinstance(gold, list | tuple | set) else [gold]:
        if isinstance(one, int) and not isinstance(one, bool):
            mine = [context[one]] if 0 <= one < len(context) else []
        else:
            mine = [i for i in context if found.sources[i].name == one]
            mine = mine or [i for i in context if str(one) in found.sources[i].text]
        if not mine:
            raise InputError(
                f"Row {number} (from 0) names the gold source {one!r}, and its context has {len(context)} sources: "
                f"give a number (0 to {len(context) - 1}), a name such as {found.sources[context[0]].name!r}, or words "
                "in one."
            )
        out |= set(mine)
    return out


def _prompt(asked: Mapping[str, Any]) -> Any:
    if asked.get("prompt"):
        return asked["prompt"]
    return {"context": asked["context"], "question": asked.get("question") or ""}


@dataclass(frozen=True, eq=False)
class Cited:
    """The records of a run over questions: one per question and method."""

    table: pa.Table
    settings: Mapping[str, Any] = field(default_factory=dict)

    def records(self) -> pd.DataFrame:
        """All records."""
        found: pd.DataFrame = self.table.to_pandas()
        return found

    def to_frame(self) -> pd.DataFrame:
        """By method: how often the greatest source is gold, with its 95 % interval (Wilson), and the mean 1 / rank."""
        import pandas as pd

        rows = []
        found = self.records()
        done = found[found["error"].isna()]
        for name, part in done.groupby("method", sort=False):
            known = part[part["gold"] > 0]
            n, hits = len(known), int(known["hit"].astype(bool).sum())
            low, high = interval(hits, n)
            inverse = (1 / known["rank"].where(known["rank"] > 0)).fillna(0).mean() if n else math.nan
            rows.append([name, len(part), n, hits / n if n else math.nan, low, high, inverse, part["share"].mean()])
        columns = ["method", "answers", "with gold", "precision", "low", "high", "mean 1/rank", "mean top share"]
        return pd.DataFrame(rows, columns=columns)

    @property
    def failed(self) -> dict[int, str]:
        """The questions that could not be done, with the reason."""
        return failures(self.table)

    def __repr__(self) -> str:
        return f"Cited({len(set(self.table.column('example').to_pylist()))} questions)"


def interval(hits: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    >>> tuple(round(v, 3) for v in interval(9, 10))
    (0.596, 0.982)
    """
    if n == 0:
        return math.nan, math.nan
    from scipy.stats import binomtest

    found = binomtest(hits, n).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def cite(
    model: Any,
    tokenizer: Any,
    dataset: Any,
    *,
    sources: Any = None,
    methods: str | Sequence[str] | None = None,
    check: int | str | None = 0,
    check_by: str | Sequence[str] = "mask",
    max_new_tokens: int | None = None,
    limit: int | None = None,
    on_error: str = "raise",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    show_progress: bool = False,
    engine: str = "local",
    workers: int | None = None,
) -> Cited:
    """Attribute the answers to a data set of questions, and compare with gold sources where the data have them.

    Args:
        model, tokenizer: as everywhere; the model may be a name or folder.
        dataset: dicts with ``context`` and ``question`` (or ``prompt``), and where they are known ``answer``, ``gold``
            and ``sources``; a ``datasets.Dataset`` of such rows; or a file (.jsonl, .json, .csv, .tsv, .parquet).
        sources, methods, check, max_new_tokens: as for :func:`attnflow.attribute`.
        check_by: "mask" or "removal".
        limit: only so many questions.
        on_error: "raise", or "skip" to note questions that cannot be done.
        out, resume, show_progress, engine, workers: as for :func:`attnflow.compare`.
    """
    if on_error not in ("raise", "skip"):
        raise SelectionError(f"on_error={on_error!r} is not known. Use one of: raise, skip.")
    check_engine(engine, workers)
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    if not isinstance(model, str):  # a name is loaded later, by each worker
        model, tokenizer, _ = arguments(model, tokenizer, None, "cite")
    chosen = None if methods is None else check_methods(methods)
    checked_count(check)
    if max_new_tokens is not None:
        max_new_tokens = at_least(max_new_tokens, 1, "max_new_tokens")
    if limit is not None:
        limit = at_least(limit, 1, "limit")
    job = QuestionJob(chosen, sources, check, _way(check_by), max_new_tokens, on_error)
    data = Rows(tuple(_rows(dataset, limit)))
    settings = {"model": identity(model, tokenizer, out is not None), **job.settings()}
    table, _ = Run(job, model, tokenizer, data, settings).go(
        out, resume, show_progress=show_progress, engine=engine, workers=workers
    )
    return Cited(table, settings)


def _way(check_by: Any) -> str:
    """The one way by which sources are left out: a record has one number for it."""
    ways = check_ways(check_by)
    if len(ways) != 1:
        raise SelectionError(
            f"check_by={check_by!r} names {len(ways)} ways, and a record has room for one. Use 'mask' or 'removal'."
        )
    return ways[0]


def _rows(dataset: Any, limit: int | None) -> Iterator[Row]:
    items: Iterable[Any] = _table(dataset) if isinstance(dataset, str | os.PathLike) else dataset
    cells = isinstance(items, Table) and items.cells
    for number, item in enumerate(islice(iter(items), limit)):
        if not isinstance(item, Mapping) or not (item.get("context") or item.get("prompt")):
            raise InputError(
                f"Row {number} (from 0) has no context: give dicts such as "
                "{'context': '…', 'question': '…', 'gold': 0}."
            )
        given = {name: item[name] for name in _KNOWN if item.get(name) is not None}
        asked = {name: _cell(name, v) if cells else _plain(v) for name, v in given.items() if v != "" or not cells}
        yield Row(number, asked)


def _table(name: str | os.PathLike[str]) -> Table:
    path = as_path(name, "dataset")
    if not path.is_file():
        raise InputError(f"{path} is not a file: give one of questions, or a list of dicts.")
    return open_table(path)


def _cell(name: str, value: str) -> Any:
    """A cell of a text file: documents, messages, sources and gold ones may be JSON; a question or answer is text."""
    if name in ("question", "answer"):
        return value
    try:
        found = json.loads(value)
    except ValueError:
        return value
    number = name == "gold" and isinstance(found, int) and not isinstance(found, bool)
    return found if isinstance(found, list | dict) or number else value


def _plain(value: Any) -> Any:
    """Arrays of a data set as lists."""
    return value.tolist() if hasattr(value, "tolist") else value
