"""Whether attention flow is exact: thousands of networks against independent solvers and against itself.

python benchmarks/flow_exact.py [--quick]

On every network every pair at every height is solved in full, its preflow is checked edge by edge and its cut is
computed anew (``certify``). The engine's answers with closed forms, theorem and hub bounds (all heights, the top alone,
rows alone) must be the same integers, so each pair that a bound settled is solved again. Samples are compared with
networkx on exact fractions (small networks) and igraph on floats.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from flow_networks import available, real
from report import write

from attnflow.scoring.flow.certificate import certify
from attnflow.scoring.flow.solver import solve
from tests.scoring.flow.networks import by_fractions, by_igraph, instances

LARGE = ((4, 66), (3, 130), (12, 36))
KINDS = ("softmax 2", "causal", "local with a sink", "row sums above one")


class Tally:
    """Counts and largest differences."""

    def __init__(self) -> None:
        self.families: Counter[str] = Counter()
        self.proofs: Counter[str] = Counter()
        self.pairs = self.fractions = self.floats = 0
        self.off_fractions = self.off_floats = 0.0


def check(name: str, stack: np.ndarray, r: np.random.Generator, tally: Tally) -> None:
    steps, n, _ = stack.shape
    full = certify(stack).solution  # raises where a cut, a preflow or the engine's own answer differs
    tally.proofs.update(solve(stack).proof_counts())
    rows = sorted({int(x) for x in r.integers(0, n, 2)})
    for what, found, expected in (
        ("top", solve(stack, [steps]), full.units[-1:]),
        ("rows", solve(stack, None, rows), full.units[:, rows]),
        ("rows of the top", certify(stack, [steps], rows).solution, full.units[-1:, rows]),
        ("two threads", solve(stack, threads=2), full.units),
    ):
        if (found.units != expected).any():
            raise SystemExit(f"{name} {stack.shape}: {what} differs from the full solution")
        if what == "top":
            tally.proofs.update({k: v for k, v in found.proof_counts().items() if k == "hub bound"})
    tally.families[name] += 1
    tally.pairs += full.units.size
    if steps * n * n <= 200:
        for h, i, j in _sample(r, steps, n, 2):
            off = abs(float(by_fractions(stack, h, i, j)) - full.scores[h - 1, i, j])
            tally.fractions, tally.off_fractions = tally.fractions + 1, max(tally.off_fractions, off)
    flow = by_igraph(stack)
    for h, i, j in _sample(r, steps, n, 4):
        off = abs(flow(h, i, j) - full.scores[h - 1, i, j])
        tally.floats, tally.off_floats = tally.floats + 1, max(tally.off_floats, off)
    if max(tally.off_fractions, tally.off_floats) > 1e-9:
        raise SystemExit(f"{name} {stack.shape}: differs from the rival by more than 1e-9")


def _sample(r: np.random.Generator, steps: int, n: int, count: int) -> list[tuple[int, int, int]]:
    return [(int(r.integers(1, steps + 1)), int(r.integers(n)), int(r.integers(n))) for _ in range(count)]


def shape(r: np.random.Generator) -> tuple[int, int]:
    if r.random() < 0.1:
        return int(r.integers(3, 13)), int(r.integers(11, 33))
    return int(r.integers(1, 8)), int(r.integers(2, 11))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the networks")
    quick = parser.parse_args().quick
    tally, start = Tally(), time.perf_counter()
    for name, n in (("minilm", 12), ("minilm", 33), ("minilm", 65), ("mpnet", 24), ("mpnet", 40), ("smollm2", 24)):
        if available()[name]:
            check(f"real: {name}", real(name, n), np.random.default_rng(n), tally)
    for size in LARGE[:1] if quick else LARGE:
        for name, stack in instances(np.random.default_rng(size[1]), *size):
            if name in KINDS:
                check(name, stack, np.random.default_rng(0), tally)
    for seed in range(12 if quick else 130):
        r = np.random.default_rng(seed)
        for name, stack in instances(r, *shape(r)):
            check(name, np.ascontiguousarray(stack), r, tally)
        print(f"\r{sum(tally.families.values())} networks", end="", file=sys.stderr, flush=True)
    text = (
        f"{sum(tally.families.values())} networks of {len(tally.families)} families, {tally.pairs} pairs: every one "
        "with a cut of its own integer value, and the same with and without bounds, in "
        f"{time.perf_counter() - start:.0f} s.\n\n"
        f"networkx on exact fractions: {tally.fractions} pairs, largest difference {tally.off_fractions:.1e}. "
        f"igraph on floats: {tally.floats} pairs, largest difference {tally.off_floats:.1e}.\n\n"
        "Pairs by what settled them, each solved again in full: "
        + ", ".join(f"{name} {count}" for name, count in tally.proofs.most_common())
        + "."
    )
    rows = [[name, count] for name, count in tally.families.most_common()]
    command = "python benchmarks/flow_exact.py" + (" --quick" if quick else "")
    write(
        "flow_exact_quick" if quick else "flow_exact",
        "Attention flow: exactness",
        ["family", "networks"],
        rows,
        text,
        command,
    )


if __name__ == "__main__":
    main()
