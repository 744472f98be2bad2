"""The data of the experiments that train: ids and labels, in three parts, and batches of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnflow.errors import InputError
from attnflow.inputs.naming import plain_tokenizer
from attnflow.numbers import at_least, check_max_length, whole
from attnflow.reprs import one_line

Integers = npt.NDArray[np.int64]
Pairs = tuple[Sequence[str], Sequence[int]]
PARTS = ("train", "valid", "test")
Progress = Callable[[int, int], None]


@one_line
@dataclass(frozen=True, eq=False)
class Batch:
    """Some instances: ``ids`` and ``mask`` ``[batch, n]``, ``labels`` ``[batch]``, and their numbers in the split."""

    ids: Tensor
    mask: Tensor
    labels: Tensor
    index: Integers

    def to(self, device: Any) -> Batch:
        """The same on another device."""
        return Batch(self.ids.to(device), self.mask.to(device), self.labels.to(device), self.index)


@one_line
@dataclass(frozen=True, eq=False)
class Split:
    """One part of the data: the ids of each text, with its special tokens, and its label."""

    ids: tuple[tuple[int, ...], ...]
    labels: Integers

    def __len__(self) -> int:
        return len(self.ids)

    def batches(self, size: int, pad: int, rng: np.random.Generator | None = None) -> Iterator[Batch]:
        """Batches of like length, padded on the right; in order of length without a generator."""
        for index in length_batches([len(x) for x in self.ids], size, rng):
            longest = max(len(self.ids[i]) for i in index)
            ids = torch.full((len(index), longest), pad)
            mask = torch.zeros_like(ids)
            for row, i in enumerate(index):
                ids[row, : len(self.ids[i])] = torch.tensor(self.ids[i])
                mask[row, : len(self.ids[i])] = 1
            yield Batch(ids, mask, torch.from_numpy(self.labels[index]), index)


@dataclass(frozen=True, eq=False)
class Splits:
    """The data of a training: what a model is trained on, what decides when to stop, and what is measured at the end.

    Attributes:
        train, valid, test: the parts. Nothing is ever chosen by ``test``.
        classes: number of classes; with two, class 1 is the positive one.
        vocabulary: number of ids that the tokenizer knows.
        pad: the id of padding.
        special: ids that the tokenizer adds ([CLS], [SEP], start and end): no token weight is given to them.

    >>> from attnflow.models.tokenizers import word_tokenizer
    >>> tokenizer = word_tokenizer(["good", "bad", "film"])
    >>> data = Splits.of(tokenizer, (["good film", "bad"], [1, 0]), (["bad film"], [0]), (["good"], [1]))
    >>> data
    Splits(2 train, 1 valid, 1 test, 2 classes)
    >>> data.train.ids
    ((2, 4, 6, 3), (2, 5, 3))
    """

    train: Split
    valid: Split
    test: Split
    classes: int
    vocabulary: int
    pad: int
    special: frozenset[int]

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        train: Pairs,
        valid: Pairs,
        test: Pairs,
        *,
        classes: int | None = None,
        max_length: int | None = None,
    ) -> Splits:
        """From (texts, labels) of each part; ``max_length`` cuts texts to this many tokens.

        Labels are numbers from 0. ``classes`` is by default one more than the largest label of ``train``.
        """
        given = {name: _pair(name, part) for name, part in zip(PARTS, (train, valid, test), strict=True)}
        for name, (texts, labels) in given.items():
            _check(name, texts, labels)
        max_length = check_max_length(max_length)
        count = at_least(classes, 2, "classes") if classes is not None else max(int(max(given["train"][1])) + 1, 2)
        for name, (_, labels) in given.items():
            _check_labels(name, labels, count)
        plain = plain_tokenizer(tokenizer)
        first, second, third = (_split(tokenizer, texts, labels, max_length) for texts, labels in given.values())
        # A mask and an unknown word stand in the text itself; the tokenizer did not add them.
        special = frozenset(plain.all_special_ids) - {plain.mask_token_id, plain.unk_token_id}
        # Without a padding token the end token pads: 0 may be a word, and a causal classifier would skip it as padding.
        pad = next((i for i in (plain.pad_token_id, plain.eos_token_id) if i is not None), 0)
        return cls(first, second, third, count, len(plain), int(pad), special)

    def __repr__(self) -> str:
        return (
            f"Splits({len(self.train)} train, {len(self.valid)} valid, {len(self.test)} test, {self.classes} classes)"
        )

    @property
    def edges(self) -> bool:
        """True if every text begins and ends with a special token."""
        return all(x[0] in self.special and x[-1] in self.special for x in self.train.ids)

    def text_tokens(self, ids: Tensor, mask: Tensor) -> Tensor:
        """``[batch, n]`` bool: True at the tokens of the text itself, False at padding and special tokens."""
        added = torch.tensor(sorted(self.special), device=ids.device)
        found: Tensor = mask.bool() & ~torch.isin(ids, added)
        # A text that is nothing but special tokens has only them to weigh.
        return torch.where(found.any(1, keepdim=True), found, mask.bool())

    def weights(self) -> Tensor:
        """``[classes]``: what each class counts so that all together count the same; their mean over texts is 1."""
        counts = np.bincount(self.train.labels, minlength=self.classes)
        return torch.tensor(len(self.train) / (self.classes * np.maximum(counts, 1)), dtype=torch.float32)


def length_batches(lengths: Sequence[int], size: int, rng: np.random.Generator | None) -> list[Integers]:
    """Index batches of like length, in random order; in order of length without a generator.

    >>> [b.tolist() for b in length_batches([3, 1, 2, 1], 2, None)]
    [[1, 3], [2, 0]]
    """
    known = np.asarray(lengths)
    if rng is None:
        order = np.argsort(known, kind="stable")
        return np.array_split(order, max(1, len(order) // size))
    order = rng.permutation(len(known))
    out: list[Integers] = []
    for part in np.array_split(order, max(1, len(order) // (size * 100))):
        part = part[np.argsort(known[part], kind="stable")]
        out += np.array_split(part, max(1, len(part) // size))
    rng.shuffle(out)
    return out


def _split(tokenizer: Any, texts: Sequence[str], labels: Sequence[int], max_length: int | None) -> Split:
    cut = {"truncation": True, "max_length": max_length} if max_length is not None else {}
    ids = tokenizer(list(texts), **cut)["input_ids"]
    return Split(tuple(tuple(x) for x in ids), np.asarray(labels, np.int64))


def _pair(name: str, part: Any) -> tuple[list[Any], list[int]]:
    """(texts, labels) of a part, the labels as whole numbers."""
    if not isinstance(part, tuple | list) or len(part) != 2:
        raise InputError(f"{name} is a {type(part).__name__}, and (texts, labels) is expected:  {name}=(['good'], [1])")
    texts, labels = part
    if not isinstance(labels, Iterable) or isinstance(labels, str) or getattr(labels, "ndim", 1) == 0:
        raise InputError(
            f"The labels of {name} are a {type(labels).__name__}, and a list of whole numbers is expected."
        )
    if isinstance(texts, str) or not isinstance(texts, Iterable) or getattr(texts, "ndim", 1) == 0:
        shown = repr(texts)[:20]
        raise InputError(
            f"The texts of {name} are one {type(texts).__name__}, and a list is expected:  ([{shown}], [1])"
        )
    return list(texts), [whole(label, f"the label of text {i} in {name}") for i, label in enumerate(labels)]


def _check(name: str, texts: Sequence[str], labels: Sequence[int]) -> None:
    if len(texts) == 0:
        raise InputError(
            f"The part {name} has 0 texts: training needs {', '.join(PARTS)}, with at least one text each."
        )
    if len(texts) != len(labels):
        raise InputError(f"{name} has {len(texts)} texts and {len(labels)} labels: give one label for each text.")
    odd = [i for i, text in enumerate(texts) if not isinstance(text, str)]
    if odd:
        raise InputError(f"Text {odd[0]} of {name} is {texts[odd[0]]!r}, and a str is needed: leave it out.")
    empty = [i for i, text in enumerate(texts) if not text.strip()]
    if empty:
        raise InputError(
            f"Text {empty[0]} of {name} is empty ({len(empty)} of {len(texts)} are): leave such texts out."
        )


def _check_labels(name: str, labels: Sequence[int], classes: int) -> None:
    wrong = [(i, y) for i, y in enumerate(labels) if not 0 <= int(y) < classes]
    if wrong:
        at, label = wrong[0]
        raise InputError(
            f"Label {label} of text {at} in {name}, and there are {classes} classes, 0 to {classes - 1}. Number the "
            f"labels from 0, or pass classes={max(int(label) + 1, classes)}."
        )
