"""A table on the screen and the same table under docs/benchmarks/, with the command that made it."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs" / "benchmarks"


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def write(
    name: str, title: str, head: Sequence[str], rows: Sequence[Sequence[object]], text: str, command: str
) -> None:
    """Print the table and write ``docs/benchmarks/<name>.md``."""
    table = markdown(head, rows)
    packages = ", ".join(f"{p} {version(p)}" for p in ("attnflow", "torch", "transformers", "numpy"))
    made = f"Made by `{command}` with {packages}, Python {platform.python_version()}."
    print(f"{title}\n\n{table}\n\n{text}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.md").write_text(f"# {title}\n\n{text}\n\n{table}\n\n{made}\n", encoding="utf-8")


def insert(path: Path, key: str, text: str) -> None:
    """Put ``text`` between the marks ``<!-- key -->`` and ``<!-- /key -->`` of a page; what is outside stays."""
    first, last = f"<!-- {key} -->", f"<!-- /{key} -->"
    page = path.read_text(encoding="utf-8")
    before, found, rest = page.partition(first)
    _, closed, after = rest.partition(last)
    if not found or not closed:
        raise SystemExit(f"{path} has no {first} … {last}, so there is no place for the result.")
    path.write_text(f"{before}{first}\n\n{text.strip()}\n\n{last}{after}", encoding="utf-8")


def save(figure: Any, path: Path) -> None:
    """Write a figure as SVG; the same figure gives the same bytes."""
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "attnflow"}):
        figure.savefig(path, metadata={"Date": None})
