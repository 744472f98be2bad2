"""The number whose gradient with respect to the attention weights is taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from attnflow.capturing.session import Record
from attnflow.errors import CaptureError, SelectionError
from attnflow.numbers import is_whole, whole, wholes

Target = bool | int | Sequence[int] | Callable[[Any], torch.Tensor]


def fill(records: Sequence[Record], outputs: Any, target: Target, settings: dict[str, Any]) -> None:
    """Give every record the gradient of the target with respect to its weights, without touching any ``.grad``."""
    value = scalar(outputs, target, settings)
    live = [r.live for r in records if r.live is not None and r.live.requires_grad]
    if len(live) < len(records):
        raise CaptureError("The attention weights are not in the autograd graph: this model cuts it.")
    found = torch.autograd.grad(value.sum(), live, allow_unused=True)
    for record, weights, gradient in zip(records, live, found, strict=True):
        gradient = torch.zeros_like(weights) if gradient is None else gradient
        shaped = gradient.reshape(-1, record.heads or gradient.shape[1], *gradient.shape[-2:])
        record.gradient = shaped.to(record.weights.dtype)
        record.live = None


def scalar(outputs: Any, target: Target, settings: dict[str, Any]) -> torch.Tensor:
    """One number per example: ``[batch]``.

    ``True`` takes what the model predicted (the greatest logit; of a language model at the last position), a number
    takes that class or token id, a list one for each example, a function gets the model's outputs.
    """
    if callable(target):
        value = target(outputs)
        if not isinstance(value, torch.Tensor):
            raise SelectionError(f"gradients= returned a {type(value).__name__}; it must return a tensor.")
        settings["gradients"] = getattr(target, "__name__", "function")
        return value
    logits = _logits(outputs)
    rows = logits[:, -1] if logits.ndim == 3 else logits
    if target is True:
        chosen = rows.argmax(-1)
    else:
        listed = [whole(target, "gradients")] * rows.shape[0] if is_whole(target) else wholes(target, "gradients")
        if len(listed) != rows.shape[0]:
            raise SelectionError(f"gradients= names {len(listed)} targets for {rows.shape[0]} examples.")
        wrong = [t for t in listed if not -rows.shape[-1] <= t < rows.shape[-1]]
        if wrong:
            raise SelectionError(
                f"gradients={wrong[0]}, but the model has {rows.shape[-1]} outputs: use 0 to {rows.shape[-1] - 1}."
            )
        chosen = torch.tensor(listed, device=rows.device)
    settings["gradients"] = [int(c) for c in chosen]
    return rows.gather(-1, chosen[:, None])[:, 0]


def _logits(outputs: Any) -> torch.Tensor:
    if isinstance(outputs, Mapping):
        for name in ("logits", "start_logits", "logits_per_image", "prediction_logits"):
            value = outputs.get(name)
            if isinstance(value, torch.Tensor) and value.ndim in (2, 3):
                return value
        names = ", ".join(map(str, outputs))
        raise SelectionError(
            f"gradients= needs a number to differentiate, and the model returned no logits ({names}). Give a "
            "function of its outputs:  gradients=lambda out: out.last_hidden_state[:, 0].norm(dim=-1)"
        )
    if isinstance(outputs, torch.Tensor) and outputs.ndim in (2, 3):
        return outputs
    raise SelectionError(f"gradients= needs logits, and the model returned a {type(outputs).__name__}.")
