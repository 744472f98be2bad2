"""Does attention agree better with blank-out and gradients the longer a model is trained?

    python benchmarks/training_curve.py --data FOLDER --run FOLDER [--run FOLDER …] [--count 500]
    python benchmarks/training_curve.py --redraw

Each --run is a folder of benchmarks/train_verb_number.py --keep-every N, with the models step-000N inside it. For every
one of them the correlations of Tables 1 and 2 of Abnar & Zuidema (2020) at the last layer are computed on ``--count``
natural sentences of valid.tsv.gz, with the accuracy on these. The numbers go to docs/data/reproduction-training.csv,
the figure to docs/images/reproduction-training.svg. What was computed is kept in --work, so a run that was stopped goes
on. ``--add`` keeps the recorded numbers of runs that are not named. ``--quick`` trains a tiny model on the package's
own grammar for some steps, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import tables
import tables_page
from report import FOLDER, record_run, save

from attnflow.probes import verb_number
from attnflow.probes.rates import Mean

# The leading variant of each table: what the page calls blank-out and the size of the gradient.
LEADING = tuple(next(v for v in tables.VARIANTS if v.table == table) for table in tables_page.TABLES)
NAME = "reproduction-training"
COLOURS = {"raw": "#0072b2", "rollout": "#d55e00", "flow": "#009e73"}
STYLES = ("-", "--", ":", "-.")
NAMES = {"seed1": "seed 1", "seed2": "seed 2", "authors": "authors' recipe"}


def checkpoints(run: Path) -> list[tuple[int, Path]]:
    """(sentences seen, folder) of every model that was kept, in order."""
    facts = run / "training.json"
    batch = json.loads(facts.read_text())["batch"] if facts.is_file() else 1
    found = sorted((int(path.name.removeprefix("step-")), path) for path in run.glob("step-*"))
    if not found:
        raise SystemExit(f"{run} holds no step-* folders: train with  --keep-every 500  to have some.")
    return [(step * batch, path) for step, path in found]


def records(run: Path, source: Path | None, count: int, work: Path | None) -> Iterator[dict[str, Any]]:
    """One record for every model that was kept, reference and method: its last layer."""
    examples = tables.sentences(source, "valid", count)
    for seen, folder in checkpoints(run):
        model, tokenizer = verb_number.load(folder)
        right = verb_number.accuracy(verb_number.choose(model, tokenizer, examples, batch_size=128))[0]
        texts = [(e.prefix, int(model.config.label2id[e.label])) for e in examples]
        values = tables.kept(work, folder, texts, (model, tokenizer), LEADING)
        for variant in LEADING:
            for method in tables.METHODS:
                found = values[variant, method]
                mean = Mean.of(found[:, -1])
                yield {
                    "run": run.name, "sentences": seen, "accuracy": right.share, "table": variant.table,
                    "method": method, "layer": found.shape[1] - 1, "mean": mean.mean, "half_width": mean.half_width,
                    "n": mean.count,
                }  # fmt: skip


def curves(frame: pd.DataFrame) -> Any:
    """A panel for each table: the correlation at the last layer by sentences seen, the paper's values as thin lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    panels = figure.subplots(1, len(tables_page.TABLES), sharey=True)
    paper = {(r["table"], r["method"], r["layer"]): r["mean"] for r in tables.published()}
    for panel, (table, against) in zip(panels, tables_page.TABLES.items(), strict=True):
        rows = frame[frame["table"] == table]
        for style, (run, of_run) in zip(STYLES, rows.groupby("run", sort=False), strict=False):
            for method, part in of_run.groupby("method", sort=False):
                x, colour = part["sentences"] / 1e6, COLOURS[str(method)]
                label = f"{method}, {NAMES.get(str(run), run)}"
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


def draw(docs: Path) -> None:
    """The figure, from the CSV file."""
    save(curves(pd.read_csv(docs / "data" / f"{NAME}.csv")), docs / "images" / f"{NAME}.svg")


def made_up() -> Path:
    """A tiny model after some steps of training."""
    import train_verb_number

    out = Path(tempfile.mkdtemp()) / "run"
    train_verb_number.main(["--quick", "--out", str(out), "--keep-every", "16", "--threads", "1"])
    return out


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--run", type=Path, action="append", help="folder with step-* folders; once for each training")
    parse.add_argument("--data", type=Path, help="folder with valid.tsv.gz")
    parse.add_argument("--count", type=int, default=500, help="sentences (default: 500)")
    parse.add_argument("--work", type=Path, default=Path("build/tables"), help="where finished parts are kept")
    parse.add_argument("--docs", type=Path, default=FOLDER.parent, help="where the numbers and the figure are written")
    parse.add_argument("--add", action="store_true", help="keep the recorded numbers of runs that are not named")
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
    frame = pd.DataFrame([row for run in options.run for row in records(run, options.data, count, work)])
    print(frame.to_string(index=False, float_format="%.4f"))
    if options.data is not None and not options.quick:
        file = options.docs / "data" / f"{NAME}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        if options.add:
            frame = tables.added(pd.read_csv(file), frame, "run")
        frame.to_csv(file, index=False, float_format="%.4f")
        draw(options.docs)
        record_run(options.docs / "data" / tables_page.RUNS)
    return frame


if __name__ == "__main__":
    main()
