"""Whether attention flow is exact: thousands of networks against independent solvers and against itself.

python benchmarks/flow_exact.py [--quick] [--work FOLDER]

It takes a while, so what is done is kept in FOLDER (by default in the folder for temporary files), part by part; the
same command goes on from there.

On every network every pair at every height is solved in full, its preflow is checked edge by edge and its cut is
computed anew (``certify``). The engine's answers with closed forms, theorem, hub and relay bounds (all heights, the top
alone, rows alone) must be the same integers, so each pair that a bound settled is solved again; so must those where
each source begins with the preflow of the one before. Samples are compared
with networkx on exact fractions (small networks) and igraph on floats. Deep networks are also bracketed with a
tolerance: the exact flow must lie between the bounds, no thinned network and no drawn flow may carry more, and it must
lie between the flow and the cut that few edges give. Long rows of SmolLM2 are solved with bounds and without any, and
compared with igraph on sampled inputs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from flow_networks import available, real
from report import write

from attnflow.scoring.flow.certificate import certify
from attnflow.scoring.flow.cutting import Cutting
from attnflow.scoring.flow.draw import Draw
from attnflow.scoring.flow.interval import bracket
from attnflow.scoring.flow.search import run
from attnflow.scoring.flow.solver import Solution, solve
from attnflow.scoring.flow.thin import Thin
from tests.scoring.flow.networks import by_fractions, by_igraph, instances

LARGE = ((4, 66), (3, 130), (12, 36))
KINDS = ("softmax 2", "causal", "local with a sink", "row sums above one")


DEEP = ("softmax 2", "softmax 8", "uniform", "causal", "local with a sink", "sparse", "attention sink", "twin tokens")
TOLERANCE = 1e-3


@dataclasses.dataclass
class Tally:
    """Counts and largest differences."""

    families: Counter[str] = dataclasses.field(default_factory=Counter)
    proofs: Counter[str] = dataclasses.field(default_factory=Counter)
    pairs: int = 0
    fractions: int = 0
    floats: int = 0
    off_fractions: float = 0.0
    off_floats: float = 0.0
    brackets: int = 0
    widest: float = 0.0
    thinned: int = 0
    drawn: int = 0
    few: int = 0
    cuts: int = 0
    kept: int = 0
    seconds: float = 0.0

    def add(self, other: Tally) -> None:
        """Take in what another part has counted."""
        for field in dataclasses.fields(self):
            mine, more = getattr(self, field.name), getattr(other, field.name)
            largest = field.name.startswith(("off_", "widest"))
            setattr(self, field.name, max(mine, more) if largest else mine + more)


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
        if what in ("top", "rows"):
            tally.proofs.update({k: v for k, v in found.proof_counts().items() if k in ("hub bound", "relay bound")})
    kept = run(full.capacities, (steps,), range(n), slow=0)
    if (full.units[-1] != kept.units[:, 0].T).any():
        raise SystemExit(f"{name} {stack.shape}: a flow that began with another source's preflow differs")
    if steps > 2:
        tally.kept += n * (n - 1)
    tally.families[name] += 1
    tally.pairs += full.units.size
    if steps >= 9 and n >= 24:
        inside(name, stack, full, rows, tally)
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


def inside(name: str, stack: np.ndarray, full: Solution, rows: list[int], tally: Tally) -> None:
    """Exact flows lie in the interval of a tolerance, and no thinned network carries more."""
    steps = len(stack)
    lower, upper, _ = bracket(stack, TOLERANCE, [steps], rows)
    exact = full.scores[-1, rows]
    if (lower.scores[0] > exact + 1e-12).any() or (upper[0] < exact - 1e-12).any():
        raise SystemExit(f"{name} {stack.shape}: an exact flow is not in its interval")
    tally.brackets += exact.size
    tally.widest = max(tally.widest, float((upper[0] - lower.scores[0]).max()))
    causal = full.capacities.is_causal()
    sinks = np.arange(0, rows[0] if causal else stack.shape[1], 5)
    sinks = sinks[sinks != rows[0]]
    thin = Thin(full.capacities, rows[0], sinks, causal, 4)
    for j in sinks.tolist():
        if max(thin.lower(j), thin.lower(j, 2)) > full.units[-1, rows[0], j]:
            raise SystemExit(f"{name} {stack.shape}: a thinned network carries more than the whole one")
    tally.thinned += len(sinks)
    few_edges(name, full, rows[0], sinks, causal, 4, tally)
    for upper_units in (np.full(len(sinks), full.capacities.rowsum[-1, rows[0]]), full.units[-1, rows[0], sinks]):
        draw = Draw(full.capacities, rows[0], sinks, causal, 2, 5) if len(sinks) else None
        for slack in (0, int(upper_units.max()) // 10) if draw else ():
            found = draw.lower(upper_units, slack)
            if (found > full.units[-1, rows[0], sinks]).any():
                raise SystemExit(f"{name} {stack.shape}: a drawn flow is larger than the exact one")
            tally.drawn += len(found)


def few_edges(name: str, full: Solution, t: int, sinks: np.ndarray, causal: bool, keep: int, tally: Tally) -> None:
    """Exact flows lie between the flow and the cut that few edges give."""
    caps, at = full.capacities, full.rows.index(t)
    for j in sinks.tolist():
        start, stop = (j, t + 1) if causal else (0, caps.n)
        loose = int(caps.row_sums(caps.steps - 1, [t])[0])
        lower, upper = Cutting(caps.view(start, stop), t - start, causal, keep).bounds(j - start, loose)
        if not lower <= full.units[-1, at, j] <= upper:
            raise SystemExit(f"{name}: an exact flow is not between the bounds that few edges give")
        tally.few += 1
        tally.cuts += upper < loose


def long_row(n: int, samples: int, tally: Tally) -> None:
    """The last row of SmolLM2: with bounds, in full, in an interval, and by igraph on some inputs."""
    stack = real("smollm2", n)
    steps, t = len(stack), n - 1
    fast, full = solve(stack, [steps], [t]), solve(stack, [steps], [t], bounds=False)
    if (fast.units != full.units).any():
        raise SystemExit(f"SmolLM2 at {n}: a flow that a bound settled is another one in full")
    lower, upper, _ = bracket(stack, TOLERANCE, [steps], [t])
    if (lower.scores > full.scores + 1e-12).any() or (upper < full.scores - 1e-12).any():
        raise SystemExit(f"SmolLM2 at {n}: an exact flow is not in its interval")
    far = np.arange(0, n - 256, 7)
    drawn = Draw(full.capacities, t, far, True, 12, 64).lower(full.units[0, 0, far])
    if (drawn > full.units[0, 0, far]).any():
        raise SystemExit(f"SmolLM2 at {n}: a drawn flow is larger than the exact one")
    tally.drawn += len(far)
    few_edges(f"SmolLM2 at {n}", full, t, far[:: max(1, len(far) // 8)], True, 24, tally)
    tally.brackets += n
    tally.widest = max(tally.widest, float((upper - lower.scores).max()))
    tally.families[f"real: smollm2, one row of {n}"] += 1
    tally.pairs += n
    tally.proofs.update(fast.proof_counts())
    flow = by_igraph(stack)
    for j in np.random.default_rng(n).choice(n, samples, replace=False).tolist():
        tally.floats += 1
        tally.off_floats = max(tally.off_floats, abs(flow(steps, t, j) - full.scores[0, 0, j]))


def _sample(r: np.random.Generator, steps: int, n: int, count: int) -> list[tuple[int, int, int]]:
    return [(int(r.integers(1, steps + 1)), int(r.integers(n)), int(r.integers(n))) for _ in range(count)]


def shape(r: np.random.Generator) -> tuple[int, int]:
    if r.random() < 0.1:
        return int(r.integers(3, 13)), int(r.integers(11, 33))
    return int(r.integers(1, 8)), int(r.integers(2, 11))


def parts(quick: bool) -> Iterator[tuple[str, Callable[[Tally], None]]]:
    """The parts of the work, by name."""

    def of_models(tally: Tally) -> None:
        for name, n in (("minilm", 12), ("minilm", 33), ("minilm", 65), ("mpnet", 24), ("mpnet", 40), ("smollm2", 24)):
            if available()[name]:
                check(f"real: {name}", real(name, n), np.random.default_rng(n), tally)

    def large(tally: Tally) -> None:
        for size in LARGE:
            for name, stack in instances(np.random.default_rng(size[1]), *size):
                if name in KINDS:
                    check(name, stack, np.random.default_rng(0), tally)

    def deep(seed: int, tally: Tally) -> None:
        r = np.random.default_rng(1000 + seed)
        for name, stack in instances(r, int(r.integers(9, 15)), int(r.integers(24, 34))):
            if name in DEEP:
                check(f"{name}, deep", np.ascontiguousarray(stack), r, tally)

    def small(first: int, tally: Tally, count: int = 10) -> None:
        for seed in range(first, first + count):
            r = np.random.default_rng(seed)
            for name, stack in instances(r, *shape(r)):
                check(name, np.ascontiguousarray(stack), r, tally)

    if quick:
        yield "small", lambda tally: small(0, tally, 2)
        return
    yield "models", of_models
    yield "large", large
    for seed in range(12):
        yield f"deep {seed}", lambda tally, seed=seed: deep(seed, tally)
    for first in range(0, 390, 10):
        yield f"small {first}", lambda tally, first=first: small(first, tally)
    if available()["smollm2"]:
        yield "row of 512", lambda tally: long_row(512, 4, tally)
        yield "row of 1024", lambda tally: long_row(1024, 2, tally)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two seeds of small networks, nothing written")
    parser.add_argument("--work", type=Path, help="where parts that are done are kept")
    options = parser.parse_args()
    quick = options.quick
    work = options.work or Path(tempfile.mkdtemp() if quick else tempfile.gettempdir()) / "attnflow-flow-exact"
    work.mkdir(parents=True, exist_ok=True)
    tally = Tally()
    for name, part in parts(quick):
        kept = work / f"{name.replace(' ', '-')}.json"
        if not kept.exists():
            done, start = Tally(), time.perf_counter()
            part(done)
            done.seconds = time.perf_counter() - start
            kept.write_text(json.dumps(vars(done)))
        saved = json.loads(kept.read_text())
        one = Tally(**{**saved, "families": Counter(saved["families"]), "proofs": Counter(saved["proofs"])})
        tally.add(one)
        print(f"{name}: {sum(tally.families.values())} networks", file=sys.stderr, flush=True)
    text = (
        f"{sum(tally.families.values())} networks of {len(tally.families)} families, {tally.pairs} pairs: every one "
        "with a cut of its own integer value (long rows: solved in full), and the same with and without bounds, in "
        f"{tally.seconds:.0f} s.\n\n"
        f"networkx on exact fractions: {tally.fractions} pairs, largest difference {tally.off_fractions:.1e}. "
        f"igraph on floats: {tally.floats} pairs, largest difference {tally.off_floats:.1e}.\n\n"
        f"With `tolerance={TOLERANCE}`: {tally.brackets} exact flows of deep networks lie in their intervals, of which "
        f"the widest is {tally.widest:.1e}; {tally.thinned} flows in thinned networks and {tally.drawn} drawn "
        f"flows are not larger; {tally.few} lie between the bounds that few edges give, {tally.cuts} of them with a "
        "cut between the ends.\n\n"
        f"{tally.kept} flows of the top layers were found again, each from the preflow of the source before it unless "
        "that was empty.\n\n"
        "Pairs by what settled them, each solved again in full: "
        + ", ".join(f"{name} {count}" for name, count in tally.proofs.most_common())
        + "."
    )
    rows = [[name, count] for name, count in tally.families.most_common()]
    head = ["family", "networks"]
    write("flow_exact", "Attention flow: exactness", head, rows, text, "python benchmarks/flow_exact.py")


if __name__ == "__main__":
    main()
