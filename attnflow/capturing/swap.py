"""Putting other weights into a call of attention, so that the model's own code computes the output from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from attnflow.errors import CaptureError, ShapeError

SOFTMAXES = {F.softmax, torch.softmax, torch.Tensor.softmax, torch.special.softmax}
"""The ways in which modelling files call the softmax."""


class _Swap(TorchFunctionMode):
    """Returns ``changed`` in place of the first softmax of the right shape."""

    def __init__(self, old: torch.Tensor, changed: torch.Tensor) -> None:
        super().__init__()
        self.old, self.changed, self.done = old, changed, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func not in SOFTMAXES or self.done:
            return out
        *lead, keys = self.old.shape
        if out.shape == self.old.shape:
            self.done = True
            return self.changed.to(out.dtype)
        if out.shape == (*lead, keys + 1):
            # One column more is a learned sink: it takes what the new weights leave.
            self.done = True
            rest = (1 - self.changed.sum(-1, keepdim=True)).clamp(min=0)
            return torch.cat([self.changed, rest], -1).to(out.dtype)
        return out


def swapped(
    eager: Callable[..., Any], call: Any, old: torch.Tensor, changed: torch.Tensor, module: Any, *args: Any, **kw: Any
) -> tuple[Any, torch.Tensor]:
    """(output, weights) of ``eager`` with its weights replaced."""
    check_shape(call, old, changed)
    mode = _Swap(old, changed)
    with mode:
        out, weights = eager(module, *args, **kw)
    if not mode.done:
        raise CaptureError(
            f"replace: the softmax of {call.name} ({type(module).__name__}) was not found inside its own attention "
            "function, so its output could not be computed from the new weights."
        )
    return out, weights


def check_shape(call: Any, old: torch.Tensor, changed: Any) -> None:
    """An error if a replacement does not fit the weights that it replaces."""
    if not isinstance(changed, torch.Tensor) or changed.shape != old.shape:
        what = tuple(changed.shape) if isinstance(changed, torch.Tensor) else type(changed).__name__
        raise ShapeError(
            f"replace returned {what} for {call.name}, and its weights have shape {tuple(old.shape)} "
            "[batch, heads, queries, keys]. Return a tensor of that shape, or None to leave them."
        )


def bound(func: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments of a call by name, with defaults."""
    found = inspect.signature(func).bind(*args, **(kwargs or {}))
    found.apply_defaults()
    return dict(found.arguments)
