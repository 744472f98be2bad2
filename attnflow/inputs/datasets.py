"""Data to compare on: a list, a ``datasets.Dataset``, its name, or a file; columns by name."""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from attnflow.digests import digest_of
from attnflow.errors import InputError
from attnflow.files import as_path
from attnflow.inputs.tables import SUFFIXES, Table, kind_of, open_table
from attnflow.numbers import whole
from attnflow.reprs import one_line

# A dict with one of these is what a model is called with, not a row with columns.
_ENCODED = {"input_ids", "pixel_values"}
_TEXT = ("text", "sentence", "sentences", "content", "review")


@one_line
@dataclass(frozen=True)
class Row:
    """One example: its number in the data, what is encoded, and the target (None = what the model predicts).

    ``truth`` are the places of the words that must matter, as (first, last + 1) characters of the text.
    """

    number: int
    text: Any
    target: Any = None
    truth: tuple[tuple[int, int], ...] = ()

    @property
    def digest(self) -> str:
        """A short mark of its content, by which a resumed run sees that the data are the same."""
        return digest_of([self.text, self.target, *([self.truth] if self.truth else [])])


@dataclass(frozen=True)
class Rows:
    """Rows that are in memory already; a run takes them like :class:`Data`."""

    rows: tuple[Row, ...]

    @property
    def count(self) -> int:
        """One more than the last row's number: rows may have been left out."""
        return 1 + max((row.number for row in self.rows), default=-1)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


@one_line
@dataclass(frozen=True)
class Data:
    """Rows to go through, as often as needed, and how many where that is known."""

    items: Any
    count: int | None
    text_column: str | None
    target_column: str | None
    limit: int | None
    skip_empty: bool = False
    whole_targets: bool = False
    truth_column: str | None = None

    def __iter__(self) -> Iterator[Row]:
        for number, item in enumerate(islice(iter(self.items), self.limit)):
            if not isinstance(item, Mapping) or self.text_column is None:
                if _missing(item) or isinstance(self.items, Table):
                    raise InputError(f"Row {number} (from 0) is {item!r}, and a text is needed: leave it out.")
                yield Row(number, item)
                continue
            if self.skip_empty and not str(item[self.text_column]).strip():
                continue
            text = self._cell(item, self.text_column, number)
            yield Row(number, _image(text, number), self._target(item, number), self._truth(item, text, number))

    def _cell(self, item: Mapping[str, Any], column: str, number: int) -> Any:
        value = item.get(column)
        table = self.items if isinstance(self.items, Table) else None
        # A cell of a text file has no other way to be missing than to be empty.
        if _missing(value) or (table is not None and table.cells and not str(value).strip()):
            where = "" if table is None else f" of {table.path}"
            raise InputError(
                f"Row {number}{where} (from 0) has nothing in the column {column!r}: fill it in, or leave the row out."
            )
        return value

    def _target(self, item: Mapping[str, Any], number: int) -> Any:
        if self.target_column is None:
            return None
        value = self._cell(item, self.target_column, number)
        return int(value) if self.whole_targets else value

    def _truth(self, item: Mapping[str, Any], text: Any, number: int) -> tuple[tuple[int, int], ...]:
        if self.truth_column is None:
            return ()
        return word_places(str(text), self._cell(item, self.truth_column, number), number)

    def checked(self) -> Data:
        """The same, gone through once, so that what is missing is refused before anything runs.

        A column of a text file whose every cell is a whole number holds numbers.
        """
        whole, count = self.target_column is not None and self.items.cells, 0
        for row in self:
            count = row.number + 1
            whole = whole and isinstance(row.target, str) and _WHOLE.fullmatch(row.target) is not None
        return replace(self, count=count, whole_targets=whole)


def word_places(text: str, named: Any, number: int = 0) -> tuple[tuple[int, int], ...]:
    """Where words stand in a text: ``named`` is a word, the number of a word (from 0), or several of them.

    >>> word_places("the keys of the king", "keys"), word_places("the keys of the king", [1, "king"])
    (((4, 8),), ((4, 8), (16, 20)))
    """
    spans = [found.span() for found in re.finditer(r"\S+", text)]
    places: list[tuple[int, int]] = []
    several = isinstance(named, list | tuple) or hasattr(named, "tolist")
    for one in list(named) if several else [named]:
        if isinstance(one, str) and not _WHOLE.fullmatch(one):
            found = [span for span in spans if text[slice(*span)].strip(".,;:!?\"'()") == one]
        else:
            found = [spans[int(one)]] if 0 <= int(one) < len(spans) else []
        if not found:
            raise InputError(
                f"Row {number} (from 0) names {one!r} as what must matter, and its {len(spans)} words are "
                f"{text[:80]!r}: name one of them, or give its number (0 to {len(spans) - 1})."
            )
        places += found
    return tuple(places)


