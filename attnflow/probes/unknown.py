"""Sentences with words that a tokenizer does not know: how many there are, and what they do to the accuracy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from attnflow.errors import AttnFlowWarning
from attnflow.probes.rates import Rate

T = TypeVar("T")
MARK = "<unk>"


def is_unknown(tokenizer: Any, ids: Iterable[int], text: str = "") -> bool:
    """True where a word was lost: ``ids`` hold the tokenizer's unknown token, or the data wrote ``<unk>`` for a word.

    A tokenizer that has one token for "unknown" and for the beginning or end of a text (GPT-2 and other byte-level
    ones) knows every word.
    """
    unknown = getattr(tokenizer, "unk_token_id", None)
    ends = {getattr(tokenizer, name, None) for name in ("bos_token_id", "eos_token_id")}
    return MARK in text.split() or (unknown is not None and unknown not in ends and unknown in set(ids))


def by_unknown(items: Sequence[T], unknown: Callable[[T], bool], right: Callable[[T], bool]) -> list[Rate]:
    """The share of right choices where a word is unknown, and where all are known."""
    parts = {f"with {MARK}": [i for i in items if unknown(i)], f"without {MARK}": [i for i in items if not unknown(i)]}
    return [Rate(name, float(sum(map(right, part))), len(part)) for name, part in parts.items()]


def warn_unknown(lost: int, total: int, found: Sequence[Rate]) -> None:
    """Warn with the share of sentences that have an unknown word, and the accuracy with and without them."""
    if not lost:
        return
    right = "; ".join(f"{rate.share:.3f} {rate.name} (n = {rate.count})" for rate in found if rate.count)
    warnings.warn(
        f"{lost} of {total} sentences ({lost / total:.0%}) contain {MARK}, a word that the tokenizer does not know"
        f"{'. Right choices: ' if right else ''}{right}.",
        AttnFlowWarning,
        stacklevel=3,
    )
