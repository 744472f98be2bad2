"""Records of a long run on disk: Parquet parts that are whole or not there, so that a killed run resumes.

A folder holds ``settings.json`` and ``parts/*.parquet``. A part is written under another name, forced to disk and then
renamed, which a file system does at once or not at all: a run killed at any moment leaves whole parts and at
most one stray file, which is removed. A part holds all records of its examples, and an example is in one
part, so that a resumed run neither loses nor doubles a record: it does the examples that no part holds.

Settings and parts carry a digest of their content. One run at a time holds the lock of the folder, from before it reads
the settings until it ends.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow import files
from attnflow.digests import digest_of
from attnflow.errors import FileError

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 2  # runs of format 1 have no digests
_DIGEST, _HEAD = b"digest", b"attnflow"
_GO_ON = "Every part that is there is whole: make room, and go on with resume=True (--resume)."
COLUMNS = {
    "example": "int64",
    "digest": "string",
    "target": "string",
    "method": "string",
    "reference": "string",
    "correlation": "string",
    "special": "bool",
    "layer": "int32",
    "value": "double",
    "n": "int32",
    "ties": "double",
    "reference_ties": "double",
    "rounding": "double",
    "reference_rounding": "double",
    "error": "string",
}


@dataclass(frozen=True)
class Layout:
    """What the records of one kind of run hold.

    Attributes:
        command: who writes them, for messages.
        columns: the type of each column, by name; ``example``, ``digest`` and ``error`` are always among them.
        later: those of them that earlier versions did not write: records without them are read.
    """

    command: str
    columns: Mapping[str, str]
    later: tuple[str, ...] = ()

    def schema(self) -> pa.Schema:
        """The columns of a record."""
        import pyarrow as pa

        return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in self.columns.items()])

    def fits(self, names: Sequence[str]) -> bool:
        """True for the names of all columns, also where later ones are not among them."""
        return set(self.columns) - set(self.later) <= set(names) <= set(self.columns) and len(names) == len(set(names))

    def completed(self, table: pa.Table) -> pa.Table:
        """A table that fits, with every column in its place and of its type; later ones that it lacks are empty."""
        import pyarrow as pa

        for name in self.later:
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(table.num_rows))
        return table.select(list(self.columns)).cast(self.schema().with_metadata(table.schema.metadata))


COMPARE = Layout("attnflow compare", COLUMNS, later=("rounding", "reference_rounding"))


def to_table(rows: Sequence[Mapping[str, Any]], costs: Mapping[str, float], layout: Layout = COMPARE) -> pa.Table:
    """Records as a table, with what they cost (seconds by part) in its metadata."""
    import pyarrow as pa

    table = pa.Table.from_pylist(list(rows), layout.schema())
    return table.replace_schema_metadata({b"costs": json.dumps(dict(costs)).encode()})


def costs_of(table: pa.Table) -> dict[str, float]:
    """Seconds by part that the making of these records took."""
    found = (table.schema.metadata or {}).get(b"costs")
    return {} if found is None else {str(name): float(seconds) for name, seconds in json.loads(found).items()}


def sealed(table: pa.Table) -> pa.Table:
    """The table with a digest of its records and metadata in its metadata."""
    kept = {k: v for k, v in (table.schema.metadata or {}).items() if k != _DIGEST}
    return table.replace_schema_metadata({**kept, _DIGEST: table_digest(table, kept).encode()})


def check_seal(table: pa.Table, path: Path, required: bool = True) -> None:
    """Refuse a table that is not as :func:`sealed` left it."""
    kept = dict(table.schema.metadata or {})
    found = kept.pop(_DIGEST, None)
    if found is None and not required:
        return
    if found is None or found.decode() != table_digest(table, kept):
        raise FileError(
            f"{path} is not as it was written: its records and its digest disagree. It is damaged. Remove it, and its "
            f"examples are done again:  rm {path}"
        )


def table_digest(table: pa.Table, metadata: Mapping[bytes, bytes]) -> str:
    """A mark of all values of all columns, however the file packs them."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    mark = hashlib.sha256(repr(sorted(metadata.items())).encode())
    for name in table.column_names:
        column = table.column(name)
        mark.update(f"\n{name} {column.type} {len(column)}\n".encode())
        mark.update(np.packbits(column.is_valid().to_numpy()).tobytes())
        if pa.types.is_string(column.type):
            filled = pc.fill_null(column, "")
            mark.update(pc.binary_length(filled).to_numpy().tobytes())
            mark.update("".join(filled.to_pylist()).encode())
        elif pa.types.is_boolean(column.type):
            mark.update(np.packbits(pc.fill_null(column, False).to_numpy()).tobytes())
        elif pa.types.is_primitive(column.type):
            mark.update(pc.fill_null(column, 0).to_numpy().tobytes())
        else:
            mark.update(repr(column.to_pylist()).encode())
    return mark.hexdigest()


