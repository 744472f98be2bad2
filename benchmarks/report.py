"""What every benchmark shares: its table on the screen and in the docs, with the command, the day and the versions.

A run with ``--quick`` measures next to nothing: it shows that a benchmark works. Whatever it is asked to write, this
module leaves the docs as they are. The same holds for a run that measures fewer examples than the docs are made of.
"""

from __future__ import annotations

import csv
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs" / "benchmarks"
DOCS = FOLDER.parent
PACKAGES = ("attnflow", "torch", "transformers", "numpy")
# In the folder of a trained model: the runs that trained it.
RUNS = "runs.csv"
_START = time.monotonic()


def quick() -> bool:
    """Whether this run is a small one, which records nothing; argparse also takes the beginning of an option."""
    return any(len(a) > 2 and "--quick".startswith(a) for a in sys.argv[1:])


def stays(path: Path, small: str = "") -> bool:
    """True, and said, where a small run would have replaced something in the docs: by --quick, or as ``small`` says."""
    why = "--quick" if quick() else small
    if not why or DOCS.resolve() not in path.resolve().parents:
        return False
    print(f"{why}: {path.name} stays as it is.")
    return True


def fewer(option: str, given: int, recorded: int) -> str:
    """What to say of a run that measures fewer than the docs are made of; nothing of one that does not.

    >>> fewer("--count", 5, 2000), fewer("--count", 2000, 2000)
    ('--count 5 is fewer than the 2000 recorded', '')
    """
    return f"{option} {given} is fewer than the {recorded} recorded" if given < recorded else ""


def given_command() -> str:
    """The command that was given, with FOLDER or FILE for every path that leaves the repository."""
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *map(_told, sys.argv[1:])])


def _told(argument: str) -> str:
    path = Path(argument)
    if os.sep not in argument or not (path.is_absolute() or ".." in path.parts):
        return argument
    return "FOLDER" if path.is_dir() else "FILE"


def duration() -> str:
    """How long this process has run."""
    return _told_time(time.monotonic() - _START)


def _told_time(took: float) -> str:
    return f"{took:.0f} s" if took < 600 else f"{took / 60:.0f} min"


def versions(packages: Sequence[str] = PACKAGES) -> str:
    """Of the packages that matter and of Python."""
    return ", ".join([*(f"{p} {version(p)}" for p in packages), f"Python {platform.python_version()}"])


def made(command: str = "", packages: Sequence[str] = PACKAGES) -> str:
    """The line that every page ends with: command (by default the one that was given), day, duration, versions."""
    day = datetime.now(UTC)
    return (
        f"Made by `{command or given_command()}` on {day.day} {day:%B %Y} in {duration()}, with {versions(packages)}, "
        f"{os.cpu_count()} cores."
    )


def record_run(path: Path, made_in: Iterable[Path] = ()) -> None:
    """Add this run to a CSV file: a page that several runs made has one line for each.

    Beside the duration stands the time of the processor, which pauses and other work do not make longer. Before it go
    the runs that made the folders which this one read, as they are noted there: a training has no page of its own.
    """
    if stays(path):
        return
    took = f"{duration()} ({_told_time(time.process_time())} of a processor)"
    row = [f"{datetime.now(UTC):%Y-%m-%d}", given_command(), took, versions(), f"{os.cpu_count()} cores"]
    head, *old = _rows(path) or [["day", "command", "duration", "versions", "machine"]]
    before = [made for folder in made_in for made in _rows(folder / RUNS)[1:] if made not in old]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *old, *before, row])


def _rows(path: Path) -> list[list[str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def write(
    name: str,
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    text: str,
    command: str,
    small: str = "",
) -> None:
    """Print the table and write ``docs/benchmarks/<name>.md``, but not of a run that is ``small``, as :func:`stays`."""
    table = markdown(head, rows)
    print(f"{title}\n\n{table}\n\n{text}")
    path = FOLDER / f"{name}.md"
    if not stays(path, small):
        FOLDER.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {title}\n\n{text}\n\n{table}\n\n{made(command)}\n", encoding="utf-8")


def insert(path: Path, key: str, text: str) -> None:
    """Put ``text`` between the marks ``<!-- key -->`` and ``<!-- /key -->`` of a page; what is outside stays."""
    before, _, after = _around(path, key)
    if not stays(path):
        path.write_text(f"{before}<!-- {key} -->\n\n{text.strip()}\n\n<!-- /{key} -->{after}", encoding="utf-8")


def between(path: Path, key: str) -> str:
    """What stands between the marks of a page."""
    return _around(path, key)[1].strip()


def table_rows(path: Path, key: str) -> list[list[str]]:
    """The rows of the table between the marks of a page, without its head."""
    lines = [line for line in between(path, key).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def _around(path: Path, key: str) -> tuple[str, str, str]:
    """What stands before, between and after the marks of a page."""
    first, last = f"<!-- {key} -->", f"<!-- /{key} -->"
    before, found, rest = path.read_text(encoding="utf-8").partition(first)
    between, closed, after = rest.partition(last)
    if not found or not closed:
        raise SystemExit(f"{path} has no {first} … {last}, so there is no place for the result.")
    return before, between, after


def save(figure: Any, path: Path) -> None:
    """Write a figure as SVG; the same figure gives the same bytes."""
    import matplotlib

    if stays(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "attnflow"}):
        figure.savefig(path, metadata={"Date": None})
