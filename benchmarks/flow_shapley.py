"""How far flows are from Shapley values of the flow game: Σ F_j / v(all) by depth, and the two rankings compared.

python benchmarks/flow_shapley.py [--quick]

Counts, not times. The text is that of flow_networks.py, 10 tokens of it; all 2¹⁰ sets of inputs are enumerated.
"""

from __future__ import annotations

import numpy as np
from flow_bounds import NAMES
from flow_networks import available, real
from report import quick, write
from scipy.stats import spearmanr

from attnflow.scoring.flow.shapley import shapley

N = 10
OUTPUTS = {"minilm": ("[CLS]", 0), "mpnet": ("first token", 0), "smollm2": ("last token", -1)}


def ratio(stack: np.ndarray, height: int, row: int) -> tuple[float, float]:
    """(Σ F_j / v(all), Spearman correlation of F and φ) of one output."""
    game = shapley(stack, height, row)
    return float(game.flows.sum() / game.total), float(spearmanr(game.flows, game.shapley).statistic)


def main() -> None:
    """Measure, print, write."""
    n, rows = 5 if quick() else N, []
    for key in ["minilm"] if quick() else [*OUTPUTS]:
        if not available()[key]:
            continue
        name, row = OUTPUTS[key]
        stack = real(key, n)
        found = [ratio(stack, height, row % n) for height in (1, 2, 3, len(stack))]
        rows.append([f"{NAMES[key]}, {name}", *(f"{sums:.2f} ({rank:.2f})" for sums, rank in found)])
        print(*rows[-1], flush=True)
    text = (
        f"Σ F_j / v(all) of one output over {n} tokens, where the layers below it are the first 1, 2, 3 or all; in "
        "brackets, the Spearman correlation of the flows with the Shapley values. At 1 flows are these values."
    )
    head = ["model, output", "1 layer", "2", "3", "all"]
    write("flow_shapley", "Attention flow: Shapley values", head, rows, text, "python benchmarks/flow_shapley.py")


if __name__ == "__main__":
    main()
