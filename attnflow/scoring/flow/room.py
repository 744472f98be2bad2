"""Memory that a computation of flow may take, compared with what is free before it begins."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from attnflow.errors import AttnFlowError

SAID = 1 << 30
"""Bytes from which it is said how much will be held."""

_ADVICE = (
    "Ask for one output at one layer with bounds in place of exact flows:  "
    "flow(model, tokenizer, text, layer=-1, position=-1, tolerance=1e-3)"
)


def free_bytes() -> int | None:
    """What the system can still give, or None where it does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return int(next(x for x in lines if x.startswith("MemAvailable")).split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def check_room(needed: int, what: str) -> None:
    """An error if ``needed`` bytes are not free; a line on the standard error if they are many.

    >>> check_room(1000, "a small network")
    """
    free = free_bytes()
    if free is not None and needed > free:
        raise AttnFlowError(
            f"{what} would take up to {needed / 2**30:.1f} GiB, but {free / 2**30:.1f} GiB are free. {_ADVICE}"
        )
    if needed >= SAID and sys.stderr is not None:
        sys.stderr.write(f"attnflow: {what} takes up to {needed / 2**30:.1f} GiB\n")
        sys.stderr.flush()
