"""Train the verb-number model of Abnar & Zuidema (2020).

    python benchmarks/train_verb_number.py --out FOLDER [--data FOLDER] [--seed 0] [--epochs 3] [--keep-every 505]
    python benchmarks/train_verb_number.py --out FOLDER --data FOLDER --recipe authors --limit 157696 --epochs 60

The data folder holds train.tsv.gz and valid.tsv.gz (columns prefix, label, …) and vocab.txt. Without one, the model is
trained on sentences of the package's own grammar. A run that was stopped goes on from its last epoch; the best
epoch by validation accuracy is saved. ``--keep-every N`` keeps the model before and after every N steps, in folders
step-000N that benchmarks/training_curve.py reads. What each run took stands in runs.csv beside the model, from where
the page that uses the model takes it. ``--recipe authors`` trains as the authors' repository suggests (Reflect,
small_gpt_v9 and crs_fst). There the model also sees the padding of its batches, because their mask adds the same number
to all logits of a row; ``--padding masked`` hides it. ``--quick`` trains a small model in seconds, to check that
everything is in place.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from report import RUNS, record_run

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


# By the name of a recipe: what stands for options that are not given. "authors" is small_gpt_v9 with crs_fst of
# github.com/samiraabnar/Reflect; which of its settings trained the paper's model is not said.
RECIPES: dict[str, dict[str, Any]] = {
    "ours": {"batch": 128, "rate": 1e-3, "decay": 0.01, "dropout": (0.1, 0.1, 0.1), "padding": "masked"},
    "authors": {"batch": 64, "rate": 1e-3, "decay": 1e-4, "dropout": (0.2, 0.6, 0.4), "padding": "seen"},
}
RESTART = 1000
SPREAD = 0.05


def rate(step: int, total: int, peak: float) -> float:
    """The learning rate of step 1, 2, …: up to ``peak`` within 4 % of the steps, then straight down to 0.

    >>> rate(4, 100, 1.0), rate(52, 100, 1.0), rate(100, 100, 1.0)
    (1.0, 0.5, 0.0)
    """
    warm = total * 0.04
    return peak * min(step / warm, max(0.0, (total - step) / (total - warm)))


def restarts(step: int, first: int, peak: float, again: float = 0.9, least: float = 1e-3) -> float:
    """Half a cosine from ``peak`` to ``least`` of it in ``first`` steps, then again in twice as many, and so on.

    SGDR (2017) as TensorFlow has it: each time the peak is ``again`` of the one before.

    >>> [round(restarts(step, 10, 1.0, least=0.0), 3) for step in (0, 5, 10, 20, 30)]
    [1.0, 0.5, 0.9, 0.45, 0.81]
    """
    height = 1.0
    while step >= first:
        step, first, height = step - first, 2 * first, height * again
    return peak * ((1 - least) * height * (1 + math.cos(math.pi * step / first)) / 2 + least)


def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """torch's dropout by 16 bits of its generator per number: on some processors five times as fast.

    torch draws number by number there: a fifth of a training step. What is left out has probability ``p`` to 1e-5.

    >>> kept = dropout(torch.ones(100_000), 0.25)
    >>> [round(x, 2) for x in (kept.max().item(), (kept == 0).float().mean().item())]
    [1.33, 0.25]
    """
    if not training or p == 0:
        return x
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    kept = bits[: x.numel()].view(x.shape) >= round(p * 2**16) - 2**15
    return x * kept.to(x.dtype).mul_(1 / (1 - p))


def optimiser_of(model: VerbNumberModel, options: argparse.Namespace) -> torch.optim.Optimizer:
    """AdamW, or for the authors' recipe Adam with L2 in the loss: the gradient of decay · Σw² is 2 · decay · w.

    Their L2 is of embeddings and of the blocks' matrices and biases; norms and the classifier have none.
    """
    if options.recipe == "authors":
        free = [p for name, p in model.named_parameters() if ".ln_" in name or name.startswith(("ln_f", "score"))]
        held = [p for p in model.parameters() if all(p is not other for other in free)]
        groups = [{"params": held, "weight_decay": 2 * options.decay}, {"params": free}]
        return torch.optim.Adam(groups, lr=options.rate, fused=True)
    return torch.optim.AdamW(
        model.parameters(), lr=options.rate, weight_decay=options.decay, betas=(0.9, 0.98), fused=True
    )


def begin(model: VerbNumberModel, recipe: str) -> None:
    """For the authors' recipe, the first weights of all matrices as Keras draws them: no further than two deviations.

    GPT-2's blocks begin at 0.02 by themselves, whatever the configuration says; theirs began at 0.05.
    """
    for p in model.parameters():
        if recipe == "authors" and p.dim() == 2:
            torch.nn.init.trunc_normal_(p, std=SPREAD, a=-2 * SPREAD, b=2 * SPREAD)


def batches(lengths: list[int], options: argparse.Namespace, rng: np.random.Generator) -> list[np.ndarray]:
    """The batches of an epoch: of like length, or drawn at random where the model is to see the padding.

    At random the longest of 64 sentences has 42 tokens on average and a sentence 11, so most of the input is padding.
    """
    if options.padding == "masked":
        return length_batches(lengths, options.batch, rng)
    order = rng.permutation(len(lengths))
    return np.array_split(order, max(1, len(order) // options.batch))


def clip(model: VerbNumberModel, recipe: str) -> None:
    """Gradients of length 1 at the most: all together, or for the authors' recipe each by itself, as in Keras."""
    own = [p for p in model.parameters() if p.grad is not None]
    for group in [[p] for p in own] if recipe == "authors" else [own]:
        torch.nn.utils.clip_grad_norm_(group, 1.0)


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
        begin(self.model, options.recipe)
        self.model.set_attn_implementation("eager")  # with dropout sdpa takes the same way, but draws by itself
        self.optimiser = optimiser_of(self.model, options)
        self.state = {"step": 0, "epoch": 0, "best": 0.0}
        self.checkpoint = options.out / "checkpoint.pt"
        if self.checkpoint.is_file():
            saved = torch.load(self.checkpoint, weights_only=True)
            self.model.load_state_dict(saved["model"])
            self.optimiser.load_state_dict(saved["optimiser"])
            self.state = saved["state"]
            print("resumed at", self.state)

    @patch("torch.nn.functional.dropout", dropout)
    def epoch(self) -> None:
        """Go once through the training set."""
        o, (ids, labels) = self.options, self.train
        torch.manual_seed(1000 * o.seed + int(self.state["epoch"]))
        order = batches([len(x) for x in ids], o, np.random.default_rng([o.seed, int(self.state["epoch"])]))
        losses, start = [], time.time()
        for n, chosen in enumerate(order, 1):
            for group in self.optimiser.param_groups:
                group["lr"] = self.rate(len(order))
            x, mask = collate(ids, chosen)
            loss = self.model(x, mask if o.padding == "masked" else None, labels=torch.tensor(labels[chosen])).loss
            self.optimiser.zero_grad()
            loss.backward()
            clip(self.model, o.recipe)
            self.optimiser.step()
            self.state["step"] += 1
            losses.append(loss.item())
            if o.keep_every and self.state["step"] % o.keep_every == 0:
                self.save(o.out / f"step-{self.state['step']:06d}")
            if n % 200 == 0:
                spent = time.time() - start
                print(
                    f"epoch {self.state['epoch']} {n}/{len(order)} loss {np.mean(losses[-200:]):.4f} {spent:.0f}s",
                    flush=True,
                )
        self.state["epoch"] += 1

    def rate(self, steps: int) -> float:
        """The learning rate of the next step; an epoch has ``steps``."""
        done, o = int(self.state["step"]), self.options
        return restarts(done, RESTART, o.rate) if o.recipe == "authors" else rate(done + 1, steps * o.epochs, o.rate)

    def save(self, folder: Path) -> None:
        """The model as it is, in a folder that can be loaded."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def keep(self) -> None:
        """Measure, and save the model if it is the best so far."""
        o = self.options
        reached = accuracy(self.model, *self.valid)
        print(f"epoch {self.state['epoch']} validation {reached:.4f}", flush=True)
        if reached > self.state["best"]:
            self.state["best"] = reached
            self.save(o.out)
            facts = {
                "recipe": o.recipe, "seed": o.seed, "epochs": self.state["epoch"], "of": o.epochs, "batch": o.batch,
                "rate": o.rate, "dropout": list(o.dropout), "padding": o.padding, "train": len(self.train[0]),
                "valid": len(self.valid[0]), "accuracy": reached,
            }  # fmt: skip
            (o.out / "training.json").write_text(json.dumps(facts, indent=1))
        saved = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict(), "state": self.state}
        torch.save(saved, self.checkpoint)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--out", type=Path)
    parse.add_argument("--data", type=Path, help="default: sentences of the package's own grammar")
    parse.add_argument("--seed", type=int, default=0)
    parse.add_argument("--epochs", type=int, default=3)
    parse.add_argument("--recipe", choices=list(RECIPES), default="ours", help="what the next five are by default")
    parse.add_argument("--batch", type=int)
    parse.add_argument("--rate", type=float)
    parse.add_argument("--decay", type=float)
    parse.add_argument("--dropout", type=float, nargs=3, metavar=("EMBD", "ATTN", "RESID"))
    parse.add_argument("--padding", choices=("masked", "seen"), help="whether training sees the padding of a batch")
    parse.add_argument("--keep-every", type=int, help="also keep the model after every so many steps")
    parse.add_argument("--layers", type=int, default=6)
    parse.add_argument("--limit", type=int, help="use only this many training sentences")
    parse.add_argument("--threads", type=int, default=torch.get_num_threads())
    parse.add_argument("--quick", action="store_true", help="two layers, one epoch, 2,000 sentences")
    options = parse.parse_args(arguments)
    for name, value in RECIPES[options.recipe].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.quick and options.out is None:
        options.out = Path(tempfile.mkdtemp())
    if options.out is None:
        parse.error("--out is needed")
    if options.quick:
        options.layers, options.epochs, options.limit, options.batch = 2, 1, 2_000, 64
    return options


def main(arguments: list[str] | None = None) -> float:
    options = options_of(arguments)
    torch.set_num_threads(options.threads)
    run = Run(options)
    if options.keep_every and run.state["step"] == 0:
        run.save(options.out / "step-000000")
    try:
        while run.state["epoch"] < options.epochs:
            run.epoch()
            run.keep()
    finally:  # also where it was stopped
        record_run(options.out / RUNS)
    return float(run.state["best"])


if __name__ == "__main__":
    main()
