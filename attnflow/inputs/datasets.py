"""Data to compare on: a list, a ``datasets.Dataset``, its name, or a file; columns by name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from attnflow.errors import InputError

_READERS = {
    ".csv": ("csv", {}),
    ".tsv": ("csv", {"sep": "\t"}),
    ".json": ("json", {}),
    ".jsonl": ("json", {}),
    ".parquet": ("parquet", {}),
    ".txt": ("text", {}),
    ".text": ("text", {}),
}
# A dict with one of these is what a model is called with, not a row with columns.
_ENCODED = {"input_ids", "pixel_values"}
_TEXT = ("text", "sentence", "sentences", "content", "review")


@dataclass(frozen=True)
class Row:
    """One example: its number in the data, what is encoded, and the target (None = what the model predicts)."""

    number: int
    text: Any
    target: int | str | None = None

    @property
    def digest(self) -> str:
        """A short mark of its content, by which a resumed run sees that the data are the same."""
        return hashlib.blake2b(repr((self.text, self.target)).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Data:
    """Rows to go through, as often as needed, and how many where that is known."""

    source: Any
    count: int | None
    text_column: str | None
    target_column: str | None
    limit: int | None
    skip_empty: bool = False

    def __iter__(self) -> Iterator[Row]:
        for number, item in enumerate(islice(iter(self.source), self.limit)):
            if not isinstance(item, Mapping) or self.text_column is None:
                yield Row(number, item)
                continue
            text = item[self.text_column]
            if self.skip_empty and not str(text).strip():
                continue
            yield Row(number, text, item[self.target_column] if self.target_column else None)


def open_data(
    dataset: Any,
    *,
    text_column: str | None = None,
    target_column: str | None = None,
    split: str | None = None,
    streaming: bool = False,
    limit: int | None = None,
) -> Data:
    """Anything that holds examples as :class:`Data`.

    Args:
        dataset: a list of texts (or of ids, or of dicts with columns), a ``datasets.Dataset`` or ``IterableDataset``,
            the name of one on the hub, or a file (.csv, .tsv, .json, .jsonl, .parquet, .txt, also with .gz).
        text_column: the column with the text; found by itself if it is called "text" or "sentence".
        target_column: the column with the target, for instance the right label.
        split: for a name, the split to take.
        streaming: read while going, for data larger than the disk.
        limit: only the first so many.

    >>> [row.text for row in open_data(["the key", "the cabinets"], limit=1)]
    ['the key']
    """
    skip_empty = False
    if isinstance(dataset, str | os.PathLike):
        skip_empty = _suffix(Path(dataset)) in (".txt", ".text")
        dataset = _load(str(dataset), split, streaming)
    if isinstance(dataset, Mapping):
        have = ", ".join(map(str, dataset))
        raise InputError(
            f"The dataset is a dict of {have}: choose one split:  compare(model, tokenizer, dataset['test'])"
        )
    if not isinstance(dataset, Iterable):
        raise InputError(f"dataset is a {type(dataset).__name__}: give a list of texts, a datasets.Dataset or a file.")
    count = len(dataset) if isinstance(dataset, Sized) else None
    if count == 0:
        raise InputError("The dataset has 0 examples: give at least one.")
    columns = _columns(dataset)
    text = _text_column(columns, text_column)
    if target_column is not None and target_column not in (columns or ()):
        raise InputError(_no_column("target_column", target_column, columns))
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit}, but at least 1 example is needed.")
    shown = count if limit is None else limit if count is None else min(limit, count)
    return Data(dataset, shown, text, target_column, limit, skip_empty)


def _suffix(path: Path) -> str:
    suffixes = [s.lower() for s in path.suffixes]
    return suffixes[-2] if len(suffixes) > 1 and suffixes[-1] in (".gz", ".bz2", ".xz", ".zst") else path.suffix.lower()


def _load(name: str, split: str | None, streaming: bool) -> Any:
    from datasets import load_dataset

    path, suffix = Path(name), _suffix(Path(name))
    if path.is_file():
        if suffix not in _READERS:
            raise InputError(f"{name} ends in {suffix or 'nothing'!r}. Use one of: {', '.join(_READERS)} (also .gz).")
        reader, options = _READERS[suffix]
        return load_dataset(reader, data_files=str(path), split="train", streaming=streaming, **options)
    if suffix in _READERS:
        raise InputError(f"{name} is not a file: nothing to compare on.")
    try:
        return load_dataset(name, split=split, streaming=streaming)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"The dataset {name!r} could not be loaded: {reason}") from error


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
