"""How a model is asked about the number of a verb: the ids that it reads, where it answers, and its log-odds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnflow.errors import InputError
from attnflow.models.shipped import LABELS
from attnflow.probes.data import VerbExample
from attnflow.probes.scoring import is_unknown, natural, word_ids


@dataclass(frozen=True)
class Query:
    """One example as the model is asked.

    Attributes:
        ids: what the model reads.
        position: where it answers; None for a classifier, which has one answer for the whole text.
        right, wrong: the class, or the first token, of the right and of the wrong form; ``wrong`` is None where two
            prefixes are compared.
        verb: all tokens of the verb, where two prefixes are compared.
        against: the other prefix, asked alike.
        unknown: whether a word of the sentence is unknown to the tokenizer.
    """

    ids: list[int]
    position: int | None
    right: int
    wrong: int | None
    verb: tuple[int, ...] = ()
    against: Query | None = None
    unknown: bool = False

    def target(self, kind: str) -> int | tuple[int, int]:
        """What is explained: a class, the right form against the wrong one, or the one form that there is."""
        return self.right if kind == "classifier" or self.wrong is None else (self.right, self.wrong)


def other_label(label: str) -> str:
    """The other number."""
    return LABELS[1 - LABELS.index(label)]


def query(model: Any, tokenizer: Any, example: VerbExample, kind: str) -> Query | None:
    """How the model is asked about one example; None if it cannot be."""
    if example.label not in LABELS:
        raise InputError(f"The label {example.label!r} is neither of {', '.join(LABELS)}: {example.prefix!r}")
    if kind == "classifier":
        ids = {str(label).lower(): i for label, i in model.config.label2id.items()}
        encoded = list(tokenizer(example.prefix)["input_ids"])
        limit = getattr(model.config, "max_position_embeddings", None) or len(encoded)
        if len(encoded) > limit:
            return None
        lost = is_unknown(tokenizer, encoded, example.prefix)
        return Query(encoded, None, ids[example.label], ids[other_label(example.label)], unknown=lost)
    if example.against:
        return _two_prefixes(tokenizer, example, kind)
    if not example.verb or not example.other:
        return None
    right, wrong = (word_ids(tokenizer, form) for form in (example.verb, example.other))
    if right[0] == wrong[0] or (kind == "masked" and (len(right) != 1 or len(wrong) != 1)):
        return None
    encoded, position = _encoded(tokenizer, example.prefix, example.rest, kind)
    lost = is_unknown(tokenizer, [*encoded, *right, *wrong], _text(example, kind))
    return Query(encoded, position, right[0], wrong[0], unknown=lost)


def _two_prefixes(tokenizer: Any, example: VerbExample, kind: str) -> Query | None:
    """One form of the verb after the right prefix and after the wrong one (BLiMP's two-prefix method)."""
    verb = word_ids(tokenizer, example.verb) if example.verb else []
    if not verb or (kind == "masked" and len(verb) != 1):
        return None
    asked = [_encoded(tokenizer, text, example.rest, kind) for text in (example.prefix, example.against)]
    lost = is_unknown(tokenizer, [*asked[0][0], *asked[1][0], *verb], _text(example, kind))
    against = Query(*asked[1], verb[0], None, tuple(verb))
    return Query(*asked[0], verb[0], None, tuple(verb), against, lost)


def _encoded(tokenizer: Any, prefix: str, rest: str, kind: str) -> tuple[list[int], int]:
    """(ids, where the answer is read): the prefix, or for a masked model the sentence with a mask for the verb."""
    if kind == "causal":
        ids = list(tokenizer(natural(prefix))["input_ids"])
        return ids, len(ids) - 1
    ids = list(tokenizer(natural(f"{prefix} {tokenizer.mask_token} {rest or '.'}"))["input_ids"])
    return ids, ids.index(tokenizer.mask_token_id)


def _text(example: VerbExample, kind: str) -> str:
    return f"{example.prefix} {example.rest}" if kind == "masked" else example.prefix


@torch.no_grad()
def margins(model: Any, queries: Sequence[Query]) -> list[float]:
    """Log-odds of right against wrong, from one forward pass; shorter rows are padded on the right.

    The padding is the model's own: a causal classifier answers at the last position that is not padding. One that
    names no padding takes a single row at a time.
    """
    device = next(model.parameters()).device
    rows = [row for q in queries for row in (q, q.against) if row is not None]
    # The pieces of a verb are read one after another, each behind those before it.
    given = [[*row.ids, *row.verb[:-1]] for row in rows]
    pad = getattr(model.config, "pad_token_id", None)
    if pad is None and rows[0].position is None and len(rows) > 1:
        return [margin for q in queries for margin in margins(model, [q])]
    width = max(map(len, given))
    ids = torch.full((len(given), width), pad or 0, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, own in enumerate(given):
        ids[i, : len(own)] = torch.tensor(own)
        mask[i, : len(own)] = 1
    logits = model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits.float().cpu()
    values = iter([_value(logits[i], row) for i, row in enumerate(rows)])
    return [next(values) - (0.0 if q.against is None else next(values)) for q in queries]


def _value(logits: torch.Tensor, row: Query) -> float:
    """The log-odds of two forms, or the log-probability of the one form that there is."""
    if row.position is None or row.wrong is not None:
        at = logits if row.position is None else logits[row.position]
        return float(at[row.right] - at[row.wrong])
    found = logits[row.position : row.position + len(row.verb)].log_softmax(-1)
    return float(sum(found[i, token] for i, token in enumerate(row.verb)))
