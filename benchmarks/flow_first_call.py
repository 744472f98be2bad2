"""How long the first call of flow takes: with nothing compiled yet, and in later processes from the disk cache.

python benchmarks/flow_first_call.py [--quick]

Each figure is from a process of its own that has imported a model class, from `flow` being asked to the first flows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from report import quick, write

CODE = """
import time
from transformers import BertModel
import attnflow
from attnflow.scoring.flow import solver
import numpy as np
stack = np.random.default_rng(0).random((6, 20, 20))
start = time.perf_counter()
solver.solve(stack / stack.sum(-1, keepdims=True), [6])
print(time.perf_counter() - start)
"""


def first_call(cache: str | None) -> tuple[float, bool]:
    env = {**os.environ, **({} if cache is None else {"ATTNFLOW_CACHE": cache})}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=True)
    return float(done.stdout), "compiling" in done.stderr


def main() -> None:
    if quick():
        print(f"first call of a process, from the user's own cache: {first_call(None)[0]:.2f} s")
        return
    with tempfile.TemporaryDirectory() as cache:
        cold, said = first_call(cache)
        warm = sorted(first_call(cache)[0] for _ in range(5))[2]
        again = first_call(cache)[1]
    rows = [
        ["nothing compiled yet", f"{cold:.2f} s", "10 s", "yes" if said else "no"],
        ["later processes (median of 5)", f"{warm:.2f} s", "0.5 s", "yes" if again else "no"],
    ]
    missed = [row[0] for row, ok in zip(rows, (cold <= 10 and said, warm <= 0.5 and not again), strict=True) if not ok]
    text = f"Targets missed: {', '.join(missed) or 'none'}."
    head = ["first call", "time", "limit", "says that it compiles"]
    write("flow_first_call", "Attention flow: the first call", head, rows, text, "python benchmarks/flow_first_call.py")


if __name__ == "__main__":
    main()
