"""Attention functions that the user has registered: the model computes with them, so they are not switched to eager.

``AttentionInterface.register("mine", function)`` may compute anything. While a capture lasts, the function is called as
always and what it returns is checked: its weights count if weights × values is its output; without weights, those of
the model's own eager function count if that gives the same output; else the capture is refused.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from attnflow.capturing.rows import causal_mask
from attnflow.capturing.session import Record, Session, watching
from attnflow.capturing.survey import Site, class_of, own_eager
from attnflow.errors import CaptureError

Function = Callable[..., Any]


def is_own(name: Any) -> bool:
    """True if the function under a name is not one of transformers'."""
    # Only a capture imports them: they cost three seconds.
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    found = ALL_ATTENTION_FUNCTIONS.get(name) if isinstance(name, str) else None
    if found is None:
        return False
    where = str(getattr(inspect.unwrap(found), "__module__", "") or "")
    return not where.startswith(("transformers.", "attnflow."))


def checked(name: str, function: Function) -> Function:
    """The function under a name, with what it returns handed to the session of the calling thread."""

    # The names are those of transformers' own functions: some models give the mask by name.
    @functools.wraps(function)
    def dispatch(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        made = function(module, query, key, value, attention_mask, *args, **kwargs)
        session = watching(module)
        site = session.survey.sites.get(id(module)) if session is not None else None
        if session is not None and site is not None and not session.quiet:
            with session.hushed():
                _take(session, site, name, function, made, (query, key, value, attention_mask), kwargs)
        return made

    return dispatch


def _take(
    session: Session, site: Site, name: str, function: Function, made: Any, given: tuple[Any, ...], kwargs: Any
) -> None:
    query, key, value, mask = given
    if session.replace is not None or session.gradients or session.watch is not None:
        what = "edges=" if session.watch is not None else "replace=" if session.replace is not None else "gradients="
        raise CaptureError(
            f"{what} was given, and {site.name} computes attention with a function of your own ({name!r}, "
            f"{_called(function)}), into which no other weights can be put. Load the model with "
            "attn_implementation='eager'."
        )
    out, weights = made if isinstance(made, tuple) else (made, None)
    call = session.call(site)
    if not _explains(weights, value, out, query, key):
        weights = _of_eager(site, query, key, value, mask, kwargs, out)
        if weights is None:
            session.refused.append(_refusal(site, name, function))
            return
        session.notes.append(
            f"{name!r} is a function of your own that returns no weights: these are eager's, with the same output."
        )
    if session.wants(call):
        kept = session.reduction.whole(weights)
        session.keep(Record(call, site, kept, weights.shape[-2], weights.shape[-1], "interface", query.dtype))


def _explains(weights: Any, value: torch.Tensor, out: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> bool:
    """True if these are weights [batch, heads, queries, keys] and weights × values is the output."""
    if not isinstance(weights, torch.Tensor) or weights.ndim != 4 or value.ndim != 4 or not weights.is_floating_point():
        return False
    if tuple(weights.shape) != (*query.shape[:3], key.shape[2]) or weights.shape[1] % value.shape[1]:
        return False
    if float(weights.min()) < 0 or float(weights.sum(-1).max()) > 1.01:
        return False
    with torch.autocast(value.device.type, enabled=False):
        mixed = weights.float() @ value.float().repeat_interleave(weights.shape[1] // value.shape[1], 1)
    return _same(mixed.transpose(1, 2), out)


def _of_eager(
    site: Site, query: Any, key: Any, value: Any, mask: Any, kwargs: dict[str, Any], out: Any
) -> torch.Tensor | None:
    """The weights of the model's own eager function, if its output is the same."""
    eager = own_eager(class_of(site.module))
    if eager is None:
        return None
    if isinstance(mask, torch.Tensor) and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, torch.finfo(query.dtype).min)
    causal = kwargs.get("is_causal")
    causal = getattr(site.module, "is_causal", False) if causal is None else causal
    masks = [mask]
    if mask is None and causal and query.shape[2] > 1:
        masks.append(causal_mask(torch.arange(query.shape[2], device=query.device), key, query.dtype))
    for one in masks:
        made, weights = eager(site.module, query, key, value, one, **kwargs)
        if isinstance(weights, torch.Tensor) and weights.ndim == 4 and _same(made, out):
            return weights
    return None


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor) or one.shape != other.shape:
        return False
    # Half precision rounds the two in different places.
    slack = 2e-2 if other.dtype in (torch.float16, torch.bfloat16) else 1e-4
    return bool(torch.allclose(one.float(), other.float(), atol=slack * float(other.float().abs().max()) + 1e-6))


def _refusal(site: Site, name: str, function: Function) -> CaptureError:
    return CaptureError(
        f"{site.name} computes attention with a function of your own ({name!r}, {_called(function)}), which returns no "
        "weights that give its output, and the model's own eager function gives another output. Return (output, "
        "weights) from it, or load the model with attn_implementation='eager'."
    )


def _called(function: Function) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
