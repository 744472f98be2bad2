"""What docs/reproduction.md shows of the paper's tables: the numbers as CSV files, one figure and one short table.

The figure and the table are drawn from the CSV files alone, so that they can be drawn again without a computation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from report import insert, markdown, save

METHODS = ("raw", "rollout", "flow")
PAPER, SEEDS = "paper", "seeds"
# Table 1 is the one that the figure and the short table show.
TABLE, REFERENCE = "Table 1", "blank-out"
SETS = {"test": "test sentences (hard)", "valid": "natural sentences", "grammar": "the package's own grammar"}
COLOURS = {"test": "#0072b2", "valid": "#d55e00", "grammar": "#009e73"}


def read(docs: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The recorded correlations and accuracies."""
    correlations, accuracy = (
        pd.read_csv(docs / "data" / f"reproduction-{name}.csv") for name in ("correlations", "accuracy")
    )
    return correlations, accuracy


def write(docs: Path, correlations: pd.DataFrame, accuracy: pd.DataFrame) -> None:
    """Write both CSV files, with four digits."""
    (docs / "data").mkdir(parents=True, exist_ok=True)
    for name, frame in (("correlations", correlations), ("accuracy", accuracy)):
        frame.to_csv(docs / "data" / f"reproduction-{name}.csv", index=False, float_format="%.4f")


def draw(docs: Path) -> None:
    """Draw the figure from the CSV file and put it on the page, with the short table below it."""
    correlations, _ = read(docs)
    save(layer_curves(correlations), docs / "images" / "reproduction.svg")
    picture = f"![Correlation with {REFERENCE} by layer, for raw attention, rollout and flow](images/reproduction.svg)"
    insert(docs / "reproduction.md", "tables", f"{picture}\n\n{short_table(correlations)}")


def _as_published(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The rows of Table 1 that were computed as the paper did, and the sets of sentences among them."""
    rows = frame[frame["table"] == TABLE]
    rows = rows[(rows["model"] == PAPER) | (rows["variant"] == rows["variant"].dropna().iloc[0])]
    return rows, [name for name in SETS if name in set(rows["set"])]


def layer_curves(correlations: pd.DataFrame) -> Any:
    """One panel for each method: the paper's curve dashed, ours as the mean of the seeds in their range."""
    from matplotlib.figure import Figure

    rows, sets = _as_published(correlations)
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    panels = figure.subplots(1, len(METHODS), sharey=True)
    for panel, method in zip(panels, METHODS, strict=True):
        of_method = rows[rows["method"] == method]
        paper = of_method[of_method["model"] == PAPER]
        panel.plot(paper["layer"], paper["mean"], "k--", label="paper")
        for name in sets:
            ours = of_method[(of_method["set"] == name) & (of_method["model"] != SEEDS)].groupby("layer")["mean"]
            colour = COLOURS[name]
            panel.plot(ours.mean(), color=colour, marker="o", markersize=3, label=SETS[name])
            panel.fill_between(ours.mean().index, ours.min(), ours.max(), color=colour, alpha=0.2, linewidth=0)
        panel.axhline(0, color="0.8", linewidth=0.8, zorder=0)
        panel.set(title=method, xlabel="layer", xticks=sorted(set(of_method["layer"])))
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(f"Spearman correlation\nwith {REFERENCE}")
    panels[0].legend(frameon=False, fontsize="small")
    return figure


def short_table(correlations: pd.DataFrame) -> str:
    """The first and the last layer of every method, and the middle one of flow: the paper's figure and ours."""
    rows, sets = _as_published(correlations)
    last = int(rows.loc[rows["model"] != PAPER, "layer"].max())
    lines = []
    for method in METHODS:
        for layer in sorted({1, last} | ({last // 2 + 1} if method == "flow" else set())):
            found = rows[(rows["method"] == method) & (rows["layer"] == layer)]
            paper = found[found["model"] == PAPER]["mean"]
            ours = (_of_seeds(found[found["set"] == name]) for name in sets)
            lines.append([method, layer, *(f"{mean:.2f}" for mean in paper), *ours])
    return markdown(["method", "layer", "paper", *(SETS[name] for name in sets)], lines)


def _of_seeds(rows: pd.DataFrame) -> str:
    """The mean of the seeds and their standard deviation; of one seed its mean alone."""
    seeds = rows[rows["model"] == SEEDS]
    if len(seeds):
        return f"{seeds['mean'].iloc[0]:.2f} ± {seeds['std'].iloc[0]:.2f}"
    return f"{rows['mean'].iloc[0]:.2f}"
