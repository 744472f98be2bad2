"""Does attention agree better with blank-out and gradients the longer a model is trained?

    python benchmarks/training_curve.py --data FOLDER --run FOLDER [--run FOLDER …] [--count 500]
    python benchmarks/training_curve.py --redraw

Each --run is a folder of benchmarks/train_verb_number.py --keep-every N, with the models step-000N inside it. For every
one of them the correlations of Tables 1 and 2 of Abnar & Zuidema (2020) at every layer are computed on ``--count``
natural sentences of valid.tsv.gz, with the accuracy on these, and how far the attention of CLS is from giving every
token the same weight. ``--step N`` takes only the models after so many steps, and may be repeated. The numbers go to
docs/data/reproduction-training.csv, the figures to docs/images/reproduction-training.svg and -layers.svg. What was
computed is kept in --work, so a run that was stopped goes on. The recorded numbers of runs that are not named stay, and
with ``--step`` those of a run's other models; ``--fresh`` starts over. ``--quick`` trains a tiny model on the package's
own grammar for some steps, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tables
import tables_page
import tables_rows
from report import FOLDER, fewer, insert, record_run, save, stays

from attnflow import capture, raw
from attnflow.probes import verb_number
from attnflow.probes.rates import Mean

# The leading variant of each table: what the page calls blank-out and the size of the gradient.
LEADING = tuple(next(v for v in tables.VARIANTS if v.table == table) for table in tables_page.TABLES)
NAME = "reproduction-training"
COUNT = 500
COLOURS = {"raw": "#0072b2", "rollout": "#d55e00", "flow": "#009e73"}
STYLES = ("-", "--", ":", "-.")
AUTHORS = "authors"
UNEVEN = "distance from equal weights"


def checkpoints(run: Path, steps: list[int] | None = None) -> list[tuple[int, Path]]:
    """(sentences seen, folder) of every model that was kept, in order; or of those after the given steps."""
    facts = run / "training.json"
    batch = json.loads(facts.read_text())["batch"] if facts.is_file() else 1
    found = sorted((int(path.name.removeprefix("step-")), path) for path in run.glob("step-*"))
    if not found:
        raise SystemExit(f"{run} holds no step-* folders: train with  --keep-every 500  to have some.")
    return [(step * batch, path) for step, path in found if steps is None or step in steps]


def records(
    run: Path, source: Path | None, count: int, work: Path | None, steps: list[int] | None = None
) -> Iterator[dict[str, Any]]:
    """One record for every model that was kept, reference, method and layer."""
    examples = tables.sentences(source, "valid", count)
    for seen, folder in checkpoints(run, steps):
        model, tokenizer = verb_number.load(folder)
        right = verb_number.accuracy(verb_number.choose(model, tokenizer, examples, batch_size=128))[0]
        texts = [(e.prefix, int(model.config.label2id[e.label])) for e in examples]
        same = {"run": run.name, "sentences": seen, "accuracy": right.share}
        values = tables.kept(work, folder, texts, (model, tokenizer), LEADING)
        for variant in LEADING:
            for method in tables.METHODS:
                yield from by_layer(same | {"table": variant.table, "method": method}, values[variant, method])
        yield from by_layer(same | {"table": UNEVEN, "method": "raw"}, uneven(model, tokenizer, texts))


def by_layer(same: dict[str, Any], found: np.ndarray) -> Iterator[dict[str, Any]]:
    """One record for every layer of ``[sentences, layers]``."""
    for layer, column in enumerate(found.T):
        mean = Mean.of(column)
        yield same | {"layer": layer, "mean": mean.mean, "half_width": mean.half_width, "n": mean.count}


def uneven(model: Any, tokenizer: Any, texts: list[tuple[str, int]]) -> np.ndarray:
    """``[sentences, layers]``: half of Σ|weight − 1/n| in the row of CLS, 0 where all tokens have the same weight."""
    rows = [raw(capture(model, tokenizer, text), position="cls").scores for text, _ in texts]
    return np.stack([np.abs(row - 1 / row.shape[-1]).sum(-1) / 2 for row in rows])


def curves(frame: pd.DataFrame) -> Any:
    """A panel for each table: the correlation at the last layer by sentences seen, the paper's values as thin lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    panels = figure.subplots(1, len(tables_page.TABLES), sharey=True)
    paper = {(r["table"], r["method"], r["layer"]): r["mean"] for r in tables.published()}
    for panel, (table, against) in zip(panels, tables_page.TABLES.items(), strict=True):
        rows = frame[(frame["table"] == table) & (frame["layer"] == frame["layer"].max())]
        for style, (run, of_run) in zip(STYLES, rows.groupby("run", sort=False), strict=False):
            for method, part in of_run.groupby("method", sort=False):
                x, colour = part["sentences"] / 1e6, COLOURS[str(method)]
                label = f"{method}, {tables_rows.RUN_NAMES.get(str(run), run)}"
                panel.plot(x, part["mean"], style, color=colour, marker="o", markersize=3, label=label)
                low, high = part["mean"] - part["half_width"], part["mean"] + part["half_width"]
                panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        for method, colour in COLOURS.items():
            if (mean := paper.get((table, method, rows["layer"].max()))) is not None:
                panel.axhline(mean, color=colour, linewidth=0.6, linestyle=":")
        panel.set(title=against, xlabel="million training sentences seen")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("Spearman correlation,\nlast layer")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize="small")
    return figure


