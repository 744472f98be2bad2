"""Tables 1, 2 and 3 of Abnar & Zuidema (2020) made again, ours beside theirs, into docs/reproduction.md.

    python benchmarks/tables.py --model FOLDER [--model FOLDER …] --data FOLDER [--sst2 FOLDER --sst2-data FILE]

Each --model is a verb-number model that benchmarks/train_verb_number.py trained, one for each seed (default: the one
inside the package). --data holds test.tsv.gz (hard: three quarters have attractors) and valid.tsv.gz (natural), and
the tables are made on both (default: sentences of the package's own grammar). --sst2 is a classifier that
benchmarks/train_sst2.py trained, for Table 3. Every model's correlations are kept in --work, so a run that was
stopped goes on. ``--quick`` takes 20 sentences and prints.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import FOLDER, insert, markdown
from rich.progress import track

from attnflow import AttnFlowError, blankout, capture, flow, gradient, raw, rollout
from attnflow.correlation import correlate
from attnflow.models import shipped
from attnflow.probes import data, grammar, verb_number
from attnflow.probes.data import VerbExample
from attnflow.probes.rates import Mean

METHODS = {"raw": raw, "rollout": rollout, "flow": flow}
# Mean and standard deviation over 2,000 sentences (100 in Table 3, layers 1, 3, 5, 6), as printed in the paper.
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


VARIANTS = (
    Variant("Table 1", "as in the paper: UNK, right class, CLS and EOS kept", "unk"),
    Variant("Table 1", "dense ranks (the published code's formula)", "unk", "spearman_dense"),
    Variant("Table 1", "CLS and EOS left out of the vectors", "unk", special=False),
    Variant("Table 1", "the word deleted instead of UNK", "delete"),
    Variant("Table 1", "predicted class instead of the right one", "predicted"),
    Variant("Table 2", "as in the paper: abs(Σ gradient of p₀ − p₁)", "paper"),
    Variant("Table 2", "dense ranks (the published code's formula)", "paper", "spearman_dense"),
    Variant("Table 2", "CLS and EOS left out of the vectors", "paper", special=False),
    Variant("Table 2", "Σ abs(gradient) of the right class's logit", "abs_sum"),
)
MAIN = tuple(next(v for v in VARIANTS if v.table == table) for table in ("Table 1", "Table 2"))
VARIANTS_3 = (
    Variant("Table 3", "CLS row, average ranks", "abs_of_sum"),
    Variant("Table 3", "CLS row, dense ranks (the published code's formula)", "abs_of_sum", "spearman_dense"),
    Variant("Table 3", "maximum over all rows (the published code), average ranks", "abs_of_sum", row="max"),
    Variant(
        "Table 3", "maximum over all rows, dense ranks: both as published", "abs_of_sum", "spearman_dense", row="max"
    ),
    Variant("Table 3", "CLS row, average ranks, CLS and SEP left out", "abs_of_sum", special=False),
    Variant("Table 3", "CLS row, average ranks, length of the gradient", "l2"),
)
Values = dict[tuple[Variant, str], np.ndarray]


def references(model: Any, tokenizer: Any, text: str, right: int, names: set[str]) -> dict[str, Any]:
    """The importance of the inputs by every reference that the variants name."""
    out = {}
    for name in names:
        if name in ("unk", "delete"):
            out[name] = blankout(model, tokenizer, text, blank=name, target=right, score="prob")
        elif name == "predicted":
            out[name] = blankout(model, tokenizer, text, blank="unk", score="prob")
        elif name == "paper":
            out[name] = gradient(model, tokenizer, text, target=right, reduce="paper")
        else:
            out[name] = gradient(model, tokenizer, text, target=right, reduce=name)
    return out


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
    """For every variant and method ``[sentences, layers]``."""
    collected: dict[tuple[Variant, str], list[np.ndarray]] = {(v, m): [] for v in variants for m in METHODS}
    for text, right in track(texts, "Sentences", transient=True):
        scored = references(model, tokenizer, text, right, {v.reference for v in variants})
        rows = attention_rows(model, tokenizer, text, {v.row for v in variants})
        for (variant, method), values in collected.items():
            reference: Any = scored[variant.reference]
            own = rows[method, variant.row]
            if variant.row == "max":
                reference = reference.scores[0]
            found = correlate(own, reference, variant.correlation, special_tokens=variant.special)
            values.append(found.values)
    return {key: np.stack(values) for key, values in collected.items()}


def cells(values: np.ndarray) -> list[str]:
    return [f"{m.mean:.2f}±{m.std:.2f}" for m in map(Mean.of, values.T)]


def main_table(table: str, runs: list[Values], names: list[str], variants: tuple[Variant, ...]) -> str:
    """Ours beside theirs: the paper's way of computing, one row for each method and model."""
    variant = next(v for v in variants if v.table == table)
    count = runs[0][variant, "raw"].shape[1]
    rows = []
    for method in METHODS:
        rows.append([method, "paper", *PAPER[table][method].split()[:count]])
        for run, name in zip(runs, names, strict=True):
            rows.append([method, name, *cells(run[variant, method])])
        if len(runs) > 1:
            means = np.array([np.nanmean(run[variant, method], 0) for run in runs])
            spread = zip(means.mean(0), means.std(0, ddof=1), strict=True)
            rows.append([method, f"mean of {len(runs)} seeds ± std of seeds", *(f"{m:.2f}±{s:.2f}" for m, s in spread)])
    return markdown(["method", "model", *(f"L{i + 1}" for i in range(count))], rows)


