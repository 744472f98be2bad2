"""What a reader must know before believing a graph of attention flow.

A flow cannot exceed what leaves the output (its row sum, one) nor what enters the input (the column sum of the first
layer). On deep encoders with ½I residuals most flows equal the smaller of the two: then the ranking of the inputs is
that of the first layer's column sums, whatever the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.scoring.flow.integers import Ints
from attnflow.scoring.flow.solver import Solution, solve

Mask = npt.NDArray[np.bool_]


_FEW = 400_000  # steps × tokens² up to which one output's cuts are looked for, at a few milliseconds


def describe(
    solution: Solution, tokens: Sequence[str], layers: Sequence[int | str], steps: Sequence[str] = ()
) -> dict[str, Any]:
    """Figures for each layer, as plain numbers, and in words for the last one.

    - ``saturation``: share of pairs whose flow equals min(row sum, column sum of the first layer);
    - ``ties``: share of pairs of inputs, among those reached, that have the same flow from one output;
    - ``cut``: where a bottleneck is: shares "output" (the row), "input" (the column), "between";
    - ``cut_layers``: for the highest outputs, which share of the minimum cuts each of ``steps`` holds; there with
      certificates, and for one output where that takes milliseconds;
    - ``same_ranking``: share of outputs that have the most common ranking of the inputs;
    - ``sink``: the input with most flow, and its share of all;
    - ``proofs``: how the flows were proven; ``words``: what follows from all this.

    >>> from attnflow.scoring.flow.solver import solve
    >>> r = describe(solve([[[0.5, 0.5], [0.5, 0.5]]] * 3), ["a", "b"], (0, 1, 2))
    >>> r["saturation"], r["same_ranking"]
    ([0.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    >>> r["words"][0]
    'at layer 2 all flows equal min(row sum, column sum of the first layer): they do not depend on the output'
    """
    caps = solution.capacities
    column = caps.column_sums()
    out: dict[str, Any] = {"saturation": [], "ties": [], "cut": [], "same_ranking": [], "sink": []}
    for top, units in zip(solution.tops, solution.units, strict=True):
        row = caps.row_sums(top - 1, solution.rows)[:, None]
        at_row, at_column = units == row, units == column
        out["saturation"].append(float((at_row | at_column).mean()))
        out["ties"].append(_ties(units))
        out["cut"].append(_places(at_row, at_column))
        out["same_ranking"].append(_same_ranking(units))
        out["sink"].append(_sink(solution.capacities.floats(units), tokens))
    out["cut_layers"] = _cut_layers(solution, steps)
    return out | {"proofs": solution.proof_counts(), "words": _words(out, layers[-1], solution)}


def _cut_layers(solution: Solution, steps: Sequence[str]) -> dict[str, float]:
    from attnflow.scoring.flow.certificate import cut_shares

    top = max(solution.tops)
    if solution.cuts is None:
        if not steps or len(solution.rows) > 1 or top * solution.capacities.n**2 > _FEW:
            return {}
        solution = solve(solution.capacities, [top], solution.rows, explicit=True)
    return dict(zip(steps, cut_shares(solution).tolist(), strict=False))


def _ties(units: Ints) -> float:
    equal = pairs = 0.0
    for row in units:
        counts = np.unique(row[row > 0], return_counts=True)[1]
        reached = float(counts.sum())
        equal += float((counts * (counts - 1)).sum())
        pairs += reached * (reached - 1)
    return equal / pairs if pairs else 0.0


def _places(at_row: Mask, at_column: Mask) -> dict[str, float]:
    inside = ~(at_row | at_column)
    return {
        "output": float((at_row & ~at_column).mean()),
        "input": float(at_column.mean()),
        "between": float(inside.mean()),
    }


def _same_ranking(units: Ints) -> float:
    ranks = np.stack([np.unique(row, return_inverse=True)[1] for row in units])
    return float(np.unique(ranks, axis=0, return_counts=True)[1].max()) / len(ranks)


def _sink(flows: npt.NDArray[np.float64], tokens: Sequence[str]) -> dict[str, Any]:
    mass = flows.sum(0)
    j = int(mass.argmax())
    total = float(mass.sum())
    return {"index": j, "token": str(tokens[j]), "share": float(mass[j]) / total if total else 0.0}


def _words(figures: dict[str, Any], layer: int | str, solution: Solution) -> list[str]:
    saturation, ties = figures["saturation"][-1], figures["ties"][-1]
    same, sink, outputs = figures["same_ranking"][-1], figures["sink"][-1], len(solution.rows)
    limit = "min(row sum, column sum of the first layer)"
    lines = []
    if saturation == 1:
        lines.append(f"at layer {layer} all flows equal {limit}: they do not depend on the output")
    elif saturation >= 0.005:
        lines.append(f"at layer {layer} {saturation:.0%} of flows equal {limit}, which does not depend on the output")
    widest = max(figures["cut_layers"].items(), key=lambda item: item[1], default=None)
    if widest is not None and widest[1] > 0:
        lines.append(f"{widest[1]:.0%} of the minimum cuts lie in {widest[0]} (of equally narrow ones, one counts)")
    if outputs > 1 and same == 1:
        lines.append(f"all {outputs} outputs rank the inputs in the same order: flow does not tell the outputs apart")
    elif outputs > 1 and same >= 0.25:
        lines.append(f"{same:.0%} of the outputs rank the inputs in the same order")
    if ties >= 0.005:
        lines.append(f"{ties:.0%} of all pairs of inputs are tied")
    if sink["share"] > 2 / len(solution.units[-1, 0]):
        lines.append(f"{sink['share']:.0%} of the flow goes to {sink['token']!r} (input {sink['index']})")
    return lines