def layer_curves(frame: pd.DataFrame, run: str) -> Any:
    """A row of panels for each table, one for each method: the models of a run, later ones darker, and the paper."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    own = frame[frame["run"] == run]
    seen = sorted(own["sentences"].unique())[1:]  # the first has learnt nothing
    shades = colormaps["viridis_r"](np.linspace(0.15, 1, len(seen)))
    figure = Figure(figsize=(9, 5.8), layout="constrained")
    grid = figure.subplots(len(tables_page.TABLES), len(tables.METHODS), sharex=True, sharey=True)
    paper = pd.DataFrame(tables.published())
    for (table, against), panels in zip(tables_page.TABLES.items(), grid, strict=True):
        for panel, method in zip(panels, tables.METHODS, strict=True):
            for shade, at in zip(shades, seen, strict=True):
                rows = own[(own["table"] == table) & (own["method"] == method) & (own["sentences"] == at)]
                panel.plot(
                    rows["layer"], rows["mean"], color=shade, marker="o", markersize=3, label=f"{at:,} sentences"
                )
            theirs = paper[(paper["table"] == table) & (paper["method"] == method)]
            panel.plot(theirs["layer"], theirs["mean"], "k--", label="paper")
            panel.axhline(0, color="0.8", linewidth=0.8, zorder=0)
            panel.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel(f"Spearman correlation\nwith {against}")
    for panel, method in zip(grid[0], tables.METHODS, strict=True):
        panel.set_title(method)
    for panel in grid[-1]:
        panel.set_xlabel("layer")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize="small")
    return figure


def draw(docs: Path) -> None:
    """The figures and the table, from the CSV file."""
    frame = pd.read_csv(docs / "data" / f"{NAME}.csv")
    save(curves(frame), docs / "images" / f"{NAME}.svg")
    if AUTHORS in set(frame["run"]):
        save(layer_curves(frame, AUTHORS), docs / "images" / f"{NAME}-layers.svg")
    if (docs / "reproduction.md").is_file():
        insert(docs / "reproduction.md", "training", tables_rows.training_table(frame))


def made_up() -> Path:
    """A tiny model after some steps of training."""
    import train_verb_number

    out = Path(tempfile.mkdtemp()) / "run"
    train_verb_number.main(["--quick", "--out", str(out), "--keep-every", "16", "--threads", "1"])
    return out


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--run", type=Path, action="append", help="folder with step-* folders; once for each training")
    parse.add_argument("--step", type=int, action="append", help="only the models after so many steps; may be repeated")
    parse.add_argument("--data", type=Path, help="folder with valid.tsv.gz")
    parse.add_argument("--count", type=int, default=COUNT, help="sentences; with fewer the docs stay")
    parse.add_argument("--work", type=Path, default=Path("build/tables"), help="where finished parts are kept")
    parse.add_argument("--docs", type=Path, default=FOLDER.parent, help="where the numbers and the figure are written")
    parse.add_argument("--fresh", action="store_true", help="start over: drop recorded numbers of runs not named")
    # What every run does now; recorded commands have it, and they can still be run.
    parse.add_argument("--add", action="store_true", help=argparse.SUPPRESS)
    parse.add_argument("--redraw", action="store_true", help="draw from the recorded CSV file, without computing")
    parse.add_argument("--quick", action="store_true", help="a tiny model and 20 sentences, nothing written")
    options = parse.parse_args(arguments)
    if options.redraw:
        draw(options.docs)
        return pd.read_csv(options.docs / "data" / f"{NAME}.csv")
    if options.quick and options.run is None:
        options.run = [made_up()]
    if not options.run:
        parse.error("--run is needed: a folder of  benchmarks/train_verb_number.py --keep-every 500")
    count, work = (20, None) if options.quick else (options.count, options.work)
    rows = (row for run in options.run for row in records(run, options.data, count, work, options.step))
    frame = pd.DataFrame(rows)
    print(frame.to_string(index=False, float_format="%.4f"))
    file = options.docs / "data" / f"{NAME}.csv"
    small = fewer("--count", options.count, COUNT)
    if options.data is not None and not options.quick and not stays(file, small):
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_file() and not options.fresh:
            by = ["run", "sentences"] if options.step else ["run"]
            frame = tables_page.added(pd.read_csv(file), frame, *by)
        frame.to_csv(file, index=False, float_format="%.4f")
        draw(options.docs)
        record_run(options.docs / "data" / tables_page.RUNS, options.run)
    return frame


if __name__ == "__main__":
    main()
