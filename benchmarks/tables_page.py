"""What docs/reproduction.md shows of the paper's tables: the numbers as CSV files, one figure and one short table.

The figure and the table are drawn from the CSV files alone, so that they can be drawn again without a computation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from report import insert, markdown, save, stays

METHODS = ("raw", "rollout", "flow")
PAPER, SEEDS, AUTHORS = "paper", "seeds", "authors' recipe"
RUNS = "reproduction-runs.csv"
# The tables that the figure and the short table show, with what attention is compared with.
TABLES = {"Table 1": "blank-out", "Table 2": "Σ abs(gradient)"}
# Classifiers of Table 3 by the name of their folder.
SENTIMENT = {"minilm-sst2": "MiniLM", "distilbert-sst2": "DistilBERT"}
NUMBERS = ("correlations", "accuracy", "noise")
Frames = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]
SETS = {"test": "test sentences (hard)", "valid": "natural sentences", "grammar": "the package's own grammar"}
SHADES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
COLOURS = {"test": "#0072b2", "valid": "#d55e00", "grammar": "#009e73"}


def read(docs: Path) -> Frames:
    """The recorded correlations, accuracies and ratios of |Σg| to Σ|g|."""
    correlations, accuracy, noise = (pd.read_csv(docs / "data" / f"reproduction-{name}.csv") for name in NUMBERS)
    return correlations, accuracy, noise


def write(docs: Path, frames: Frames) -> None:
    """Write the CSV files with four digits; the ratios, which are far below 1, with two that count."""
    (docs / "data").mkdir(parents=True, exist_ok=True)
    for name, frame in zip(NUMBERS, frames, strict=True):
        digits = "%.1e" if name == "noise" else "%.4f"
        frame.to_csv(docs / "data" / f"reproduction-{name}.csv", index=False, float_format=digits)


def added(old: pd.DataFrame, new: pd.DataFrame, *by: str) -> pd.DataFrame:
    """The recorded rows and the new ones, which take the place of those that are alike in the columns ``by``.

    What the first of the columns names stays in the recorded order, so that a table that is made again looks alike.

    >>> old = pd.DataFrame({"model": ["a", "b"], "mean": [1, 2]})
    >>> added(old, pd.DataFrame({"model": ["c", "a"], "mean": [3, 4]}), "model").to_numpy().tolist()
    [['a', 4], ['b', 2], ['c', 3]]
    """
    place = {name: i for i, name in enumerate(dict.fromkeys([*old[by[0]], *new[by[0]]]))}
    replaced = old.set_index([*by]).index.isin(new.set_index([*by]).index)
    rows = pd.concat([old[~replaced], new])
    ranks = [rows[by[0]].map(place), *(rows[name] for name in by[1:])]
    return rows.iloc[np.lexsort(ranks[::-1])].reset_index(drop=True)


def with_recorded(docs: Path, frames: Frames) -> Frames:
    """The recorded rows of models that were not computed, with those that were; the latter alone where none are."""
    if not (docs / "data" / f"reproduction-{NUMBERS[0]}.csv").is_file():
        return frames
    one, two, three = (added(old, new, "model") for old, new in zip(read(docs), frames, strict=True))
    return one, two, three


def write_saturation(docs: Path, found: pd.DataFrame) -> None:
    """Write the CSV file of saturation by depth, and draw its figure; the rows of models that are not there stay."""
    path = docs / "data" / "reproduction-saturation.csv"
    if stays(path):
        return
    old = pd.read_csv(path) if path.is_file() else found
    for name in dict.fromkeys(old.loc[~old["model"].isin(found["model"]), "model"]):
        print(f"{name} is not installed: its recorded rows stay.")
    added(old, found, "model").to_csv(path, index=False, float_format="%.4f")
    draw(docs)


def draw(docs: Path) -> None:
    """Draw the figures from the CSV files and put the first on the page, with the short table below it."""
    correlations, accuracy, _ = read(docs)
    save(layer_curves(correlations), docs / "images" / "reproduction.svg")
    save(by_attractors(accuracy), docs / "images" / "reproduction-accuracy.svg")
    depth = docs / "data" / "reproduction-saturation.csv"
    if depth.is_file():
        save(by_depth(pd.read_csv(depth)), docs / "images" / "reproduction-saturation.svg")
    against = " and ".join(TABLES.values())
    picture = f"![Correlation with {against} by layer, for raw attention, rollout and flow](images/reproduction.svg)"
    insert(docs / "reproduction.md", "figure", picture)
    insert(docs / "reproduction.md", "tables", short_table(correlations))
    if "sst2" in set(correlations["set"]):
        save(sentiment_curves(correlations), docs / "images" / "reproduction-sentiment.svg")
        insert(docs / "reproduction.md", "sentiment", sentiment_table(correlations))


def of_seeds(models: Iterable[str]) -> list[bool]:
    """Which of the models are seeds of our own training, whose mean and spread are shown.

    >>> of_seeds(["seed 0", "seeds", "paper", "authors' recipe"])
    [True, False, False, False]
    """
    return [re.fullmatch(r"seed \d+", str(model)) is not None for model in models]


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


def _leading(frame: pd.DataFrame, table: str) -> tuple[pd.DataFrame, list[str]]:
    """The rows of a table's leading variant and of the paper, and the sets of sentences among them."""
    rows = frame[frame["table"] == table]
    rows = rows[(rows["model"] == PAPER) | (rows["variant"] == rows["variant"].dropna().iloc[0])]
    return rows, [name for name in SETS if name in set(rows["set"])]


