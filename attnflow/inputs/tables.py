"""Local data files, read as they are named: no pattern in the name, no look-up in the network, no cache.

A cell of a .csv or .tsv file is text: "NA", "null" and "None" are words. Only a column of labels that are all whole
numbers is read as numbers. A file that is damaged, ragged or in another encoding is refused, with the place in it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnflow.errors import AttnFlowError, FileError, InputError
from attnflow.reprs import one_line

_PACKED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
PACKED = (*_PACKED, ".zst")
_ROWS = 1000  # that are turned from columns into rows at a time


@one_line
@dataclass(frozen=True)
class Table:
    """The rows of one file, to be gone through as often as needed; read anew each time.

    Attributes:
        path: the file.
        kind: its suffix, without that of its compression.
        column_names: the columns of the first row.
    """

    path: Path
    kind: str
    column_names: tuple[str, ...]

    @property
    def cells(self) -> bool:
        """True where every value is text."""
        return self.kind in (".csv", ".tsv")

    def __iter__(self) -> Iterator[Any]:
        with refusals(self.path):
            yield from _READERS[self.kind](self.path)


def open_table(path: Path) -> Table:
    """The table in a file, by its ending."""
    kind = kind_of(path)
    if kind not in SUFFIXES:
        raise InputError(f"{path} ends in {kind or 'nothing'!r}. Use one of: {', '.join(SUFFIXES)} (also .gz).")
    with refusals(path):
        first = next(_READERS[kind](path), None)
    if first is None:
        raise InputError(f"{path} has 0 rows: give at least one.")
    if kind in (".txt", ".text"):
        return Table(path, kind, ("text",))
    if not isinstance(first, Mapping):
        raise InputError(
            f"{path} holds a {type(first).__name__} in its first row, and an object with columns is needed."
        )
    return Table(path, kind, tuple(map(str, first)))


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong while the user's file is read into an error that names it."""
    try:
        yield
    except AttnFlowError as error:
        raise error if str(path) in str(error) else InputError(f"{path} cannot be used: {error}") from error
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:  # of the reader: the file may hold anything
        if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in str(error):
            raise InputError(
                f"{path} is not UTF-8. Write it anew, for instance:  "
                f"iconv -f latin1 -t utf-8 {path.name} > utf8-{path.name}"
            ) from error
        raise InputError(
            f"{path} cannot be read ({type(error).__name__}: {error}): it is damaged, or its content is not what its "
            "ending says."
        ) from error


def kind_of(path: Path) -> str:
    """The ending that says how a file is read, without that of its compression.

    >>> kind_of(Path("a.CSV.gz")), kind_of(Path("a.txt"))
    ('.csv', '.txt')
    """
    suffixes = [s.lower() for s in path.suffixes]
    return suffixes[-2] if len(suffixes) > 1 and suffixes[-1] in PACKED else path.suffix.lower()


def _stream(path: Path) -> Any:
    """The bytes of a file, unpacked."""
    suffix = path.suffix.lower()
    if suffix in _PACKED:
        return _PACKED[suffix](path, "rb")
    if suffix == ".zst":
        import pyarrow as pa

        return pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")
    return path.open("rb")


def _csv(path: Path, sign: str = ",") -> Iterator[dict[str, str]]:
    import pyarrow as pa
    from pyarrow import csv

    how: dict[str, Any] = {
        "parse_options": csv.ParseOptions(delimiter=sign, newlines_in_values=True),
        # One thread, because with several the reader does not say which row does not fit.
        "read_options": csv.ReadOptions(use_threads=False),
    }
    with _stream(path) as stream:
        header = csv.open_csv(stream, **how).schema.names
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise InputError(f"{path} has two columns that are called {twice[0]!r}: give each a name of its own.")
    # Every cell is text, and none is null.
    kinds = csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()), null_values=[], strings_can_be_null=False
    )
    with _stream(path) as stream:
        for batch in csv.open_csv(stream, convert_options=kinds, **how):
            yield from batch.to_pylist()


def _tsv(path: Path) -> Iterator[dict[str, str]]:
    return _csv(path, "\t")


def _lines(path: Path) -> Iterator[str]:
    with _stream(path) as stream:
        for line in io.TextIOWrapper(stream, encoding="utf-8-sig"):
            yield line.rstrip("\n")


def _text(path: Path) -> Iterator[dict[str, str]]:
    return ({"text": line} for line in _lines(path))


def _json(path: Path) -> Iterator[Any]:
    """One object per line, or one list of objects."""
    first = next((line for line in _lines(path) if line.strip()), "")
    if first.lstrip().startswith("["):
        yield from _parsed("\n".join(_lines(path)), str(path))
        return
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            yield _parsed(line, f"{path} line {number}")


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON ({error}). One object per line is expected, or one list.") from None


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_ROWS):
            yield from batch.to_pylist()


_READERS = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".json": _json,
    ".jsonl": _json,
    ".parquet": _parquet,
    ".txt": _text,
    ".text": _text,
}
SUFFIXES = tuple(_READERS)
