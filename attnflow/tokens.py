"""Tokens, and the words that they make up.

A :class:`Tokens` is a plain tuple of strings that also remembers which of them the tokenizer added
(``special``), to which word each belongs (``word_ids``) and where the named positions are (``marks``).
Words come from the tokenizer's own word ids or character offsets, never from marker characters such as
``##`` or ``Ġ``, which differ between families and also occur in ordinary text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.errors import InputError, ShapeError
from attnflow.reprs import one_line

Array = npt.NDArray[np.floating[Any]]


class Tokens(tuple[str, ...]):
    """The names of the positions of one input.

    Args:
        texts: one string per position.
        special: True where the tokenizer added the token ([CLS], </s>); all False by default.
        word_ids: the number of the word that a token belongs to, None for tokens outside any word;
            by default each token that is not special is a word of its own.
        words: the words as they stand in the text, by word number; joined tokens by default.
        marks: named positions, for instance ``{"cls": 0, "mask": 5}``.

    >>> t = Tokens(["[CLS]", "cab", "##inets"], special=[True, False, False], word_ids=[None, 0, 0])
    >>> t[1], t.special, t.word_ids
    ('cab', (True, False, False), (None, 0, 0))
    """

    special: tuple[bool, ...]
    word_ids: tuple[int | None, ...]
    words: Mapping[int, str]
    marks: Mapping[str, int]

    def __new__(
        cls,
        texts: Iterable[str],
        special: Sequence[bool] | None = None,
        word_ids: Sequence[int | None] | None = None,
        words: Mapping[int, str] | None = None,
        marks: Mapping[str, int] | None = None,
    ) -> Tokens:
        """Check the parts against one another."""
        self = super().__new__(cls, (str(t) for t in texts))
        n = len(self)
        self.special = tuple(map(bool, special)) if special is not None else (False,) * n
        if word_ids is None:
            word_ids = [None if s else i for i, s in enumerate(self.special)]
        self.word_ids = tuple(word_ids)
        self.words = dict(words or {})
        self.marks = dict(marks or {})
        for name, value in (("special", self.special), ("word_ids", self.word_ids)):
            if len(value) != n:
                raise ShapeError(f"{n} tokens but {len(value)} entries in {name}: give one for each token.")
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (Tokens, (tuple(self), self.special, self.word_ids, self.words, self.marks))

    @classmethod
    def numbered(cls, n: int, prefix: str = "") -> Tokens:
        """Names for positions of which nothing is known: their numbers.

        >>> Tokens.numbered(3)
        ('0', '1', '2')
        """
        return cls(f"{prefix}{i}" for i in range(n))

    def take(self, positions: Sequence[int]) -> Tokens:
        """The tokens at ``positions``, with everything that is known about them."""
        where = {p: i for i, p in enumerate(positions)}
        return Tokens(
            [self[p] for p in positions],
            [self.special[p] for p in positions],
            [self.word_ids[p] for p in positions],
            self.words,
            {name: where[p] for name, p in self.marks.items() if p in where},
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON types."""
        return {
            "texts": list(self),
            "special": list(self.special),
            "word_ids": list(self.word_ids),
            "words": {str(k): v for k, v in self.words.items()},
            "marks": dict(self.marks),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Tokens:
        """The inverse of :meth:`to_dict`."""
        words = {int(k): v for k, v in data["words"].items()}
        found = cls(data["texts"], data["special"], data["word_ids"], words, data["marks"])
        named = all(isinstance(t, str) for t in (*data["texts"], *words.values(), *found.marks))
        counted = all(w is None or (isinstance(w, int) and w >= 0) for w in found.word_ids)
        placed = all(isinstance(p, int) and 0 <= p < len(found) for p in found.marks.values())
        if not (named and counted and placed):
            raise InputError("The tokens hold something else than texts, word numbers and positions.")
        return found


def whole_text(text: str) -> str:
    """The text with halves of characters, which no file can hold, replaced.

    >>> whole_text("a\\ud800") == "a\\ufffd"
    True
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def join(*parts: Tokens) -> Tokens:
    """Several token sequences after one another; word numbers are shifted so that they stay apart.

    Marks are dropped: a position named in one part would be ambiguous in the whole.
    """
    texts: list[str] = []
    special: list[bool] = []
    word_ids: list[int | None] = []
    words: dict[int, str] = {}
    shift = 0
    for part in parts:
        texts += part
        special += part.special
        word_ids += [None if w is None else w + shift for w in part.word_ids]
        words |= {w + shift: text for w, text in part.words.items()}
        shift += 1 + max((w for w in part.word_ids if w is not None), default=-1)
    return Tokens(texts, special, word_ids, words)


@one_line
@dataclass(frozen=True)
class Grouping:
    """Which positions make up which word.

    ``members[g]`` are the positions of group ``g``, in the order of the text; ``tokens`` names the groups.
    Special tokens stay groups of their own.
    """

    members: tuple[tuple[int, ...], ...]
    tokens: Tokens

    @property
    def matrix(self) -> npt.NDArray[np.float64]:
        """Groups × positions, 1 where a position belongs to a group."""
        out = np.zeros((len(self.members), sum(map(len, self.members))))
        for g, positions in enumerate(self.members):
            out[g, list(positions)] = 1.0
        return out

    def sum_keys(self, scores: Array) -> Array:
        """``[..., positions]`` → ``[..., groups]``: the score of a word is the sum of the scores of its pieces.

        A missing score (NaN) is missing in its own word only.
        """
        return np.asarray(np.add.reduceat(scores, [positions[0] for positions in self.members], axis=-1))

    def mean_queries(self, scores: Array) -> Array:
        """``[..., positions, keys]`` → ``[..., groups, keys]``: a word's row is the mean of its pieces' rows.

        A missing score (NaN) is missing in the row of its own word only.
        """
        if np.isnan(scores).any():  # in a product it would spread to every row
            return np.stack([scores[..., list(positions), :].mean(-2) for positions in self.members], -2)
        m = self.matrix
        return np.asarray((m / m.sum(1, keepdims=True)) @ scores)


def group_words(tokens: Tokens) -> Grouping:
    """Group positions by word, a word being a run of neighbours with the same word number.

    >>> t = Tokens(["[CLS]", "cab", "##inets"], special=[True, False, False], word_ids=[None, 0, 0])
    >>> g = group_words(t)
    >>> g.members, tuple(g.tokens)
    (((0,), (1, 2)), ('[CLS]', 'cab##inets'))
    """
    members: list[list[int]] = []
    for i, word in enumerate(tokens.word_ids):
        if members and word is not None and tokens.word_ids[members[-1][0]] == word:
            members[-1].append(i)
        else:
            members.append([i])
    if not members:
        raise InputError("0 tokens have no words: give at least one token.")
    names, ids = [], []
    for positions in members:
        word = tokens.word_ids[positions[0]]
        joined = "".join(tokens[p] for p in positions)
        names.append(joined if word is None else tokens.words.get(word, joined))
        ids.append(word)
    at = {p: g for g, positions in enumerate(members) for p in positions}
    grouped = Tokens(
        names,
        [tokens.special[positions[0]] for positions in members],
        ids,
        tokens.words,
        {name: at[p] for name, p in tokens.marks.items()},
    )
    return Grouping(tuple(map(tuple, members)), grouped)


def check_words(tokenizer: Any, whose: str) -> None:
    """Refuse a tokenizer without a vocabulary, which transformers makes of nothing where a folder has no tokenizer."""
    read = getattr(tokenizer, "get_vocab", None)
    if callable(read) and not set(read().values()) - set(getattr(tokenizer, "all_special_ids", ())):
        raise InputError(
            f"{whose} knows no words, only {', '.join(list(read())[:5]) or 'nothing at all'}: every text would be "
            "unknown tokens. The folder of the model has no tokenizer in it. Save the model's own there:  "
            "AutoTokenizer.from_pretrained(name).save_pretrained(folder)"
        )