def _shown(frame: pd.DataFrame) -> list[str]:
    """The tables of which something was computed."""
    return [t for t in TABLES if (frame["table"].eq(t) & frame["model"].ne(PAPER)).any()]


def layer_curves(correlations: pd.DataFrame) -> Any:
    """A row of panels for each table, one for each method: the paper dashed, ours as the mean of the seeds in their
    range."""
    from matplotlib.figure import Figure

    tables = _shown(correlations)
    figure = Figure(figsize=(9, 2.1 * len(tables)), layout="constrained")
    grid = figure.subplots(len(tables), len(METHODS), sharex=True, sharey=True, squeeze=False)
    for table, panels in zip(tables, grid, strict=True):
        for panel, method in zip(panels, METHODS, strict=True):
            _curves(panel, correlations, table, method)
        panels[0].set_ylabel(f"Spearman correlation\nwith {TABLES[table]}")
    for panel, method in zip(grid[0], METHODS, strict=True):
        panel.set_title(method)
    for panel in grid[-1]:
        panel.set_xlabel("layer")
    grid[0][0].legend(frameon=False, fontsize="small")
    return figure


def _curves(panel: Any, correlations: pd.DataFrame, table: str, method: str) -> None:
    rows, sets = _leading(correlations, table)
    of_method = rows[rows["method"] == method]
    paper = of_method[of_method["model"] == PAPER]
    panel.plot(paper["layer"], paper["mean"], "k--", label="paper")
    for name in sets:
        own = of_method[of_method["set"] == name]
        ours = own[of_seeds(own["model"])].groupby("layer")["mean"]
        colour = COLOURS[name]
        panel.plot(ours.mean(), color=colour, marker="o", markersize=3, label=SETS[name])
        panel.fill_between(ours.mean().index, ours.min(), ours.max(), color=colour, alpha=0.2, linewidth=0)
    theirs = of_method[(of_method["model"] == AUTHORS) & (of_method["set"] == "valid")]
    if len(theirs):
        label = f"natural sentences, {AUTHORS}"
        panel.plot(theirs["layer"], theirs["mean"], color=SHADES[2], marker="s", markersize=3, label=label)
    panel.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    panel.set_xticks(sorted(set(of_method["layer"])))
    panel.spines[["top", "right"]].set_visible(False)


def _sentiment(correlations: pd.DataFrame, ending: str = "Σ abs(gradient)") -> dict[str, pd.DataFrame]:
    """The rows of Table 3 by title: the paper's, and those of every classifier in the variant of the CLS row."""
    rows = correlations[correlations["table"] == "Table 3"]
    own = rows[rows["variant"] == f"CLS row, {ending}"]
    parts = {SENTIMENT.get(str(name), str(name)): part for name, part in own.groupby("model", sort=False)}
    return {PAPER: rows[rows["model"] == PAPER]} | parts


