"""How much `import attnflow` adds to `import torch, transformers`: medians of fresh processes, taken in turn.

python benchmarks/import_time.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from report import write

BASE = "import torch, transformers"
OURS = f"{BASE}; import attnflow"


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main(rounds: int = 9) -> None:
    seconds(OURS)  # fill the file cache
    times: dict[str, list[float]] = {BASE: [], OURS: []}
    for _ in range(rounds):
        for code, taken in times.items():
            taken.append(seconds(code))
    base, ours = (statistics.median(t) for t in times.values())
    rows = [[code, f"{statistics.median(t):.2f} s", f"{statistics.median(t) / base:.2f}"] for code, t in times.items()]
    text = f"`import attnflow` takes {ours / base:.2f} times as long as `{BASE}` alone (target: at most 1.20)."
    write("import_time", "Import time", ["code", "median", "ratio"], rows, text, "python benchmarks/import_time.py")
    if ours / base > 1.2:
        sys.exit("import attnflow adds more than a fifth")


if __name__ == "__main__":
    main()