class Records:
    """The records of one run, in memory or in a folder.

    Use :func:`open_records`. ``done`` tells which examples have records, with the digest of their text.
    """

    def __init__(self, folder: Path | None, layout: Layout = COMPARE) -> None:
        self.folder, self.layout = folder, layout
        self.tables: list[pa.Table] = []
        self.done: dict[int, str] = {}

    def add(self, table: pa.Table) -> None:
        """Keep the records of some examples; in a folder, as one part that is whole or not there."""
        examples = table.column("example").to_pylist()
        if self.folder is not None:
            _write_part(self.folder / "parts" / f"{min(examples):09d}.parquet", table)
        self._note(table)

    def _note(self, table: pa.Table) -> None:
        self.tables.append(table)
        self.done.update(zip(table.column("example").to_pylist(), table.column("digest").to_pylist(), strict=True))

    def table(self) -> pa.Table:
        """All records, by example."""
        import pyarrow as pa

        tables = self.tables or [self.layout.schema().empty_table()]
        return pa.concat_tables([t.replace_schema_metadata(None) for t in tables]).sort_by("example")

    def costs(self) -> dict[str, float]:
        """Seconds by part, over all runs that wrote here."""
        total: dict[str, float] = {}
        for table in self.tables:
            for name, seconds in costs_of(table).items():
                total[name] = total.get(name, 0.0) + seconds
        return total


@contextmanager
def open_records(
    folder: str | os.PathLike[str] | None, settings: Mapping[str, Any], resume: bool = False, layout: Layout = COMPARE
) -> Iterator[Records]:
    """The records of a run with these settings: new ones, or with ``resume`` those that are there already."""
    if folder is None:
        yield Records(None, layout)
        return
    path = files.as_path(folder, "out")
    _refuse_foreign(path, layout)
    with files.writing(path):
        (path / "parts").mkdir(parents=True, exist_ok=True)
    with _locked(path):
        _prepare(path, settings, resume)
        for stray in (path / "parts").glob("*.part"):
            stray.unlink()
        records = Records(path, layout)
        for table in read_parts(path, layout):
            records._note(table)
        yield records


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of the run in ``folder``."""
    return _read_head(folder)["settings"]  # type: ignore[no-any-return]


def _read_head(folder: Path) -> dict[str, Any]:
    path = folder / "settings.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileError(f"{folder} has no settings.json: it holds no run of attnflow.") from None
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from None
    except (ValueError, RecursionError):
        raise FileError(f"{path} is not JSON: damaged.") from None
    if not isinstance(found, dict) or found.get("format") not in range(1, FORMAT + 1):
        raise FileError(f"{path} is not of format 1 to {FORMAT}, which this attnflow reads.")
    settings = found.get("settings")
    if not isinstance(settings, dict) or (found["format"] > 1 and found.get("digest") != digest_of(settings)):
        raise FileError(f"{path} is not as it was written: its settings and its digest disagree. It is damaged.")
    return found


def read_parts(folder: Path, layout: Layout = COMPARE) -> Iterator[pa.Table]:
    """The parts in ``folder``, each with the records of whole examples."""
    import pyarrow.parquet as pq

    required = _read_head(folder)["format"] > 1
    for part in sorted((folder / "parts").glob("*.parquet")):
        try:
            table = pq.read_table(part, partitioning=None)
        except Exception as error:  # whatever the reader makes of bytes that may be anything
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise FileError(
                f"{part} is not a whole Parquet file ({reason}). Remove it, and its examples are done again:  rm {part}"
            ) from None
        with files.reading(part):
            if not layout.fits(table.column_names):
                have = ", ".join(table.column_names)
                raise FileError(f"{part} has columns {have}: {layout.command} did not write it.")
            check_seal(table, part, required)
            table = layout.completed(table)
            costs_of(table)
        yield table


def failures(table: pa.Table) -> dict[int, str]:
    """Examples that could not be done, with the reason."""
    if "error" not in table.column_names:
        return {}
    frame = table.select(["example", "error"]).to_pandas().dropna()
    return {int(e): str(r) for e, r in zip(frame["example"], frame["error"], strict=True)}


def write_result(path: str | os.PathLike[str], result: Any, version: int, overwrite: bool) -> None:
    """Write the records of a finished run, and what is known about them, to one sealed Parquet file.

    ``result`` has ``table``, ``settings``, ``costs``, ``bootstrap`` and ``seed``; ``version`` is that of its format.
    """
    head = {
        "format": version, "settings": dict(result.settings), "costs": dict(result.costs),
        "bootstrap": result.bootstrap, "seed": result.seed,
    }  # fmt: skip
    marked = result.table.replace_schema_metadata({_HEAD: json.dumps(head).encode()})
    files.write_bytes(files.as_path(path), _parquet(sealed(marked)), overwrite)


def read_result(
    path: str | os.PathLike[str], writer: str, layout: Layout = COMPARE, first_sealed: int = 1
) -> dict[str, Any]:
    """The fields of a result, by name: as :func:`write_result` wrote them, or from the folder of a run.

    A run need not be finished. ``first_sealed`` is the first version of the format that has a digest.
    """
    import pyarrow.parquet as pq

    location = files.as_path(path)
    if location.is_dir():
        settings, records = read_settings(location), Records(None, layout)
        for part in read_parts(location, layout):
            records.add(part)
        return {"table": records.table(), "settings": settings, "costs": records.costs()}
    if not location.is_file():
        raise FileError(f"{location} is neither a file nor a folder: nothing to load.")
    try:
        table = pq.ParquetFile(location).read()
    except Exception as error:  # whatever the reader makes of bytes that may be anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise FileError(f"{location} is not a whole Parquet file ({reason}).") from None
    found = (table.schema.metadata or {}).get(_HEAD)
    if found is None:
        raise FileError(f"{location} is a Parquet file, but {writer} did not write it.")
    with files.reading(location):
        head = json.loads(found)
        check_seal(table, location, required=head.get("format", 1) >= first_sealed)
        return {
            "table": table.replace_schema_metadata(None), "settings": dict(head["settings"]),
            "costs": {str(k): float(v) for k, v in head["costs"].items()}, "bootstrap": int(head["bootstrap"]),
            "seed": int(head["seed"]),
        }  # fmt: skip


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two settings, one line each.

    >>> differences({"k": 5, "methods": {"flow": {}}}, {"k": 5, "methods": {"raw": {}}})
    ['methods.flow: {} then, nothing now', 'methods.raw: nothing then, {} now']
    """
    out = []
    for key in sorted({*old, *new}):
        was, now = old.get(key, _NOTHING), new.get(key, _NOTHING)
        if isinstance(was, Mapping) and isinstance(now, Mapping) and (was or now):
            out += [f"{key}.{line}" for line in differences(was, now)]
        elif was != now:
            out.append(f"{key}: {_shown(was)} then, {_shown(now)} now")
    return out


