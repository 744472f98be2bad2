"""What both probes need: the kind of a model, its log-probabilities, the scores of every method, unknown words."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch

from attnflow.comparing.scorer import Scorer
from attnflow.errors import AttnFlowWarning, InputError, SelectionError
from attnflow.inputs.example import one_example
from attnflow.inputs.limits import position_limit
from attnflow.inputs.running import generates, undisturbed
from attnflow.probes.rates import Rate
from attnflow.relevance import Relevance
from attnflow.scoring.registry import calls

T = TypeVar("T")
MARK = "<unk>"


def kind_of(model: Any, labels: Sequence[str] = ()) -> str:
    """ "classifier" (its labels are ``labels``), "masked" or "causal" language model.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> kind_of(GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=10)))
    'causal'
    """
    config = getattr(model, "config", None)
    known = {str(v).lower() for v in (getattr(config, "id2label", None) or {}).values()}
    if labels and known == set(labels):
        return "classifier"
    name = type(model).__name__
    if name.endswith("ForMaskedLM"):
        return "masked"
    if generates(model) and not getattr(config, "is_encoder_decoder", False):
        return "causal"
    wanted = f"a classifier with the labels {', '.join(labels)}, " if labels else ""
    raise InputError(
        f"{name} has none of the heads that this probe reads: it needs {wanted}a masked or a causal language model. "
        "Load it with its head:  AutoModelForMaskedLM.from_pretrained(name), or AutoModelForCausalLM"
    )


def word_ids(tokenizer: Any, word: str) -> list[int]:
    """The ids of a word inside a sentence: after a space, where that makes a difference to the tokenizer."""
    # A word between spaces is not always one token more than the space: compare against a word that stands before it.
    lead = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    both = list(tokenizer(f"a {word}", add_special_tokens=False)["input_ids"])
    if both[: len(lead)] == lead and len(both) > len(lead):
        return both[len(lead) :]
    return list(tokenizer(word, add_special_tokens=False)["input_ids"])


def fits(model: Any, count: int) -> bool:
    """Whether the model has positions for so many tokens.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=10, n_positions=4))
    >>> fits(model, 4), fits(model, 5)
    (True, False)
    """
    limit = position_limit(model)
    return limit is None or count <= limit


def right_padded(rows: Sequence[Sequence[int]], pad: int | None) -> dict[str, torch.Tensor]:
    """Rows of ids as one batch; shorter ones are padded on the right.

    >>> right_padded([[5, 6], [7]], 0)["attention_mask"].tolist()
    [[1, 1], [1, 0]]
    """
    ids = torch.full((len(rows), max(map(len, rows))), pad or 0, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, own in enumerate(rows):
        ids[i, : len(own)] = torch.tensor(own)
        mask[i, : len(own)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def scores(
    model: Any,
    tokenizer: Any,
    encoding: Any,
    methods: Sequence[str],
    position: int | None,
    target: Any,
    **options: Any,
) -> dict[str, Relevance]:
    """Scores of every method for one output position of one example: rows are layers, columns input positions.

    Args:
        position: the output position at which the model decides, and whose attention is read; None for a classifier,
            which is read at [CLS], or at the last position of a causal one.
        target: the class or token, or pair of them, that is explained.
        options: given to those methods that take them (``residual``, ``blank``, ``reduce``).
    """
    with undisturbed(model) as module:
        example = one_example(module, tokenizer, encoding)
        goal, _ = example.goal(target, position, None)
        scorer = Scorer(example, goal, position)
        out: dict[str, Relevance] = {}
        for call in calls("methods", tuple(methods)):
            # Blank-out of a pair of tokens compares their logits: probabilities of both may be tiny.
            pair = {"score": "logit"} if isinstance(target, tuple) and "blank" in call.method.options else {}
            found = scorer.score(call.offered(**options, **pair)).result
            if found is None:
                raise SelectionError(f"{call.name} gave no Relevance, and the probe reads its tokens and layers.")
            out[call.name] = found
    return out


_NO_SPACE_BEFORE = re.compile(r" (?=(?:[.,;:!?%)\]]|'s\b|n't\b|'re\b|'ve\b|'ll\b|'d\b))")


def natural(text: str) -> str:
    """A tokenised sentence as people write it: no spaces before punctuation, a capital in front.

    >>> natural("as a rule , the town 's -LRB- old -RRB- walls")
    "As a rule, the town's (old) walls"
    """
    for mark, sign in (("-LRB-", "("), ("-RRB-", ")"), ("``", '"'), ("''", '"')):
        text = text.replace(mark, sign)
    text = _NO_SPACE_BEFORE.sub("", text).replace("( ", "(")
    return text[:1].upper() + text[1:]


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
