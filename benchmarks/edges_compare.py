"""Edges × {raw, rollout, flow, direct} against blank-out and gradients, on real models and sentences of SST-2.

    python benchmarks/edges.py compare --data FOLDER --classifier FOLDER --work FOLDER
    python benchmarks/edges.py compare --data FOLDER --quick       # a few sentences, writes nothing to the docs
    python benchmarks/edges.py compare --redraw                    # figure and table from the recorded CSV file

--data holds test.tsv with the columns sentence and label. --classifier is a model that benchmarks/train_sst2.py made.
The records of each model are in --work: a run that was stopped goes on where it was when it is called again. --only
runs one of the models, --edges one kind of edges; the others stay as they are recorded. --unfinished records what there
is of a run that was stopped. The scores are those of the last layer at the position that is explained, without special
tokens: MiniLM's vector at [CLS], what the classifier decides, what SmolLM2 would say next. A text for SmolLM2 begins
with <|endoftext|>, which takes the place of the first token, on which causal models rest most of their attention.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pandas as pd
import torch
from report import FOLDER, insert, markdown, save, stays
from weights import minilm, smollm2

from attnflow import compare
from attnflow.comparing.comparison import Comparison
from attnflow.models.loading import load

DOCS = FOLDER.parent
CSV = DOCS / "data" / "edges.csv"
SAME = ["model", "edges"]  # what tells the rows of one run
WAYS = ("raw", "rollout", "flow", "direct")
EDGES = ("attention", "norm", "alti", "value_zeroing", "gradient")
MEASURED = {
    f"{way}, measured residual": {"method": way, "residual": "measured"} for way in ("rollout", "flow")
}  # fmt: skip
SHORTEST, LONGEST = 8, 28  # words
COLOURS = dict(zip(EDGES, ("#999999", "#56b4e9", "#0072b2", "#009e73", "#d55e00"), strict=True))
MODELS = ["MiniLM", "MiniLM on SST-2", "SmolLM2"]
BLANK, GRADIENTS = "blank-out", ("gradient", "input×gradient")


class Setting:
    """One model: how it is loaded, how its inputs are blanked, which edges are computed."""

    def __init__(
        self, load: Callable[[], tuple[Any, Any]], count: int, start: str = "", edges: tuple[str, ...] = EDGES,
        **blank: Any,
    ) -> None:  # fmt: skip
        self.load, self.count, self.start, self.edges = load, count, start, edges
        self.references = {
            BLANK: {"method": "blankout", **blank},
            "gradient": {"method": "gradient"},
            "input×gradient": {"method": "input_x_gradient"},
        }

    def methods(self) -> dict[str, dict[str, Any]]:
        """Every way to compose with every kind of edges, by the names of the registry."""
        made: dict[str, dict[str, Any]] = {_name(way, edges): {} for edges in self.edges for way in WAYS}
        return made | (MEASURED if "norm" in self.edges else {})


def _name(way: str, edges: str) -> str:
    return way if edges == "attention" else f"{way}:{edges}"


def settings(classifier: Path | None, count: int, causal: int) -> dict[str, Setting]:
    plain, tuned, language = MODELS
    found = {plain: Setting(minilm, count)}
    if classifier is not None:
        found[tuned] = Setting(lambda: load(str(classifier)), count)
    found[language] = Setting(smollm2, causal, "<|endoftext|>", blank="delete", score="tvd")
    return found


def sentences(file: Path, count: int) -> list[str]:
    rows = pd.read_csv(file, sep="\t")["sentence"].str.strip()
    words = rows.str.split().str.len()
    return rows[(words >= SHORTEST) & (words <= LONGEST)].tolist()[:count]


def run(name: str, setting: Setting, texts: list[str], work: Path, unfinished: bool) -> pd.DataFrame:
    """The correlations of one model, each with the interval of its mean; records that are there are not made again."""
    out = work / name.replace(" ", "-")
    if unfinished:
        return Comparison.load(out).to_frame().assign(model=name)
    model, tokenizer = setting.load()
    result = compare(
        model, tokenizer, [setting.start + text for text in texts[: setting.count]], methods=setting.methods(),
        references=setting.references, layers=-1, special_tokens=False, out=out, resume=out.exists(),
        show_progress=True, batch_size=64,
    )  # fmt: skip
    costs = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in sorted(result.costs.items(), key=lambda x: -x[1]))
    print(f"{name}: {result.examples} sentences, {len(result.failed)} failed; {costs}")
    return result.to_frame().assign(model=name)


def frame_of(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """One line per model, way to compose, edges and reference."""
    frame = pd.concat(parts)
    named = frame["method"].str.split(":", expand=True).reindex(columns=[0, 1])
    measured = named[0].str.contains("measured")
    frame["way"] = named[0].str.split(",").str[0]
    frame["edges"] = named[1].fillna("attention").mask(measured, "attention, measured residual")
    return frame[["model", "reference", "way", "edges", "mean", "low", "high", "std", "n"]]


def draw(frame: pd.DataFrame) -> Any:
    """One panel per model: the correlation with blank-out, dots with the interval of the mean."""
    from matplotlib.figure import Figure

    rows = frame[frame["reference"] == BLANK]
    models = list(dict.fromkeys(rows["model"]))
    figure = Figure(figsize=(3.6 * len(models) + 1.2, 3.4), layout="constrained")
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for panel, model in zip(panels, models, strict=True):
        for e, (edges, colour) in enumerate(COLOURS.items()):
            found = rows[(rows["model"] == model) & (rows["edges"] == edges)].set_index("way").reindex(WAYS)
            at = [w + (e - 2) * 0.14 for w in range(len(WAYS))]
            spread = [found["mean"] - found["low"], found["high"] - found["mean"]]
            panel.errorbar(at, found["mean"], yerr=spread, fmt="o", color=colour, markersize=4, label=edges)
        panel.axhline(0, color="0.8", linewidth=0.8, zorder=0)
        panel.set(title=model, xticks=range(len(WAYS)), xticklabels=WAYS)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("Spearman correlation with blank-out")
    figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, fontsize="small", loc="outside right center")
    return figure


def table(frame: pd.DataFrame, references: tuple[str, ...] = (BLANK,)) -> str:
    """Edges by model, ways to compose as columns: the mean and half the width of its 95 % interval."""
    rows = frame[frame["reference"].isin(references)]
    lines = []
    for (model, reference, edges), part in rows.groupby(["model", "reference", "edges"], sort=False):
        cells = part.set_index("way").reindex(WAYS)
        numbers = [
            "–" if pd.isna(mean) else f"{mean:.2f} ± {half:.2f}"
            for mean, half in zip(cells["mean"], (cells["high"] - cells["low"]) / 2, strict=True)
        ]
        lines.append([model, *([reference] if len(references) > 1 else []), edges, *numbers])
    head = ["model", *(["reference"] if len(references) > 1 else []), "edges", *WAYS]
    return markdown(head, lines)


def fewer_than_recorded(frame: pd.DataFrame) -> str:
    """What to say where the recorded numbers are of more sentences than these; the docs then stay as they are."""
    recorded = pd.read_csv(CSV) if CSV.exists() else frame
    had, has = (rows.groupby(SAME)["n"].max() for rows in (recorded, frame))
    for key in had.index.intersection(has.index):
        if has[key] < had[key]:
            return f"{' with '.join(key)} has {has[key]} sentences, {had[key]} are recorded"
    return ""


def write(frame: pd.DataFrame) -> None:
    """The CSV file, in which models and edges that were not run stay as recorded; from it the figure and the tables."""
    if CSV.exists():
        old = pd.read_csv(CSV)
        made = frame[SAME].apply(tuple, axis=1)
        frame = pd.concat([old[~old[SAME].apply(tuple, axis=1).isin(made)], frame])
    order = {name: number for number, name in enumerate([*MODELS, *EDGES])}
    frame = frame.sort_values(SAME, key=lambda c: c.map(lambda name: order.get(name, len(order))), kind="stable")
    frame.to_csv(CSV, index=False, float_format="%.4f")
    redraw()


def said(model: str, counts: pd.Series) -> str:
    """How many sentences a model has, and which edges have fewer.

    >>> said("MiniLM", pd.Series({"attention": 500, "norm": 120}))
    'MiniLM 500 (norm 120)'
    """
    most = int(counts.max())
    fewer = ", ".join(f"{edges} {int(n)}" for edges, n in counts.items() if n < most)
    return f"{model} {most}" + (f" ({fewer})" if fewer else "")


def redraw() -> None:
    frame = pd.read_csv(CSV)
    save(draw(frame), DOCS / "images" / "edges.svg")
    counts = ", ".join(
        said(model, part.groupby("edges")["n"].max()) for model, part in frame.groupby("model", sort=False)
    )
    insert(
        FOLDER / "edges.md",
        "compare",
        "![Correlation with blank-out for every kind of edges and way to compose](../images/edges.svg)\n\n"
        f"Spearman correlation with blank-out, mean ± half of its 95 % interval. Sentences: {counts}.\n\n"
        f"{table(frame)}\n\nWith the size of the gradient:\n\n{table(frame, GRADIENTS[:1])}\n\n"
        "All numbers, also with gradient × input, are in [edges.csv](../data/edges.csv).",
    )


def made_up() -> Path:
    """A folder with test.tsv of a few sentences, for --quick."""
    folder = Path(tempfile.mkdtemp())
    rows = (f"the film about the {word} house by the sea was fine\t1" for word in ("old", "new", "red", "far"))
    (folder / "test.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n", encoding="utf-8")
    return folder


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder with test.tsv")
    parser.add_argument("--classifier", type=Path, help="a folder that train_sst2.py wrote")
    parser.add_argument("--work", type=Path, default=Path("edges-work"))
    parser.add_argument("--count", type=int, default=500, help="sentences for the encoders")
    parser.add_argument("--causal", type=int, default=120, help="sentences for SmolLM2")
    parser.add_argument("--only", action="append", choices=MODELS, help="this model; the others stay as recorded")
    parser.add_argument("--edges", action="append", choices=EDGES, help="only these; the others stay as recorded")
    parser.add_argument("--quick", action="store_true", help="4 sentences, the docs stay as they are")
    parser.add_argument("--unfinished", action="store_true", help="take what a stopped run left in --work")
    parser.add_argument("--redraw", action="store_true", help="compute nothing")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if given.redraw:
        redraw()
        return
    if given.quick and given.data is None:
        given.data, given.only = made_up(), ["MiniLM"]
        given.work, given.edges = given.data, ["attention", "norm"]
    if given.data is None:
        raise SystemExit("--data is needed: a folder with test.tsv (columns sentence and label).")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    count, causal = (4, 2) if given.quick else (given.count, given.causal)
    chosen = settings(given.classifier, count, causal)
    for setting in chosen.values():
        setting.edges = tuple(edges for edges in setting.edges if edges in (given.edges or EDGES))
    given.work.mkdir(parents=True, exist_ok=True)
    texts = sentences(given.data / "test.tsv", count)
    wanted = {name: s for name, s in chosen.items() if not given.only or name in given.only}
    frame = frame_of([run(name, s, texts, given.work, given.unfinished) for name, s in wanted.items()])
    print(table(frame), "\n\n", table(frame, GRADIENTS), sep="")
    if not given.quick and not stays(CSV, fewer_than_recorded(frame)):
        write(frame)


if __name__ == "__main__":
    main()