_NOTHING = object()


def _shown(value: Any) -> str:
    return "nothing" if value is _NOTHING else json.dumps(value, ensure_ascii=False)


def _prepare(path: Path, settings: Mapping[str, Any], resume: bool) -> None:
    """Write the settings of a run; one that is there already is left alone, or with ``resume`` compared with them.

    A run that ended before its first record, such as one that was refused, is none: there is nothing to go on with.
    """
    plain = json.loads(json.dumps(settings))
    begun = any((path / "parts").glob("*.parquet"))
    if (path / "settings.json").exists():
        if begun and not resume:
            raise FileError(
                f"{path} holds the records of a run already. Go on with it by resume=True (--resume), or give another "
                "folder."
            )
        changed = differences(read_settings(path), plain)
        if begun and changed:
            lines = "\n  ".join(changed)
            raise FileError(
                f"{path} holds records of other settings, which cannot be mixed with these. What differs:\n  {lines}\n"
                "Use the same settings, or give another folder."
            )
        if not changed:
            return
    head = json.dumps({"format": FORMAT, "digest": digest_of(plain), "settings": plain}, indent=1)
    files.write_bytes(path / "settings.json", head.encode(), overwrite=True)


def _refuse_foreign(path: Path, layout: Layout) -> None:
    """A folder that holds something else is left alone, down to the lock."""
    with files.writing(path):
        if path.exists() and not path.is_dir():
            raise FileError(f"{path} is a file, and the records need a folder: give a new one.")
        if path.exists() and not (path / "settings.json").exists() and not _only_ours(path):
            raise FileError(f"{path} is not empty and holds no run of {layout.command}: give a new folder.")


def _only_ours(path: Path) -> bool:
    """True for what a run leaves that was killed before it could write its settings."""
    left: Iterable[Path] = path.iterdir()
    return all(p.name in ("parts", "lock") or p.name.startswith("settings.json") for p in left)


def _write_part(path: Path, table: pa.Table) -> None:
    files.write_bytes(path, _parquet(sealed(table)), overwrite=True, advice=_GO_ON)


def _parquet(table: pa.Table) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One run at a time in a folder. The lock is the system's, so a killed run leaves none behind."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        yield
        return
    with files.writing(path / "lock", _GO_ON):
        # Not through a link: in a shared folder it could lead to any file of this user's.
        handle = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FileError(f"Another run is writing to {path}. Wait for it, or give another folder.") from None
        yield
    finally:
        os.close(handle)
