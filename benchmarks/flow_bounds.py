"""How many flows are saturated layer by layer, how many a hub settles, and how many waves the rest needs.

python benchmarks/flow_bounds.py

Counts, not times: they are the same on every machine. The text is that of flow_networks.py, 64 tokens of it.
"""

from __future__ import annotations

import numpy as np
from flow_networks import available, real
from numba import njit
from report import markdown, quick, write

from attnflow.scoring.flow.bounds import hub
from attnflow.scoring.flow.compiled import columns
from attnflow.scoring.flow.integers import Capacities, integers
from attnflow.scoring.flow.search import orders
from attnflow.scoring.flow.solver import solve
from attnflow.scoring.flow.waves import U0, U1, _distances, _first_wave, _inject, _push_wave
from attnflow.scoring.flow.workspace import words_of, workspace

N = 64
NAMES = {"minilm": "all-MiniLM-L6-v2", "mpnet": "all-mpnet-base-v2", "smollm2": "SmolLM2-135M"}


def saturation(caps: Capacities) -> list[float]:
    """For each layer the share of pairs whose flow is min(row sum, column sum of the first layer)."""
    column = caps.cap[0].sum(0)
    units = solve(caps).units
    return [float((u == np.minimum(rows[:, None], column)).mean()) for u, rows in zip(units, caps.rowsum, strict=True)]


def settled_by_hub(caps: Capacities) -> float:
    """Share of the pairs of the top layer that the first hub settles: the node most attended to, seven steps up."""
    height = min(7, caps.steps - 4)
    node = int(caps.cap[height].sum(0).argmax())
    limit = np.minimum(caps.rowsum[-1][None], caps.cap[0].sum(0)[:, None])
    return float((hub(caps, height, node, range(caps.n)) >= limit).mean())


@njit
def count(w, shape, rowsum, out):
    """Waves of each source at the top into the sink for which the workspace was prepared."""
    n, words, height, sink = shape
    column = np.int64(0)
    for i in range(n):
        column += w.cap[i * n + sink]
    for source in range(n):
        bound = min(min(rowsum[source], column), _inject(w, n, words, height, source))
        for y in range(height * n * words):
            w.ahead[y] = w.fresh[y]
            w.used[y] = U0
            w.used_t[y] = U0
        for y in range((height + U1) * words):
            w.alive[y] = w.useful[y]
        waves, value, far = 0, np.int64(0), U0
        if bound > 0:
            waves, value = 1, _first_wave(w, n, words, height, sink)
        while value < bound:
            waves += 1
            far = _distances(w, n, words, height, sink, far, False)
            if far == 0:
                break
            value += _push_wave(w, n, words, height, sink, far, False)
        out[source] = waves


def waves(caps: Capacities, ordered: bool) -> float:
    """Mean number of waves of all pairs of the top layer, solved alone and without theorem or hub.

    The last search of a pair, which finds that nothing more can reach the sink, counts as a wave.
    """
    n, steps = caps.n, caps.steps
    wanted = np.full(steps + 1, -1, np.int64)
    wanted[steps] = 0
    order = orders(caps, np.arange(n, dtype=np.uint64))
    if not ordered:
        order[:] = np.arange(n)
    space, total = workspace(n, steps), 0
    none, sets, made = np.zeros((0, n), np.int64), np.zeros((0, 0, 0, 0), np.uint64), np.zeros(n, np.int64)
    for sink in range(n):
        # From source n on: nothing is solved, and the workspace holds the capacities and limits of this sink.
        columns(
            caps.cap, caps.rowsum, np.array([sink], np.uint64), order[sink : sink + 1], wanted, none,
            np.zeros((1, 1, n), np.int64), np.zeros((1, 1, n), np.int8), sets, space, begin=n,
        )  # fmt: skip
        count(space, tuple(np.uint64(x) for x in (n, words_of(n), steps, sink)), caps.rowsum[-1], made)
        total += int(made.sum())
    return total / n**2


def share(x: float) -> str:
    return "0" if x == 0 else "1" if x == 1 else f"{x:.3f}"


def main() -> None:
    chosen = ["minilm"] if quick() else [*available()]
    found = {k: integers(real(k, 16 if quick() else N)) for k in chosen if available()[k]}
    rows, counts = [], []
    for key, caps in found.items():
        shares = saturation(caps)
        rows.append([NAMES[key], len(shares), *map(share, shares[:12]), *[""] * (12 - len(shares)), share(shares[-1])])
        settled = share(settled_by_hub(caps)) if caps.steps >= 8 else ""
        counts.append([NAMES[key], caps.steps, settled, f"{waves(caps, False):.2f}", f"{waves(caps, True):.2f}"])
    text = (
        "Share of pairs whose flow equals min(row sum, column sum of the first layer), by layer; "
        f"{N} tokens of English.\n\n"
        "Top layer: share of the pairs that one hub settles (networks of eight and more steps), and the mean number of "
        "waves a pair where no bound is used, with the nodes in the order of their positions and in the engine's "
        "order:\n\n" + markdown(["model", "layers", "one hub", "waves, by position", "waves"], counts)
    )
    head = ["model", "layers", *map(str, range(12)), "last"]
    write("flow_bounds", "Attention flow: saturation and waves", head, rows, text, "python benchmarks/flow_bounds.py")


if __name__ == "__main__":
    main()
