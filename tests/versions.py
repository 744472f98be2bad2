"""The quick tests of capture, flow, gradient and blank-out with other versions of transformers and torch.

    make test-versions                                 # every row of the matrix, then docs/versions.md is written
    python tests/versions.py --only newest             # one row; the page is then left as it is
    python tests/versions.py --work DIR                # environments elsewhere than in .versions/

Each row has an environment of its own, with pip's newest of everything else; one that is there is used again. A torch
other than that of constraints.txt brings some gigabytes of CUDA packages.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "versions.md"

TESTS = {
    "capture": [
        "tests/capturing/test_routes.py", "tests/capturing/test_options.py", "tests/capturing/test_padding.py",
        "tests/capturing/test_generate.py", "tests/capturing/test_names.py", "tests/capturing/test_ordinary.py",
        "tests/capturing/hostile",
    ],
    "flow": ["tests/scoring/test_rollout.py", "tests/scoring/flow/test_flow.py", "tests/test_demo.py"],
    "importance": ["tests/scoring/test_gradient.py", "tests/scoring/test_blankout.py"],
}  # fmt: skip
"""What is run: the groups of the page, and the files of each."""


@dataclass(frozen=True)
class Versions:
    """One row of the matrix; None for what pip takes by itself."""

    name: str
    transformers: str
    torch: str


MATRIX = (
    Versions("oldest", "5.15.1", "2.13.0"),
    Versions("pinned", "5.22.2", "2.13.0"),
    Versions("newest", "5.23.0", "2.13.0"),
)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--work", default=str(ROOT / ".versions"), help="folder for the environments")
    parser.add_argument("--only", default="", help="names of rows, separated by commas")
    options = parser.parse_args()
    chosen = [v for v in MATRIX if not options.only or v.name in options.only.split(",")]
    rows, failed = [], False
    for versions in chosen:
        python = environment(versions, Path(options.work))
        outcome = {group: run(python, files) for group, files in TESTS.items()}
        failed = failed or any("failed" in o or "error" in o for o in outcome.values())
        rows.append((versions, told(python), outcome))
        print(f"{versions.name}: transformers {versions.transformers}, torch {versions.torch}: {outcome}", flush=True)
    if len(chosen) == len(MATRIX):
        PAGE.write_text(page(rows))
    return 1 if failed else 0


def environment(versions: Versions, work: Path) -> Path:
    """The interpreter of an environment with these versions, made if it is not there."""
    folder = work / f"{versions.name}-transformers{versions.transformers}-torch{versions.torch}"
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    print(f"Setting up {folder} …", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # torch first, so that nothing else brings another one.
    subprocess.run([*pip, f"torch=={versions.torch}"], check=True)
    wanted = [str(ROOT), f"transformers=={versions.transformers}", f"torch=={versions.torch}", "pytest", "hypothesis"]
    subprocess.run([*pip, *wanted], check=True)
    subprocess.run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", "attnflow"], check=True)
    (folder / "ready").touch()
    return python


def run(python: Path, files: list[str]) -> str:
    """The last line of pytest, without the time."""
    command = [str(python), "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *files]
    told = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines() or ["nothing was printed: error"]
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            print("  ", line[:200], flush=True)
    return re.sub(r" in [\d.]+s.*| ?=+ ?|, \d+ warnings?", "", lines[-1])


def told(python: Path) -> str:
    """The versions that are really there."""
    code = (
        "import platform as p, torch as t, transformers as f; print(p.python_version(), t.__version__, f.__version__)"
    )
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


START = time.monotonic()


def page(rows: list[tuple[Versions, str, dict[str, str]]]) -> str:
    """The whole page."""
    head = ("", "Python", "torch", "transformers", *TESTS)
    lines = [[v.name, *there.split(), *outcome.values()] for v, there, outcome in rows]
    table = "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines])
    return f"""# Versions

Written by `make test-versions` on {time.strftime("%Y-%m-%d")}: the quick tests of capture, flow and importance
(gradient, blank-out), in {(time.monotonic() - START) / 60:.0f} minutes.
Each row has an environment of its own with pip's newest of everything else.
Every row has the torch of constraints.txt: other versions bring gigabytes of CUDA packages and were not tried.

{table}
"""


if __name__ == "__main__":
    sys.exit(main())
