"""What both probes need of a model: its kind, the odds of two words at a position, and the scores of every method."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attnflow.comparing.scorer import Scorer
from attnflow.errors import InputError, SelectionError
from attnflow.inputs.example import one_example
from attnflow.inputs.running import undisturbed
from attnflow.relevance import Relevance
from attnflow.scoring.registry import calls

KINDS = ("classifier", "masked", "causal")


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
    if name.endswith("ForMaskedLM") or name in ("BertForPreTraining", "AlbertForPreTraining"):
        return "masked"
    ask = getattr(model, "can_generate", None)
    if callable(ask) and ask() and not getattr(config, "is_encoder_decoder", False):
        return "causal"
    wanted = f"a classifier with the labels {', '.join(labels)}, " if labels else ""
    raise InputError(
        f"{name} has none of the heads that this probe reads: it needs {wanted}a masked or a causal language model. "
        "Load it with its head:  AutoModelForMaskedLM.from_pretrained(name), or AutoModelForCausalLM"
    )


def word_ids(tokenizer: Any, word: str, spaced: bool = True) -> list[int]:
    """The ids of a word inside a sentence: after a space, where that makes a difference to the tokenizer."""
    bare = list(tokenizer(word, add_special_tokens=False)["input_ids"])
    if not spaced:
        return bare
    # A word between spaces is not always one token more than the space: compare against a word that stands before it.
    lead = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    both = list(tokenizer(f"a {word}", add_special_tokens=False)["input_ids"])
    return both[len(lead) :] if both[: len(lead)] == lead and len(both) > len(lead) else bare


def encode(tokenizer: Any, text: str) -> Any:
    """Tensors of one text, with what the tokenizer puts around it."""
    return tokenizer(text, return_tensors="pt")


@torch.no_grad()
def log_probabilities(model: Any, encoding: Mapping[str, Any], position: int, count: int = 1) -> torch.Tensor:
    """``[count, vocabulary]``: log-probabilities of the model at ``count`` positions of one text, from ``position``."""
    device = next(model.parameters()).device
    inputs = {k: v.to(device) for k, v in encoding.items() if k in ("input_ids", "attention_mask", "token_type_ids")}
    logits = model(**inputs).logits
    return torch.log_softmax(logits[0, position : position + count].float(), -1).cpu()


def scores(
    model: Any,
    tokenizer: Any,
    encoding: Any,
    methods: Sequence[str],
    position: int | str,
    target: Any,
    read: int | None = None,
    **options: Any,
) -> dict[str, Relevance]:
    """Scores of every method for one output position of one example: rows are layers, columns input positions.

    Args:
        position: the row of attention: the position at which the model decides.
        target: the class or token, or pair of them, that is explained.
        read: the output position at which it is read; None where the model gives one output for the whole text.
        options: given to those methods that take them (``residual``, ``blank``, ``reduce``).
    """
    with undisturbed(model) as module:
        example = one_example(module, tokenizer, encoding)
        goal, _ = example.goal(target, read, None)
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
