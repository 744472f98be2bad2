"""Tables 1, 2 and 3 of Abnar & Zuidema (2020) made again: CSV files, a figure and a table in docs/reproduction.md.

    python benchmarks/tables.py --model FOLDER [--model FOLDER …] --data FOLDER [--sst2 FOLDER … --sst2-data FILE]
    python benchmarks/tables.py --figures
    python benchmarks/tables.py --depth
    python benchmarks/tables.py --redraw

Each --model is a verb-number model that benchmarks/train_verb_number.py trained; it goes by the seed in its
training.json, or as "authors' recipe". Each --sst2 is a classifier that benchmarks/train_sst2.py trained, for Table 3;
it goes by the name of its folder. Where nothing is named, it is the model inside the package, seed 0. The recorded
numbers of models that are not named stay; ``--fresh`` starts over, with seed 0 and what is named. --data holds
test.tsv.gz (hard: three quarters have attractors) and valid.tsv.gz (natural), and the correlations are computed on
both. Every model's correlations are kept in --work, so a run that was stopped goes on. Without --data the sentences are
those of the package's own grammar, and the docs stay as they are. ``--quick`` uses 20 sentences and writes nothing.

Three options compute no table: ``--figures`` draws the heat-maps of the paper's example sentences, ``--depth`` measures
how many flows are saturated by depth, on models of 6 to 30 layers, and ``--redraw`` draws the figures and the short
tables from the recorded CSV files.

The gradient of Tables 2 and 3 is measured by its size, Σ|g| or ‖g‖₂. The paper's |Σg| is zero up to rounding error
where a norm stands behind the embeddings; it is computed as a demonstration, with |Σg| / Σ|g| of every sentence.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tables_page
import tables_rows
import torch
from report import FOLDER, fewer, record_run, stays
from rich.progress import track

from attnflow import AttnFlowError, capture, flow, raw, rollout
from attnflow.correlation import correlate
from attnflow.errors import AttnFlowWarning
from attnflow.inputs.example import one_example
from attnflow.inputs.running import undisturbed
from attnflow.models import shipped
from attnflow.probes import data, grammar, verb_number
from attnflow.probes.data import VerbExample
from attnflow.probes.rates import Mean
from attnflow.scoring.blankout import blankout_of
from attnflow.scoring.gradient import gradient_of, reductions_of

COUNT = 2000  # sentences of each set, as in the paper
METHODS = {"raw": raw, "rollout": rollout, "flow": flow}
# Mean and standard deviation over 2,000 sentences (100 in Table 3, four of the layers), as printed in the paper.
PAPER = {
    "Table 1": {
        "raw": "0.69±0.27 0.10±0.43 -0.11±0.49 -0.09±0.52 0.20±0.45 0.29±0.39",
        "rollout": "0.32±0.26 0.38±0.27 0.51±0.26 0.62±0.26 0.70±0.25 0.71±0.24",
        "flow": "0.32±0.26 0.44±0.29 0.70±0.25 0.70±0.22 0.71±0.22 0.70±0.22",
    },
    "Table 2": {
        "raw": "0.53±0.33 0.16±0.38 -0.06±0.42 0.00±0.47 0.24±0.40 0.46±0.35",
        "rollout": "0.22±0.31 0.27±0.32 0.39±0.32 0.47±0.32 0.53±0.32 0.54±0.31",
        "flow": "0.22±0.31 0.31±0.34 0.54±0.32 0.61±0.28 0.60±0.28 0.61±0.28",
    },
    "Table 3": {
        "raw": "0.12±0.21 – 0.09±0.21 – 0.08±0.20 0.09±0.21",
        "rollout": "0.11±0.19 – 0.12±0.21 – 0.13±0.21 0.13±0.20",
        "flow": "0.11±0.19 – 0.11±0.21 – 0.12±0.22 0.14±0.21",
    },
}


@dataclass(frozen=True)
class Variant:
    """One way to compute a table: which reference, which coefficient, with or without CLS and EOS in the vectors."""

    table: str
    name: str
    reference: str
    correlation: str = "spearman"
    special: bool = True
    row: str = "cls"


DENSE = "dense ranks (the published code's formula)"
VARIANTS = (
    Variant("Table 1", "as in the paper: UNK, right class, CLS and EOS kept", "unk"),
    Variant("Table 1", DENSE, "unk", "spearman_dense"),
    Variant("Table 1", "CLS and EOS left out of the vectors", "unk", special=False),
    Variant("Table 1", "the word deleted instead of UNK", "delete"),
    Variant("Table 1", "predicted class instead of the right one", "predicted"),
    Variant("Table 2", "Σ abs(gradient) of the right class's logit", "abs_sum"),
    Variant("Table 2", "length of the gradient", "l2"),
    Variant("Table 2", f"Σ abs(gradient), {DENSE}", "abs_sum", "spearman_dense"),
    Variant("Table 2", "Σ abs(gradient), CLS and EOS left out of the vectors", "abs_sum", special=False),
    Variant("Table 2", "abs(Σ gradient · embedding)", "product"),
    Variant("Table 2", "rounding error: abs(Σ gradient of p₀ − p₁), as in the paper", "paper"),
)
# One more blank-out of every word costs more than all else together, so these are of seed 0 alone.
ALONE = ("delete", "predicted")
MAIN = tuple(v for v in VARIANTS if v.reference not in ALONE)
VARIANTS_3 = (
    Variant("Table 3", "CLS row, Σ abs(gradient)", "abs_sum"),
    Variant("Table 3", "CLS row, length of the gradient", "l2"),
    Variant("Table 3", f"CLS row, Σ abs(gradient), {DENSE}", "abs_sum", "spearman_dense"),
    Variant("Table 3", "CLS row, Σ abs(gradient), CLS and SEP left out", "abs_sum", special=False),
    Variant("Table 3", "maximum over all rows (the published code), Σ abs(gradient)", "abs_sum", row="max"),
    Variant("Table 3", "CLS row, abs(Σ gradient · embedding)", "product"),
    Variant("Table 3", "rounding error: CLS row, abs(Σ gradient)", "abs_of_sum"),
    Variant(
        "Table 3", "rounding error: maximum over all rows, abs(Σ gradient), dense ranks, all as published",
        "abs_of_sum", "spearman_dense", row="max",
    ),
)  # fmt: skip
# Kept beside the correlations: one number for every sentence.
RATIO = (Variant("noise", "abs(Σ gradient) / Σ abs(gradient) of the logit", "abs_of_sum"), "gradient")
BLANKS = ("unk", "delete")
SIZES = ("abs_sum", "l2", "abs_of_sum")  # reductions of one gradient
Values = dict[tuple[Variant, str], np.ndarray]


def references(model: Any, tokenizer: Any, text: str, right: int, names: set[str]) -> dict[str, Any]:
    """The importance of the inputs by every reference that the variants name; the text is encoded and run once."""
    out = {}
    with undisturbed(model) as module, warnings.catch_warnings():
        # That |Σg| is rounding error is what these rows show.
        warnings.simplefilter("ignore", AttnFlowWarning)
        example = one_example(module, tokenizer, text)
        of_right = example.goal(right, None, "prob")[0]
        for name in names - set(SIZES):
            if name in BLANKS:
                out[name] = blankout_of(example, of_right, blank=name, score="prob")
            elif name == "predicted":
                out[name] = blankout_of(example, example.goal(None, None, "prob")[0], blank="unk", score="prob")
            elif name == "product":
                out[name] = gradient_of(example, of_right, method="input_x_gradient", reduce="abs_of_sum")
            else:
                out[name] = gradient_of(example, of_right, reduce=name)
        return out | reductions_of(example, of_right, [name for name in SIZES if name in names])


def attention_rows(model: Any, tokenizer: Any, text: str, kinds: set[str]) -> dict[tuple[str, str], Any]:
    """Scores ``[layers, keys]`` of every method: the CLS row, or the maximum over all rows."""
    attention = capture(model, tokenizer, text)
    out = {}
    for name, method in METHODS.items():
        if "cls" in kinds:
            out[name, "cls"] = method(attention, position="cls")
        if "max" in kinds:
            out[name, "max"] = method(attention).scores.max(1)
    return out


def correlations(model: Any, tokenizer: Any, texts: list[tuple[str, int]], variants: tuple[Variant, ...]) -> Values:
    """For every variant and method ``[sentences, layers]``, and for :data:`RATIO` ``[sentences, 1]``."""
    collected: dict[tuple[Variant, str], list[np.ndarray]] = {(v, m): [] for v in variants for m in METHODS}
    ratios: list[np.ndarray] = []
    for text, right in track(texts, "Sentences", transient=True):
        scored = references(model, tokenizer, text, right, {v.reference for v in variants} | {"abs_sum", "abs_of_sum"})
        rows = attention_rows(model, tokenizer, text, {v.row for v in variants})
        for (variant, method), values in collected.items():
            reference: Any = scored[variant.reference]
            own = rows[method, variant.row]
            if variant.row == "max":
                reference = reference.scores[0]
            found = correlate(own, reference, variant.correlation, special_tokens=variant.special)
            values.append(found.values)
        ratios.append(scored["abs_of_sum"].scores.sum(keepdims=True)[0] / scored["abs_sum"].scores.sum())
    collected[RATIO] = ratios
    return {key: np.stack(values) for key, values in collected.items()}


def sentences(source: Path | None, name: str, count: int) -> list[VerbExample]:
    """``count`` sentences by chance, the same each time."""
    if source is None:
        return grammar.sentences(count, seed=1)
    found = data.read(source / f"{name}.tsv.gz")
    chosen = np.random.default_rng(0).permutation(len(found))[:count]
    return [found[i] for i in sorted(chosen)]


def kept(
    work: Path | None,
    folder: Path | None,
    texts: list[tuple[str, int]],
    loaded: tuple[Any, Any],
    variants: tuple[Variant, ...],
) -> Values:
    """:func:`correlations`, from the file in ``work`` if the same weights and sentences were done before."""
    if work is None:
        return correlations(*loaded, texts, variants)
    weights = (shipped.FOLDER if folder is None else folder) / "model.safetensors"
    mark = hashlib.blake2b(weights.read_bytes() + repr((texts, variants)).encode(), digest_size=8).hexdigest()
    file = work / f"{mark}.npz"
    if not file.is_file():
        found = correlations(*loaded, texts, variants)
        work.mkdir(parents=True, exist_ok=True)
        every = (*variants, RATIO[0])
        np.savez(file, **{f"{every.index(v)} {m}": values for (v, m), values in found.items()})
    with np.load(file) as saved:
        keys = {key: key.split() for key in saved.files}
        return {((*variants, RATIO[0])[int(number)], m): saved[key] for key, (number, m) in keys.items()}


def records(
    table: str, part: str, runs: list[Values], names: list[str], variants: tuple[Variant, ...]
) -> Iterator[dict[str, Any]]:
    """One record for every variant, model, method and layer, where it was computed."""
    for variant in (v for v in variants if v.table == table):
        for method in METHODS:
            shown = [
                (name, run[variant, method]) for name, run in zip(names, runs, strict=True) if (variant, method) in run
            ]
            same = {"table": table, "set": part, "variant": variant.name, "method": method}
            for name, found in shown:
                for layer, column in enumerate(found.T):
                    mean = Mean.of(column)
                    yield same | {
                        "model": name, "layer": layer, "mean": mean.mean, "std": mean.std,
                        "half_width": mean.half_width, "missing": mean.missing,
                    }  # fmt: skip


def with_seeds(frame: pd.DataFrame) -> pd.DataFrame:
    """The records with the mean over the seeds and their standard deviation, where there are several."""
    own = frame[frame["model"] != tables_page.SEEDS]
    of_seeds = own[tables_page.of_seeds(own["model"])]
    keys = ["table", "set", "variant", "method", "layer"]
    over = of_seeds.groupby(keys, sort=False)["mean"].agg(["mean", "std", "count"]).reset_index()
    several = over[over["count"] > 1].drop(columns="count").assign(model=tables_page.SEEDS)
    return pd.concat([own, several], ignore_index=True)[COLUMNS].convert_dtypes().astype({"missing": "Int64"})


def noise_records(part: str, runs: list[Values], names: list[str]) -> Iterator[dict[str, Any]]:
    """How much of the gradient is left in its sum over dimensions, |Σg| / Σ|g|: below 1e-6 it is rounding error."""
    for name, run in zip(names, runs, strict=True):
        ratios = run[RATIO]
        yield {"set": part, "model": name, "n": len(ratios), "median": np.median(ratios), "largest": ratios.max()}


def published() -> Iterator[dict[str, Any]]:
    """The paper's tables as records, layers counted from 0 as everywhere here: the paper's layer 1 is layer 0."""
    for table, methods in PAPER.items():
        for method, row in methods.items():
            for layer, cell in enumerate(row.split()):
                if cell != "–":
                    mean, std = map(float, cell.split("±"))
                    same = {"table": table, "model": tables_page.PAPER, "method": method}
                    yield same | {"layer": layer, "mean": mean, "std": std}


def name_of(folder: Path | None) -> str:
    """The name of a verb-number model: its seed, or the authors' recipe; the one inside the package has seed 0.

    What it says of itself stands in its folder, or for a model that was kept on the way in the folder above.
    """
    if folder is None:
        return "seed 0"
    found = [path for path in (folder / "training.json", folder.parent / "training.json") if path.is_file()]
    if not found:
        return folder.name
    facts = json.loads(found[0].read_text())
    return tables_page.AUTHORS if facts.get("recipe") == "authors" else f"seed {facts['seed']}"


Loaded = list[tuple[Any, Any]]
Rows = list[dict[str, Any]]


def verb_records(
    models: list[Path | None], loaded: Loaded, source: Path | None, count: int, work: Path | None
) -> tuple[Rows, Rows]:
    """Tables 1 and 2 on every set of sentences, and how much of the gradient is left in its sum."""
    names = [name_of(folder) for folder in models]
    found, noise = [], []
    for part in ("grammar",) if source is None else ("test", "valid"):
        examples, runs = sentences(source, part, count), []
        for name, folder, (model, tokenizer) in zip(names, models, loaded, strict=True):
            texts = [(e.prefix, int(model.config.label2id[e.label])) for e in examples]
            runs.append(kept(work, folder, texts, (model, tokenizer), VARIANTS if name == tables_rows.SEED else MAIN))
        for table in ("Table 1", "Table 2"):
            found += records(table, part, runs, names, VARIANTS)
        noise += noise_records(part, runs, names)
    return found, noise


def accuracy_records(names: list[str], loaded: Loaded, source: Path | None, count: int) -> Iterator[dict[str, Any]]:
    """Accuracy by number of attractors, with that of always choosing the more frequent number."""
    for part in ("valid", "test") if source is not None else ("grammar",):
        examples = sentences(source, part, 10**9 if count >= 1000 and source is not None else count)
        for name, (model, tokenizer) in zip(names, loaded, strict=True):
            choices = verb_number.choose(model, tokenizer, examples, batch_size=128)
            for rate, base in zip(verb_number.accuracy(choices), verb_number.majority(choices), strict=True):
                low, high = rate.interval
                yield {
                    "set": part, "model": name, "attractors": rate.name, "n": rate.count,
                    "accuracy": rate.share, "low": low, "high": high, "majority": base.share,
                }  # fmt: skip


def sst2_records(folders: list[Path], file: Path, count: int, work: Path | None) -> tuple[Rows, Rows, Rows]:
    """Table 3 on ``count`` sentences, the accuracy of each classifier on all of them, and what is left of |Σg|."""
    from attnflow.models.loading import load

    lines = [line.rsplit("\t", 1) for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    names, runs, accuracy = [folder.name for folder in folders], [], []
    for name, folder in zip(names, folders, strict=True):
        model, tokenizer = load(str(folder))
        texts, right = [], 0
        for text, label in lines:
            with torch.no_grad():
                predicted = int(model(**tokenizer(text.strip(), return_tensors="pt")).logits.argmax())
            right += predicted == int(label)
            texts.append((text.strip(), predicted))
        runs.append(kept(work, folder, texts[:count], (model, tokenizer), VARIANTS_3))
        share = right / len(texts)
        accuracy.append({"set": "sst2", "model": name, "attractors": "all", "n": len(texts), "accuracy": share})
    found = records("Table 3", "sst2", runs, names, VARIANTS_3)
    return list(found), accuracy, list(noise_records("sst2", runs, names))


def saturation_records(small: bool = False) -> Iterator[dict[str, Any]]:
    """By model and depth: the share of pairs whose flow is the least of its source's and its sink's capacity.

    Such a flow says nothing about the way between them. Rows of the text of flow_networks.py, 64 tokens of it.
    """
    from flow_bounds import NAMES, N, saturation
    from flow_networks import available, real

    from attnflow.scoring.flow.integers import integers

    for key, there in available().items():
        if there and not (small and key != "minilm"):
            shares = saturation(integers(real(key, 16 if small else N)))
            for layer, share in enumerate(shares):
                yield {"model": NAMES[key], "layers": len(shares), "layer": layer, "share": share}


# By the name of its figure: a sentence of the paper, and the same with the word that the paper found to decide.
EXAMPLES = {
    "verb-number-article": ("the article on NNP large systems", "the articles on NNP large systems"),
    "verb-number-female": ("here the NNS differ in that the female", "here the NNP differ in that the female"),
}


def figures(folder: Path | None, out: Path | None) -> None:
    """The paper's layer × token heat-maps for its example sentences, from our model, and what it predicts of them.

    Without a place for the heat-maps it only says what the model predicts.
    """
    from attnflow.scoring.explain import explain
    from attnflow.views.plot import plot_all

    model, tokenizer = verb_number.load(folder)
    for name, texts in EXAMPLES.items():
        given, changed = (explain(model, tokenizer, text, list(METHODS), position="cls") for text in texts)
        for text, found in zip(texts, (given.prediction, changed.prediction), strict=True):
            print(f"{text}: {found and f'{found.label} ({found.probability:.3f})'}")
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            plot_all(given).savefig(out / f"{name}.png", dpi=120)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--model", type=Path, action="append", help="folder of a verb-number model; once for each seed")
    parse.add_argument("--data", type=Path, help="folder with valid.tsv.gz and test.tsv.gz")
    parse.add_argument("--sst2", type=Path, action="append", help="folder of a classifier for Table 3; may be repeated")
    parse.add_argument("--sst2-data", type=Path, help="file with the columns sentence and label")
    parse.add_argument("--count", type=int, default=COUNT, help="sentences of each set; with fewer the docs stay")
    parse.add_argument("--work", type=Path, default=Path("build/tables"), help="where finished parts are kept")
    parse.add_argument("--docs", type=Path, default=FOLDER.parent, help="where the page and its data are written")
    parse.add_argument("--fresh", action="store_true", help="start over: drop recorded numbers of models not named")
    # What every run does now; recorded commands have it, and they can still be run.
    parse.add_argument("--add", action="store_true", help=argparse.SUPPRESS)
    parse.add_argument("--figures", action="store_true", help="only the heat-maps, docs/images/verb-number-*.png")
    parse.add_argument("--depth", action="store_true", help="only saturation by depth: its CSV file and figure")
    parse.add_argument("--redraw", action="store_true", help="draw from the recorded CSV files, without computing")
    parse.add_argument("--quick", action="store_true", help="20 sentences, nothing written")
    options = parse.parse_args(arguments)
    if options.sst2 and options.sst2_data is None:
        parse.error("--sst2 names a classifier and --sst2-data no sentences:  --sst2-data FOLDER/test.tsv")
    return options


def compute(options: argparse.Namespace) -> tables_page.Frames:
    """The correlations, the accuracies, and the ratios of |Σg| to Σ|g|: of what is named, or else of seed 0."""
    models: list[Path | None] = [*(options.model or [])]
    if options.fresh or not (models or options.sst2):
        models = [None, *models]  # short tables of the page are of seed 0
    count, work = (20, None) if options.quick else (options.count, options.work)
    loaded = [verb_number.load(folder) for folder in models]
    found, noise = verb_records(models, loaded, options.data, count, work)
    accuracy = list(accuracy_records([name_of(folder) for folder in models], loaded, options.data, count))
    if options.sst2:
        parts = zip((found, accuracy, noise), sst2_records(options.sst2, options.sst2_data, count, work), strict=True)
        found, accuracy, noise = (own + more for own, more in parts)
    return with_seeds(frame_of([*published(), *found])), pd.DataFrame(accuracy), pd.DataFrame(noise)


COLUMNS = ["table", "set", "variant", "model", "method", "layer", "mean", "std", "half_width", "missing"]


def frame_of(found: list[dict[str, Any]]) -> pd.DataFrame:
    """The records as a table; what a record does not say is missing."""
    return pd.DataFrame(found, columns=COLUMNS).convert_dtypes()


def draw(docs: Path) -> None:
    """The figures and the tables of the page, from the CSV files."""
    tables_page.draw(docs)
    tables_rows.draw(docs)


def show(frames: tables_page.Frames) -> str:
    """Print the short table, which is given back, the accuracies and the ratios."""
    text = tables_page.short_table(frames[0])
    print(text)
    for frame in frames[1:]:
        print(frame.to_string(index=False))
    return text


def depth(options: argparse.Namespace) -> None:
    """Measure saturation by depth on the models that are installed, and record it."""
    found = pd.DataFrame(saturation_records(options.quick), columns=["model", "layers", "layer", "share"])
    print(found.to_string(index=False))
    if len(found) and not options.quick:
        tables_page.write_saturation(options.docs, found)
        record_run(options.docs / "data" / tables_page.RUNS)


def make_tables(options: argparse.Namespace) -> str:
    """Compute what is named and show it; where it is recorded, among the recorded models, as the page then is."""
    frames = compute(options)
    small = fewer("--count", options.count, COUNT)
    if options.data is None or options.quick or stays(options.docs / "reproduction.md", small):
        return show(frames)
    if not options.fresh:
        frames = tables_page.with_recorded(options.docs, frames)
    frames = (with_seeds(frames[0]), *frames[1:])
    text = show(frames)
    tables_page.write(options.docs, frames)
    draw(options.docs)
    record_run(options.docs / "data" / tables_page.RUNS, [*(options.model or []), *(options.sst2 or [])])
    return text


def main(arguments: list[str] | None = None) -> str:
    options = options_of(arguments)
    try:
        if options.figures:
            figures((options.model or [None])[0], None if options.quick else options.docs / "images")
        elif options.depth:
            depth(options)
        elif options.redraw:
            draw(options.docs)
            return show(tables_page.read(options.docs))
        else:
            return make_tables(options)
    except AttnFlowError as error:
        print(error)
    return ""


if __name__ == "__main__":
    main()
