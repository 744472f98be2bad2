"""Results on disk: arrays as safetensors, everything else as a JSON header inside the same file.

Nothing is ever unpickled, so that a file from a stranger can be opened. The header carries a format
version; a file of a newer format, of another program, or cut short is refused with the reason.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.errors import FileError

FORMAT = 1
_KEY = "attnflow"


def refuse_overwrite(path: Path, overwrite: bool) -> None:
    """Raise if ``path`` exists and may not be replaced, or if its folder does not exist."""
    if path.exists() and not overwrite:
        raise FileError(f"{path} exists already and overwrite=False. Pass overwrite=True to replace it.")
    if not path.parent.exists():
        raise FileError(f"Cannot write {path}: the folder {path.parent} does not exist.")


def write_bytes(path: Path, data: bytes, overwrite: bool) -> None:
    """Write all of ``data`` or nothing: an interrupted run leaves the old file as it was."""
    refuse_overwrite(path, overwrite)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
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

    target = Path(path)
    refuse_overwrite(target, overwrite)
    head = json.dumps({"format": FORMAT, "kind": kind, **header}, ensure_ascii=False)
    data = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
    write_bytes(target, to_bytes(data, metadata={_KEY: head}), overwrite)


def load(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Read what :func:`save` wrote: the arrays and the header."""
    from safetensors import SafetensorError, safe_open

    source = Path(path)
    if not source.is_file():
        raise FileError(f"{source} is not a file: nothing to load.")
    try:
        with safe_open(str(source), framework="numpy") as file:
            metadata = file.metadata() or {}
            header = _header(source, metadata, kind)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise FileError(
            f"{source} is not a whole safetensors file ({error}): damaged, cut short, or of another kind."
        ) from None
    return arrays, header


def _header(source: Path, metadata: Mapping[str, str], kind: str) -> dict[str, Any]:
    if _KEY not in metadata:
        raise FileError(f"{source} is a safetensors file, but attnflow did not write it: its header has no "
                        f"'{_KEY}' entry.")  # fmt: skip
    try:
        header = dict(json.loads(metadata[_KEY]))
    except (json.JSONDecodeError, TypeError, ValueError):
        raise FileError(f"{source} has an attnflow header that is not readable JSON: damaged.") from None
    found = header.get("format")
    if not isinstance(found, int) or found > FORMAT:
        raise FileError(
            f"{source} has format {found}, and this attnflow reads formats up to {FORMAT}. "
            "Update it:  pip install -U attnflow"
        )
    if header.get("kind") != kind:
        raise FileError(
            f"{source} holds {header.get('kind')!r}, but {kind!r} was asked for. "
            f"Use attnflow.{str(header.get('kind')).capitalize()}.load(path)."
        )
    return header
