"""How much `import attnflow` adds to `import torch, transformers`, and the speed of two commits side by side.

    python benchmarks/import_time.py                     # this tree alone
    python benchmarks/import_time.py --before ../older   # and a checkout of another commit, in turn with this one

Imports are medians of fresh processes, taken in turn. With ``--before`` every public operation is timed in fresh
processes too, in turn between both trees: the least of the repetitions of a process, then the median over processes.
Writes docs/benchmarks/import_time.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import FOLDER, markdown, quick, write

HERE = Path(__file__).resolve().parent.parent
BASE = "import torch, transformers"
OURS = f"{BASE}; import attnflow"
REPETITIONS = 4


def seconds(code: str, tree: Path = HERE) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(tree)}, cwd=tree)
    return time.perf_counter() - start


def operations() -> dict[str, Callable[[], Any]]:
    """What a user calls, by the public names, which both trees have: on the model in the package and on MiniLM."""
    from weights import minilm

    from attnflow import blankout, capture, compare, demo, flow, gradient, raw, rollout

    model, tokenizer = demo.model(), demo.tokenizer()
    text = "the author of the books that the men near the old houses like to read"
    real, words = minilm()
    long = " ".join([text] * 8)
    kept = capture(real, words, long)
    few = ["the key to the doors", "the men near the table"]
    return {
        "capture, MiniLM, 123 tokens": lambda: capture(real, words, long),
        "raw": lambda: raw(kept),
        "rollout": lambda: rollout(kept),
        "rollout while the model runs": lambda: rollout(real, words, long, layer=-1, position=0, stream=True),
        "flow, all pairs of the top layer": lambda: flow(kept, layer=-1),
        "gradient": lambda: gradient(model, tokenizer, text),
        "blank-out": lambda: blankout(model, tokenizer, text),
        "compare, 2 sentences": lambda: compare(model, tokenizer, few),
        "page": lambda: rollout(model, tokenizer, text).to_html(),
    }


def time_operations() -> None:
    """Print the least seconds of each operation as JSON; runs in a process of its own."""
    import torch

    torch.set_num_threads(1)
    out = {}
    for name, operation in operations().items():
        operation()
        times = []
        for _ in range(REPETITIONS):
            start = time.perf_counter()
            operation()
            times.append(time.perf_counter() - start)
        out[name] = min(times)
    print(json.dumps(out))


def side_by_side(before: Path, processes: int) -> list[list[str]]:
    """Rows of operation, seconds before, seconds now, ratio."""
    found: dict[Path, list[dict[str, float]]] = {before: [], HERE: []}
    for _ in range(processes):
        for tree, runs in found.items():
            env = {**os.environ, "PYTHONPATH": f"{tree}:{HERE / 'benchmarks'}"}
            command = [sys.executable, str(Path(__file__).resolve()), "--time"]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=env, cwd=tree)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    rows = []
    for name in found[HERE][0]:
        was, now = (statistics.median(run[name] for run in runs) for runs in found.values())
        rows.append([name, f"{1000 * was:.2f} ms", f"{1000 * now:.2f} ms", f"{now / was:.2f}"])
    return rows


def commit(tree: Path) -> str:
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main(before: Path | None, rounds: int = 9, processes: int = 3) -> None:
    cases = {BASE: (BASE, HERE), OURS: (OURS, HERE)}
    if before is not None:
        cases[f"{OURS}  (commit {commit(before)})"] = (OURS, before)
    for code, tree in [] if quick() else cases.values():
        seconds(code, tree)  # fill the file cache
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, (code, tree) in cases.items():
            times[name].append(seconds(code, tree))
    medians = {name: statistics.median(t) for name, t in times.items()}
    base = medians[BASE]
    rows = [[f"`{name}`", f"{t:.2f} s", f"{t / base:.2f}"] for name, t in medians.items()]
    ratio = medians[OURS] / base
    text = f"`import attnflow` takes {ratio:.2f} times as long as `{BASE}` alone (target: at most 1.20)."
    command = "python benchmarks/import_time.py"
    if before is not None:
        command += f" --before <a checkout of {commit(before)}>"
    write("import_time", "Import time", ["code", "median", "ratio"], rows, text, command)
    if before is not None:
        table = markdown(
            ["operation", f"commit {commit(before)}", f"commit {commit(HERE)}", "ratio"],
            side_by_side(before, processes),
        )
        print(f"\n{table}")
        with (FOLDER / "import_time.md").open("a", encoding="utf-8") as page:
            page.write(
                f"\n## Two commits side by side\n\nThe same run also timed what users call, on one thread, in turn "
                f"between both trees: the least of {REPETITIONS} repetitions in a process, the median of {processes} "
                f"processes.\n\n{table}\n"
            )
    if ratio > 1.2 and not quick():
        sys.exit("import attnflow adds more than a fifth")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a checkout of another commit")
    parser.add_argument("--quick", action="store_true", help="one round, nothing written")
    parser.add_argument("--time", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.time:
        time_operations()
    else:
        main(chosen.before.resolve() if chosen.before else None, **({"rounds": 1} if chosen.quick else {}))
