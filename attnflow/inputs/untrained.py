"""Weights that no training has seen: those that a saved model lacks, which loading draws at random.

transformers marks each weight that it reads from a file (``_is_hf_initialized``) and only logs which ones it made up.
The marks tell them apart here: such a weight has no mark, other weights of the model have one, and nothing has written
to it since it was drawn. A model that was built from a configuration has no marks and counts as trained. So does a head
after its first step of training.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import nn

from attnflow.errors import AttnFlowWarning, InputError
from attnflow.inputs.running import parts_of, unwrap
from attnflow.numbers import truth

MARK = "_is_hf_initialized"
_ACCEPTED: ContextVar[bool] = ContextVar("untrained weights are accepted", default=False)


def untrained(model: Any) -> tuple[str, ...]:
    """Names of the weights that were drawn at random when the model was loaded, and that its output depends on.

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> sizes = dict(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    >>> untrained(BertForSequenceClassification(BertConfig(**sizes)))  # built, not loaded
    ()
    """
    module = unwrap(model)
    if not any(getattr(weight, MARK, False) for part in parts_of(module) for weight in part._parameters.values()):
        return ()
    weights = dict(module.named_parameters())
    patterns = getattr(module, "_keys_to_ignore_on_load_missing", None) or ()
    return tuple(
        name
        for name, weight in weights.items()
        if not getattr(weight, MARK, False)
        and _as_drawn(weight)
        and not _unread(module, name)
        and not any(re.search(pattern, name) for pattern in patterns)
    )


def _as_drawn(weight: nn.Parameter) -> bool:
    """True if nothing has written to the weight since it was drawn, which is the first time that it is written to."""
    try:
        return weight._version <= 1
    except RuntimeError:  # a tensor of inference mode counts nothing
        return False


def _unread(module: nn.Module, name: str) -> bool:
    """True for the pooler of a model without a head: what is explained there are the states before it."""
    return getattr(module, "base_model", None) is module and name.split(".")[0] == "pooler"


def untrained_notes(model: Any) -> tuple[str, ...]:
    """What a result says of such a model."""
    names = untrained(model)
    if not names:
        return ()
    return (
        f"Random weights: {_listed(names)} {'is' if len(names) == 1 else 'are'} not in the saved model and "
        f"{'was' if len(names) == 1 else 'were'} drawn at random when it was loaded. What the model answers is chance.",
    )


def check_trained(model: Any, what: str) -> None:
    """Refuse to explain the answer of a model whose head is chance, unless that was asked for (:func:`accepting`).

    Args:
        what: what would explain it: "gradient", "compare", …
    """
    names = untrained(model)
    if not names:
        return
    if _ACCEPTED.get():
        warnings.warn(untrained_notes(model)[0], AttnFlowWarning, stacklevel=3)
        return
    raise InputError(
        f"{what} explains what the model answers, and {_listed(names)} of {type(unwrap(model)).__name__} "
        f"{'is' if len(names) == 1 else 'are'} not in the saved model: drawn at random when it was loaded, other ones "
        "each time. Load a model that was trained for this task, train the head first, or ask for it as it is:  "
        "untrained=True"
    )


@contextmanager
def accepting(untrained: bool) -> Iterator[None]:
    """In here :func:`check_trained` lets a random head pass, with a warning, where ``untrained`` is True."""
    token = _ACCEPTED.set(truth(untrained, "untrained") or _ACCEPTED.get())
    try:
        yield
    finally:
        _ACCEPTED.reset(token)


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} other weights"