def variant_table(table: str, run: Values, variants: tuple[Variant, ...]) -> str:
    """What each choice changes, on one model: mean and half width of its 95 % interval."""
    rows = []
    for variant in variants:
        if variant.table == table:
            for method in METHODS:
                found = [Mean.of(column) for column in run[variant, method].T]
                missing = max(m.missing for m in found)
                rows.append([variant.name, method, *(f"{m.mean:.2f} (±{m.half_width:.2f})" for m in found), missing])
    count = len(rows[0]) - 3
    head = ["variant", "method", *(f"L{i + 1}" for i in range(count)), "without a value"]
    return markdown(head, rows)


def pattern(runs: list[Values], names: list[str], table: str, variants: tuple[Variant, ...]) -> str:
    """The pattern of the paper, as yes or no from the numbers of each model."""
    variant = next(v for v in variants if v.table == table)
    rows: dict[str, list[str]] = {}
    for run in runs:
        raws, rolls, flows = (np.nanmean(run[variant, m], 0) for m in METHODS)
        tests = {
            "raw is highest at layer 1, and by 0.1 at least": raws[0] > raws[1:].max(initial=-1) + 0.1,
            "rollout rises by 0.1 or more from the first layer to the last": rolls[-1] > rolls[0] + 0.1,
            "rollout is above raw at the last layer": rolls[-1] > raws[-1],
            "flow is at 0.6 or more from the middle layers on": flows[len(flows) // 2 :].min() >= 0.6,
        }
        for text, holds in tests.items():
            rows.setdefault(text, []).append("yes" if holds else "no")
    return markdown(["", *names], [[text, *found] for text, found in rows.items()])


SETS = {
    "test": "the test set (built to be hard: three quarters of it have one to four attractors)",
    "valid": "held-out sentences of the natural distribution, which is the paper's",
    "grammar": "sentences of the package's own grammar",
}


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
        np.savez(file, **{f"{variants.index(v)} {m}": values for (v, m), values in found.items()})
    with np.load(file) as saved:
        return {(variants[int(key.split()[0])], key.split()[1]): saved[key] for key in saved.files}


def verb_tables(models: list[Path | None], source: Path | None, count: int, work: Path | None) -> Iterator[str]:
    """The part of the report on the verb-number model."""
    names = [f"seed {i}" for i in range(len(models))]
    loaded = [verb_number.load(folder) for folder in models]
    yield accuracy_table(loaded, names, source, count)
    for part in ("grammar",) if source is None else ("test", "valid"):
        examples, runs = sentences(source, part, count), []
        for folder, (model, tokenizer) in zip(models, loaded, strict=True):
            texts = [(e.prefix, int(model.config.label2id[e.label])) for e in examples]
            # The other choices are shown for the first model alone.
            runs.append(kept(work, folder, texts, (model, tokenizer), MAIN if runs else VARIANTS))
        for table, reference in (("Table 1", "blank-out"), ("Table 2", "gradients")):
            yield f"## {table}: Spearman correlation with {reference}, {len(examples)} sentences, {part}"
            yield f"Mean ± std over {SETS[part]}."
            yield main_table(table, runs, names, VARIANTS)
            yield "The pattern of the paper:\n\n" + pattern(runs, names, table, VARIANTS)
            yield f"What each choice changes ({names[0]}; in brackets half of the mean's 95 % interval):"
            yield variant_table(table, runs[0], VARIANTS)


def accuracy_table(loaded: list[tuple[Any, Any]], names: list[str], source: Path | None, count: int) -> str:
    """Accuracy by number of attractors, beside the majority."""
    rows = []
    for part in ("valid", "test") if source is not None else ("grammar",):
        examples = sentences(source, part, 10**9 if count >= 1000 and source is not None else count)
        for (model, tokenizer), name in zip(loaded, names, strict=True):
            choices = verb_number.choose(model, tokenizer, examples, batch_size=128)
            for rate, base in zip(verb_number.accuracy(choices), verb_number.majority(choices), strict=True):
                low, high = rate.interval
                share = f"{rate.share:.4f} ({low:.3f}–{high:.3f})"
                rows.append([part, name, rate.name, rate.count, share, f"{base.share:.4f}"])
    head = ["set", "model", "attractors", "n", "accuracy (95 %)", "always the more frequent number"]
    return "## Accuracy (the paper: 0.96)\n\n" + markdown(head, rows)


def sst2_tables(folder: Path, file: Path, count: int) -> Iterator[str]:
    """The part of the report on Table 3's setting."""
    from attnflow.models.loading import load

    model, tokenizer = load(str(folder))
    lines = file.read_text(encoding="utf-8").splitlines()[1:]
    pairs = [line.rsplit("\t", 1) for line in lines]
    texts = []
    right = 0
    for text, label in pairs:
        with torch.no_grad():
            predicted = int(model(**tokenizer(text.strip(), return_tensors="pt")).logits.argmax())
        right += predicted == int(label)
        texts.append((text.strip(), predicted))
    run = correlations(model, tokenizer, texts[:count], VARIANTS_3)
    yield f"## Table 3: SST-2, gradients of the predicted class, {min(count, len(texts))} sentences"
    yield f"Accuracy of the classifier on all {len(texts)} sentences of {file.name}: {right / len(texts):.4f}."
    yield main_table("Table 3", [run], [type(model).__name__], VARIANTS_3)
    yield variant_table("Table 3", run, VARIANTS_3)


def figures(folder: Path | None, out: Path) -> None:
    """The paper's layer × token heat-maps for its example sentences, from our model."""
    from attnflow.scoring.explain import explain
    from attnflow.views.plot import plot_all

    model, tokenizer = verb_number.load(folder)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in {
        "verb-number-article": "the article on NNP large systems",
        "verb-number-female": "here the NNS differ in that the female",
    }.items():
        plot_all(explain(model, tokenizer, text, position="cls")).savefig(out / f"{name}.png", dpi=120)


def main(arguments: list[str] | None = None) -> str:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--model", type=Path, action="append", help="folder of a verb-number model; once for each seed")
    parse.add_argument("--data", type=Path, help="folder with valid.tsv.gz and test.tsv.gz")
    parse.add_argument("--sst2", type=Path, help="folder of a classifier for Table 3")
    parse.add_argument("--sst2-data", type=Path, help="file with the columns sentence and label")
    parse.add_argument("--count", type=int, default=2000)
    parse.add_argument("--work", type=Path, default=Path("build/tables"), help="where finished parts are kept")
    parse.add_argument("--figures", action="store_true", help="also draw docs/images/verb-number-*.png")
    parse.add_argument("--quick", action="store_true", help="20 sentences, nothing written")
    options = parse.parse_args(arguments)
    count = 20 if options.quick else options.count
    docs = FOLDER.parent
    try:
        parts = list(verb_tables(options.model or [None], options.data, count, None if options.quick else options.work))
    except AttnFlowError as error:
        print(error)
        return ""
    if options.sst2 is not None:
        parts += sst2_tables(options.sst2, options.sst2_data, 20 if options.quick else 100)
    text = "\n\n".join(parts) + "\n"
    print(text)
    if not options.quick:
        insert(docs / "reproduction.md", "tables", text)
        if options.figures:
            figures((options.model or [None])[0], docs / "images")
    return text


if __name__ == "__main__":
    main()