def sentiment_curves(correlations: pd.DataFrame) -> Any:
    """A panel for each method: the paper's four layers dashed, and a line for each classifier."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.9), layout="constrained")
    panels = figure.subplots(1, len(METHODS), sharey=True)
    for panel, method in zip(panels, METHODS, strict=True):
        for shade, (title, rows) in zip(("k", *SHADES), _sentiment(correlations).items(), strict=False):
            own = rows[rows["method"] == method]
            panel.plot(
                own["layer"], own["mean"], "--" if title == PAPER else "-", color=shade, marker="o", ms=3, label=title
            )
        panel.axhline(0, color="0.8", linewidth=0.8, zorder=0)
        panel.set(title=method, xlabel="layer")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("Spearman correlation\nwith Σ abs(gradient)")
    panels[0].legend(frameon=False, fontsize="small")
    return figure


def sentiment_table(correlations: pd.DataFrame) -> str:
    """For every method the first and the last layer of the paper and of each classifier, and without CLS and SEP."""
    columns: dict[str, list[str]] = {}
    for title, rows in _sentiment(correlations).items():
        for layer in (0, int(rows["layer"].max())):
            columns[f"{title}, layer {layer}"] = _by_method(rows, layer)
    for title, rows in _sentiment(correlations, "Σ abs(gradient), CLS and SEP left out").items():
        if title != PAPER:
            layer = int(rows["layer"].max())
            columns[f"{title}, layer {layer}, CLS and SEP left out"] = _by_method(rows, layer)
    return markdown(["method", *columns], [[m, *(c[i] for c in columns.values())] for i, m in enumerate(METHODS)])


def _by_method(rows: pd.DataFrame, layer: int) -> list[str]:
    found = rows[rows["layer"] == layer].set_index("method")["mean"]
    return [f"{found[method]:.2f}".replace("-", "−") for method in METHODS]


def short_table(correlations: pd.DataFrame) -> str:
    """The first and the last layer of every method: the paper's figure and ours. At the first, flow is rollout."""
    lines: list[list[object]] = []
    sets: list[str] = []
    by_authors = AUTHORS in set(correlations["model"])
    for table in _shown(correlations):
        rows, sets = _leading(correlations, table)
        last = int(rows.loc[rows["model"] != PAPER, "layer"].max())
        for method in METHODS:
            for layer in (last,) if method == "flow" else (0, last):
                found = rows[(rows["method"] == method) & (rows["layer"] == layer)]
                paper = found[found["model"] == PAPER]["mean"]
                ours = (_of_seeds(found[found["set"] == name], *paper) for name in sets)
                theirs = found[found["model"] == AUTHORS].set_index("set")["mean"]
                cells = [*(f"{mean:.2f}" for mean in paper), *ours]
                cells += [f"{theirs[name]:.2f}" if name in theirs else "–" for name in sets if by_authors]
                lines.append([TABLES[table], method, layer, *(cell.replace("-", "−") for cell in cells)])
    more = [f"{SETS[name].removesuffix(' (hard)')}, {AUTHORS}" for name in sets if by_authors]
    return markdown(["compared with", "method", "layer", "paper", *(SETS[name] for name in sets), *more], lines)


def _of_seeds(rows: pd.DataFrame, paper: float = float("nan")) -> str:
    """The mean of the seeds, their standard deviation, and the distance to the paper in it.

    Two seeds have no spread to measure by, so both are given; of one seed its mean.
    """
    means = sorted(rows[of_seeds(rows["model"])]["mean"])
    if len(means) < 3:
        return " and ".join(f"{mean:.2f}" for mean in means)
    mean, spread = (float(rows[rows["model"] == SEEDS][name].iloc[0]) for name in ("mean", "std"))
    apart = f" ({(mean - paper) / spread:+.1f})".replace("-", "−") if spread > 0 and paper == paper else ""
    return f"{mean:.2f} ± {spread:.2f}{apart}"
