"""Train the verb-number model of Abnar & Zuidema (2020).

    python benchmarks/train_verb_number.py --out FOLDER [--data FOLDER] [--seed 0] [--epochs 3]

The data folder holds train.tsv.gz and valid.tsv.gz (columns prefix, label, …) and vocab.txt. Without one, the model is
trained on sentences of the package's own grammar. A run that was stopped goes on from its last epoch; the best
epoch by validation accuracy is saved. ``--quick`` trains a small model in seconds, to check that everything is in
place.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnflow.audit.splits import length_batches
from attnflow.models.shipped import LABELS
from attnflow.models.tokenizers import word_tokenizer
from attnflow.models.verb_number import VerbNumberConfig, VerbNumberModel
from attnflow.probes import data, grammar
from attnflow.probes.data import VerbExample

LONGEST = 60
Set = tuple[list[list[int]], np.ndarray]


def encode(examples: list[VerbExample], tokenizer: Any) -> Set:
    """Ids and labels; sentences longer than the model's positions are left out."""
    ids = tokenizer([e.prefix for e in examples])["input_ids"]
    keep = [i for i, x in enumerate(ids) if len(x) <= LONGEST]
    return [ids[i] for i in keep], np.array([LABELS.index(examples[i].label) for i in keep])


def load(folder: Path | None, limit: int | None, seed: int) -> tuple[Any, Set, Set]:
    """(tokenizer, training set, validation set) from the folder, or from the grammar."""
    if folder is None:
        made = grammar.sentences((limit or 50_000) + 2_000, seed, balanced=False)
        tokenizer = word_tokenizer(grammar.vocabulary())
        return tokenizer, encode(made[2_000:], tokenizer), encode(made[:2_000], tokenizer)
    tokenizer = word_tokenizer((folder / "vocab.txt").read_text(encoding="utf-8").split())
    train, valid = (data.read(folder / f"{name}.tsv.gz", n) for name, n in (("train", limit), ("valid", None)))
    return tokenizer, encode(train, tokenizer), encode(valid, tokenizer)


def collate(ids: list[list[int]], chosen: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(ids[i]) for i in chosen)
    x = torch.zeros(len(chosen), longest, dtype=torch.long)
    for row, i in enumerate(chosen):
        x[row, : len(ids[i])] = torch.tensor(ids[i])
    return x, (x != 0).long()


@torch.no_grad()
def accuracy(model: VerbNumberModel, ids: list[list[int]], labels: np.ndarray) -> float:
    model.eval()
    right = 0
    for chosen in length_batches([len(x) for x in ids], 256, None):
        x, mask = collate(ids, chosen)
        right += int((model(x, mask).logits.argmax(-1).numpy() == labels[chosen]).sum())
    model.train()
    return right / len(ids)


def rate(step: int, total: int, peak: float) -> float:
    warm = total * 0.04
    return peak * min(step / warm, max(0.0, (total - step) / (total - warm)))


class Run:
    """One training run: the model, its optimiser, where it stands, and its folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        torch.manual_seed(options.seed)
        options.out.mkdir(parents=True, exist_ok=True)
        self.tokenizer, self.train, self.valid = load(options.data, options.limit, options.seed)
        embd, attn, resid = options.dropout
        config = VerbNumberConfig(
            vocab_size=len(self.tokenizer), n_layer=options.layers, embd_pdrop=embd, attn_pdrop=attn, resid_pdrop=resid
        )
        self.model = VerbNumberModel(config).train()
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=options.rate, weight_decay=options.decay, betas=(0.9, 0.98), fused=True
        )
        self.state = {"step": 0, "epoch": 0, "best": 0.0}
        self.checkpoint = options.out / "checkpoint.pt"
        if self.checkpoint.is_file():
            saved = torch.load(self.checkpoint, weights_only=True)
            self.model.load_state_dict(saved["model"])
            self.optimiser.load_state_dict(saved["optimiser"])
            self.state = saved["state"]
            print("resumed at", self.state)

    def epoch(self) -> None:
        """Go once through the training set."""
        o, (ids, labels) = self.options, self.train
        torch.manual_seed(1000 * o.seed + int(self.state["epoch"]))
        order = length_batches(
            [len(x) for x in ids], o.batch, np.random.default_rng([o.seed, int(self.state["epoch"])])
        )
        losses, start = [], time.time()
        for n, chosen in enumerate(order, 1):
            for group in self.optimiser.param_groups:
                group["lr"] = rate(int(self.state["step"]) + 1, len(order) * o.epochs, o.rate)
            x, mask = collate(ids, chosen)
            loss = self.model(x, mask, labels=torch.tensor(labels[chosen])).loss
            self.optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimiser.step()
            self.state["step"] += 1
            losses.append(loss.item())
            if n % 200 == 0:
                spent = time.time() - start
                print(
                    f"epoch {self.state['epoch']} {n}/{len(order)} loss {np.mean(losses[-200:]):.4f} {spent:.0f}s",
                    flush=True,
                )
        self.state["epoch"] += 1

    def keep(self) -> None:
        """Measure, and save the model if it is the best so far."""
        o = self.options
        reached = accuracy(self.model, *self.valid)
        print(f"epoch {self.state['epoch']} validation {reached:.4f}", flush=True)
        if reached > self.state["best"]:
            self.state["best"] = reached
            self.model.save_pretrained(o.out)
            self.tokenizer.save_pretrained(o.out)
            facts = {
                "seed": o.seed, "epochs": self.state["epoch"], "of": o.epochs, "batch": o.batch, "rate": o.rate,
                "dropout": list(o.dropout), "train": len(self.train[0]), "valid": len(self.valid[0]),
                "accuracy": reached,
            }  # fmt: skip
            (o.out / "training.json").write_text(json.dumps(facts, indent=1))
        saved = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict(), "state": self.state}
        torch.save(saved, self.checkpoint)


def main(arguments: list[str] | None = None) -> float:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--out", type=Path)
    parse.add_argument("--data", type=Path, help="default: sentences of the package's own grammar")
    parse.add_argument("--seed", type=int, default=0)
    parse.add_argument("--epochs", type=int, default=3)
    parse.add_argument("--batch", type=int, default=128)
    parse.add_argument("--rate", type=float, default=1e-3)
    parse.add_argument("--decay", type=float, default=0.01)
    parse.add_argument("--dropout", type=float, nargs=3, default=(0.1, 0.1, 0.1), metavar=("EMBD", "ATTN", "RESID"))
    parse.add_argument("--layers", type=int, default=6)
    parse.add_argument("--limit", type=int, help="use only this many training sentences")
    parse.add_argument("--threads", type=int, default=torch.get_num_threads())
    parse.add_argument("--quick", action="store_true", help="two layers, one epoch, 2,000 sentences")
    options = parse.parse_args(arguments)
    if options.quick and options.out is None:
        options.out = Path(tempfile.mkdtemp())
    if options.out is None:
        parse.error("--out is needed")
    if options.quick:
        options.layers, options.epochs, options.limit, options.batch = 2, 1, 2_000, 64
    torch.set_num_threads(options.threads)
    run = Run(options)
    while run.state["epoch"] < options.epochs:
        run.epoch()
        run.keep()
    return float(run.state["best"])


if __name__ == "__main__":
    main()
