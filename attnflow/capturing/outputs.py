"""The last route: what the model itself returns for ``output_attentions=True`` in eager.

This route is used only where neither the interface nor the softmax shows token-to-token attention. What the model
returns is checked to be probabilities: some models return states, scores before the softmax, or bands under that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from attnflow.capturing import bands
from attnflow.capturing.session import Call, Record, Session
from attnflow.capturing.survey import Site
from attnflow.errors import CaptureError

_FIELDS = {
    "attentions": ("self", ""),
    "encoder_attentions": ("self", "encoder"),
    "decoder_attentions": ("self", "decoder"),
    "cross_attentions": ("cross", "decoder"),
    "vision_attentions": ("self", "vision"),
    "text_attentions": ("self", "text"),
}


def run(model: nn.Module, batch: Mapping[str, Any], session: Session) -> Any:
    """Run the model with ``output_attentions=True`` and record what it returns."""
    session.quiet = True
    outputs = model(**{**batch, "output_attentions": True, "return_dict": True})
    length = int(batch["input_ids"].shape[1]) if isinstance(batch.get("input_ids"), torch.Tensor) else 0
    for name, (kind, tower) in _FIELDS.items():
        layers = outputs.get(name) if isinstance(outputs, Mapping) else None
        if not isinstance(layers, tuple | list) or not layers:
            continue
        layers = bands.dense(model, outputs, name, layers, length)
        for number, weights in enumerate(layers):
            _record(model, session, name, kind, tower, number, weights, len(layers))
    return outputs


def _record(
    model: nn.Module, session: Session, field: str, kind: str, tower: str, number: int, weights: Any, depth: int
) -> None:
    where = f"{field}[{number}]"
    if not isinstance(weights, torch.Tensor) or weights.ndim != 4:
        what = tuple(weights.shape) if isinstance(weights, torch.Tensor) else type(weights).__name__
        if isinstance(weights, torch.Tensor) and weights.ndim == 5:
            raise CaptureError(
                f"{type(model).__name__}.{where} is {what}: beyond one chunk this model attends in chunks of "
                "positions, which may be sorted by a hash: no matrix of queries × keys. Give it a shorter text."
            )
        raise CaptureError(
            f"{type(model).__name__}.{where} is {what}, not [batch, heads, queries, keys]: this model does not "
            "return attention between positions, and it has no softmax that could be tapped."
        )
    sums = weights.detach().float().sum(-1)
    if not torch.isfinite(sums).all() or weights.detach().min() < 0 or sums.max() > 1.05:
        raise CaptureError(
            f"{type(model).__name__}.{where} is not a probability matrix: rows sum to {sums.min():.2f} … "
            f"{sums.max():.2f}. What this model returns as attentions is not attention."
        )
    site = Site(where, model, None, False, tower, number, depth)
    call = Call(where, number, kind, tower, session.runs - 1 if session.runs else 0, depth=depth)
    if not session.wants(call):
        return
    record = Record(
        call, site, session.reduction.whole(weights), weights.shape[-2], weights.shape[-1],
        "output_attentions", weights.dtype,
    )  # fmt: skip
    if session.gradients:
        record.live, record.heads = weights, weights.shape[1]
    session.keep(record)