_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def _image(value: Any, number: int) -> Any:
    """An image of a Parquet file, from its bytes alone: where they are missing, its path could lead anywhere."""
    if not isinstance(value, Mapping) or set(value) != {"bytes", "path"}:
        return value
    from PIL import Image

    try:
        with Image.open(io.BytesIO(value["bytes"])) as image:
            return image.convert(image.mode)
    except Exception as error:
        raise InputError(f"The image of row {number} cannot be read from its bytes ({type(error).__name__}).") from None


def open_data(
    dataset: Any,
    *,
    text_column: str | None = None,
    target_column: str | None = None,
    truth_column: str | None = None,
    split: str | None = None,
    streaming: bool = False,
    limit: int | None = None,
) -> Data:
    """Anything that holds examples as :class:`Data`.

    Args:
        dataset: a list of texts (or of ids, or of dicts with columns), a ``datasets.Dataset`` or ``IterableDataset``,
            the name of one on the hub, or a file (.csv, .tsv, .json, .jsonl, .parquet, .txt, also with .gz).
        text_column: the column with the text; found automatically if it is called "text" or "sentence".
        target_column: the column with the target, for instance the right label.
        truth_column: the column with what must matter: a word of the text, the number of a word, or several of them.
        split: the split to read, if a name is given.
        streaming: for a name, read while going, for data larger than the disk. A file is always read so.
        limit: use only this many examples.

    >>> [row.text for row in open_data(["the key", "the cabinets"], limit=1)]
    ['the key']
    """
    if isinstance(dataset, str | os.PathLike):
        dataset = _load(dataset, split, streaming)
    skip_empty = isinstance(dataset, Table) and dataset.kind in (".txt", ".text")
    if isinstance(dataset, Mapping):
        have = ", ".join(map(str, dataset))
        raise InputError(
            f"The dataset is a dict of {have}: choose one split:  compare(model, tokenizer, dataset['test'])"
        )
    if not isinstance(dataset, Iterable):
        raise InputError(f"dataset is a {type(dataset).__name__}: give a list of texts, a datasets.Dataset or a file.")
    if getattr(dataset, "ndim", 1) == 0:
        raise InputError(
            f"dataset is one {type(dataset).__name__}: give a list of texts, a datasets.Dataset or a file."
        )
    count = len(dataset) if isinstance(dataset, Sized) else None
    if count == 0:
        raise InputError("The dataset has 0 examples: give at least one.")
    columns = _columns(dataset)
    text = _text_column(columns, text_column)
    for argument, given in (("target_column", target_column), ("truth_column", truth_column)):
        if given is not None and given not in (columns or ()):
            raise InputError(_no_column(argument, given, columns))
    if limit is not None and whole(limit, "limit") < 1:
        raise InputError(f"limit={limit}, but at least 1 example is needed.")
    shown = count if limit is None else limit if count is None else min(limit, count)
    data = Data(dataset, shown, text, target_column, limit, skip_empty, truth_column=truth_column)
    return data.checked() if isinstance(dataset, Table) else data


def _load(given: str | os.PathLike[str], split: str | None, streaming: bool) -> Any:
    path = as_path(given, "dataset")
    name = str(given)
    if path.is_file():
        return open_table(path)
    if kind_of(path) in SUFFIXES:
        raise InputError(f"{name} is not a file: nothing to read.")
    from datasets import load_dataset

    try:
        with _said_once():
            return load_dataset(name, split=split, streaming=streaming, trust_remote_code=False)
    except Exception as error:  # of the library, its readers, or the network
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"The dataset {name!r} could not be loaded: {reason}") from error


@contextmanager
def _said_once() -> Iterator[None]:
    """Silence the log of ``datasets``: it logs an error before it raises it, and our own error says what was raised."""
    handlers = list(logging.getLogger("datasets").handlers)
    for handler in handlers:
        handler.addFilter(_less_than_an_error)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_less_than_an_error)


def _less_than_an_error(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR


def _columns(dataset: Any) -> list[str] | None:
    """Names of the columns; None where examples are texts themselves."""
    named = getattr(dataset, "column_names", None)
    if named:
        return list(named)
    if isinstance(dataset, list | tuple):
        first = dataset[0]
        return list(first) if isinstance(first, Mapping) and not _ENCODED & set(first) else None
    if hasattr(dataset, "features"):  # a stream that does not know its columns before it is read
        first = next(iter(dataset), {})
        return list(first)
    return None


def _text_column(columns: list[str] | None, given: str | None) -> str | None:
    if columns is None:
        if given is not None:
            raise InputError(f"text_column={given!r}, but the examples have no columns: leave it out.")
        return None
    if given is not None:
        if given not in columns:
            raise InputError(_no_column("text_column", given, columns))
        return given
    found = next((c for c in _TEXT if c in columns), None)
    if found is None:
        raise InputError(_no_column("text_column", None, columns))
    return found


def _no_column(argument: str, given: str | None, columns: list[str] | None) -> str:
    have = ", ".join(columns) if columns else "none"
    first = columns[0] if columns else "text"
    said = f"{argument}={given!r}, but" if given is not None else "No column is called text or sentence:"
    return f"{said} the columns are {have}. Name one:  {argument}={first!r}"
