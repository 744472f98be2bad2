"""Attention while a model trains: seen and changed inside the autograd graph, dropout as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from attnflow.capturing.session import Replace, Session
from attnflow.capturing.state import prepared
from attnflow.capturing.survey import survey
from attnflow.capturing.tap import tapped
from attnflow.errors import CaptureError
from attnflow.inputs.running import unwrap


@contextmanager
def live(model: Any, function: Replace) -> Iterator[None]:
    """While the block lasts, ``function(call, weights)`` sees the weights of every call of attention.

    The weights ``[batch, heads, queries, keys]`` are those that come out of the softmax, before dropout, in the
    autograd graph; a tensor that is returned takes their place, None leaves them. Unlike :func:`capture`, nothing is
    recorded and the model stays in the mode it is in, so that it can be trained inside the block.

    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=30)
    >>> model, shapes = BertModel(BertConfig(**sizes)).train(), []
    >>> with live(model, lambda call, weights: shapes.append((*weights.shape, weights.requires_grad))):
    ...     out = model(torch.tensor([[5, 6, 7]]))
    >>> shapes
    [(1, 2, 3, 3, True)]
    """
    module = unwrap(model)
    found = survey(module)
    if not found.sites:
        raise CaptureError(
            f"{type(module).__name__} has no attention module that can be watched while it trains. Use a model with "
            "softmax attention, for instance a BertForSequenceClassification."
        )
    # Through the tap, because the weights that attention functions return have been through dropout already.
    session = Session(found, layers=frozenset(), replace=function, route="tap")
    handle = module.register_forward_hook(_forgetting(session), always_call=True)
    try:
        with prepared(module, session, dropout=True), tapped(session):
            yield
    finally:
        handle.remove()


def _forgetting(session: Session) -> Any:
    """Training runs a model many thousand times, and what is known of past runs would pile up."""

    def forget(module: nn.Module, args: Any, output: Any) -> None:
        if session.depth == 0:
            session.entries.clear()
            session.parts.clear()
            session.given.clear()

    return forget
