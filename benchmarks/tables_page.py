"""What docs/reproduction.md shows of the paper's tables: the numbers as CSV files, one figure and one short table.

The figure and the table are drawn from the CSV files alone, so that they can be drawn again without a computation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from report import insert, markdown, save, stays

METHODS = ("raw", "rollout", "flow")
PAPER, SEEDS = "paper", "seeds"
# Table 1 is the one that the figure and the short table show.
TABLE, REFERENCE = "Table 1", "blank-out"
SETS = {"test": "test sentences (hard)", "valid": "natural sentences", "grammar": "the package's own grammar"}
SHADES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
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


def write_saturation(docs: Path, found: pd.DataFrame) -> None:
    """Write the CSV file of saturation by depth, and draw its figure."""
    path = docs / "data" / "reproduction-saturation.csv"
    if not stays(path):
        found.to_csv(path, index=False, float_format="%.4f")
        draw(docs)


def draw(docs: Path) -> None:
    """Draw the figures from the CSV files and put the first on the page, with the short table below it."""
    correlations, accuracy = read(docs)
    save(layer_curves(correlations), docs / "images" / "reproduction.svg")
    save(by_attractors(accuracy), docs / "images" / "reproduction-accuracy.svg")
    depth = docs / "data" / "reproduction-saturation.csv"
    if depth.is_file():
        save(by_depth(pd.read_csv(depth)), docs / "images" / "reproduction-saturation.svg")
    picture = f"![Correlation with {REFERENCE} by layer, for raw attention, rollout and flow](images/reproduction.svg)"
    insert(docs / "reproduction.md", "figure", picture)
    insert(docs / "reproduction.md", "tables", short_table(correlations))


def by_attractors(accuracy: pd.DataFrame) -> Any:
    """One panel for each set of sentences: every seed with its 95 % intervals, and the more frequent number dashed."""
    from matplotlib.figure import Figure

    rows = accuracy[accuracy["set"].isin(SETS) & (accuracy["attractors"] != "all")]
    sets = [name for name in SETS if name in set(rows["set"])]
    figure = Figure(figsize=(4.5 * len(sets), 3.2), layout="constrained")
    panels = figure.subplots(1, len(sets), sharey=True, squeeze=False)[0]
    for panel, name in zip(panels, sets, strict=True):
        of_set = rows[rows["set"] == name]
        for shade, (model, part) in enumerate(of_set.groupby("model")):
            at = part["attractors"].astype(int) + 0.06 * (shade - 1)
            spread = [part["accuracy"] - part["low"], part["high"] - part["accuracy"]]
            colour = SHADES[shade % len(SHADES)]
            panel.errorbar(at, part["accuracy"], yerr=spread, color=colour, marker="o", markersize=4, label=model)
        base = of_set[of_set["model"] == of_set["model"].iloc[0]]
        frequent = "always the more frequent number"
        panel.plot(base["attractors"].astype(int), base["majority"], "k--", linewidth=1, label=frequent)
        panel.set(title=SETS[name], xlabel="attractors", xticks=sorted(set(of_set["attractors"].astype(int))))
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("accuracy")
    panels[0].legend(frameon=False, fontsize="small")
    return figure


def by_depth(saturation: pd.DataFrame) -> Any:
    """The share of saturated flows by the number of layers below, one curve per model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.2), layout="constrained")
    panel = figure.subplots()
    for shade, (model, part) in enumerate(saturation.groupby("model", sort=False)):
        label = f"{model}, {int(part['layers'].iloc[0])} layers"
        deep = part[part["layer"] >= 1]
        panel.plot(deep["layer"] + 1, deep["share"], color=SHADES[shade % len(SHADES)], marker="o", ms=3, label=label)
    panel.set(xlabel="layers that the flow goes through", ylabel="share of saturated flows", ylim=(-0.03, 1.03))
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, fontsize="small")
    return figure


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
        for layer in sorted({0, last} | ({last // 2 + 1} if method == "flow" else set())):
            found = rows[(rows["method"] == method) & (rows["layer"] == layer)]
            paper = found[found["model"] == PAPER]["mean"]
            ours = (_of_seeds(found[found["set"] == name], *paper) for name in sets)
            lines.append([method, layer, *(f"{mean:.2f}" for mean in paper), *ours])
    return markdown(["method", "layer", "paper", *(SETS[name] for name in sets)], lines)


def _of_seeds(rows: pd.DataFrame, paper: float = float("nan")) -> str:
    """The mean of the seeds, their standard deviation, and the distance to the paper in it; of one seed its mean."""
    seeds = rows[rows["model"] == SEEDS]
    if not len(seeds):
        return f"{rows['mean'].iloc[0]:.2f}"
    mean, spread = float(seeds["mean"].iloc[0]), float(seeds["std"].iloc[0])
    apart = f" ({(mean - paper) / spread:+.1f})".replace("-", "−") if spread > 0 and paper == paper else ""
    return f"{mean:.2f} ± {spread:.2f}{apart}"
