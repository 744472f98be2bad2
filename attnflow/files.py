"""Results on disk: arrays as safetensors, everything else as a JSON header inside the same file.

Nothing is ever unpickled, so that a file from a stranger can be opened. The header carries a format version and a
digest of all content. A file of a newer format, of another program, cut short or changed is refused with the reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.errors import AttnFlowError, FileError
from attnflow.numbers import truth

FORMAT = 2  # files of format 1 have no digest
UNCHANGED = "What was there before is as it was."
_KEY, _DIGEST = "attnflow", "attnflow_digest"


def as_path(path: str | os.PathLike[str], what: str = "path") -> Path:
    """A path that the file system can take; an empty name or one with a zero byte is an error."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{what} is a {type(path).__name__}, and the name of a file or folder is needed.")
    name = os.fspath(path)
    try:
        fits = bool(name) and b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise FileError(f"{what}={name!r} is not a name that a file can have.")
    return Path(name)


def refuse_overwrite(path: Path, overwrite: bool) -> None:
    """Raise if ``path`` exists and may not be replaced, or if its folder does not exist."""
    overwrite = truth(overwrite, "overwrite")
    with writing(path):
        exists, folder = path.exists(), path.parent.exists()
    if exists and not overwrite:
        raise FileError(f"{path} exists already and overwrite=False. Pass overwrite=True to replace it.")
    if not folder:
        raise FileError(f"Cannot write {path}: the folder {path.parent} does not exist.")


@contextmanager
def writing(path: Path, advice: str = UNCHANGED) -> Iterator[None]:
    """Turn what the system refuses in here (a full disk, no permission) into an error that names the path."""
    try:
        yield
    except OSError as error:
        raise FileError(f"Cannot write {path}: {error.strerror or error}. {advice}") from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong in here into an error that names the file: a file may hold anything."""
    try:
        yield
    except AttnFlowError as error:
        raise error if str(path) in str(error) else FileError(f"{path} cannot be used: {error}") from error
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:
        raise FileError(
            f"{path} does not hold what attnflow writes ({type(error).__name__}: {error}): it is damaged, or of "
            "another program."
        ) from error


def write_bytes(path: Path, data: bytes, overwrite: bool, private: bool = False, advice: str = UNCHANGED) -> None:
    """Write all of ``data`` or nothing: an interrupted run leaves the old file as it was.

    With ``private`` only this user may read the file, whatever the umask says. ``advice`` ends the error that says
    that the file cannot be written.
    """
    refuse_overwrite(path, overwrite)
    with writing(path, advice):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name[:200], suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(handle)  # else a file of the right name could be empty after the power failed
            if private:
                os.chmod(name, 0o600)
            else:
                umask = os.umask(0)
                os.umask(umask)
                os.chmod(name, 0o666 & ~umask)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def save(
    path: str | os.PathLike[str],
    kind: str,
    arrays: Mapping[str, npt.NDArray[Any]],
    header: Mapping[str, Any],
    overwrite: bool = False,
) -> None:
    """Write ``arrays`` and ``header`` to one file of the given ``kind`` ("attention", "relevance")."""
    from safetensors.numpy import save as to_bytes

    location = as_path(path)
    refuse_overwrite(location, overwrite)
    # As ASCII, so that a lone surrogate in a token, which UTF-8 cannot hold, is kept too.
    head = json.dumps({"format": FORMAT, "kind": kind, **header})
    data = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
    marks = {_KEY: head, _DIGEST: _digest(head, data)}
    write_bytes(location, to_bytes(data, metadata=marks), overwrite)


def load(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Read what :func:`save` wrote: the arrays and the header."""
    from safetensors import safe_open

    location = as_path(path)
    if not location.is_file():
        raise FileError(f"{location} is not a file: nothing to load.")
    try:
        with safe_open(str(location), framework="numpy") as file:
            metadata = file.metadata() or {}
            header = _header(location, metadata, kind)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except AttnFlowError:
        raise
    except Exception as error:  # of the reader, the system, or numpy, which lacks some types of numbers
        raise FileError(
            f"{location} is not a whole safetensors file ({error}): damaged, cut short, or of another kind."
        ) from None
    _check_digest(location, metadata, header, arrays)
    return arrays, header


def _digest(head: str, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """A mark of every byte of the content, in whatever order the file keeps it."""
    mark = hashlib.sha256(head.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        mark.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        mark.update(array.reshape(-1).view(np.uint8).data)
    return mark.hexdigest()


def _check_digest(
    location: Path, metadata: Mapping[str, str], header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
) -> None:
    found = metadata.get(_DIGEST)
    if found is None and header["format"] == 1:
        return
    if found != _digest(metadata[_KEY], arrays):
        raise FileError(f"{location} is not as it was written: its content and its digest disagree. It is damaged.")


def _header(location: Path, metadata: Mapping[str, str], kind: str) -> dict[str, Any]:
    if _KEY not in metadata:
        raise FileError(f"{location} is a safetensors file, but attnflow did not write it: its header has no "
                        f"'{_KEY}' entry.")  # fmt: skip
    try:
        header = dict(json.loads(metadata[_KEY]))
    except (TypeError, ValueError, RecursionError):
        raise FileError(f"{location} has an attnflow header that is not readable JSON: damaged.") from None
    found = header.get("format")
    if not isinstance(found, int) or not 1 <= found <= FORMAT:
        raise FileError(
            f"{location} has format {found}, and this attnflow reads formats up to {FORMAT}. "
            "Update it:  pip install -U attnflow"
        )
    if header.get("kind") != kind:
        raise FileError(
            f"{location} holds {header.get('kind')!r}, but {kind!r} was asked for. "
            f"Use attnflow.{str(header.get('kind')).capitalize()}.load(path)."
        )
    return header
