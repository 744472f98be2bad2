"""Longformer's and LED's bands as ordinary matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

FAMILIES = {"longformer", "led"}
"""Model types whose local attention comes as a band around the diagonal."""


def dense(
    model: Any, outputs: Mapping[str, Any], field: str, layers: Sequence[Any], length: int, mask: Any
) -> list[Any]:
    """``[batch, heads, n, global + window + 1]`` a layer → ``[batch, heads, n, n]``; other families unchanged."""
    kind = getattr(getattr(model, "config", None), "model_type", "")
    if kind not in FAMILIES or field in ("decoder_attentions", "cross_attentions"):
        return list(layers)
    globals_ = outputs.get("encoder_global_attentions" if kind == "led" else "global_attentions")
    if kind == "longformer" and globals_ is None:
        globals_ = outputs.get("global_attentions")
    windows = model.config.attention_window
    sizes = [windows] * len(layers) if isinstance(windows, int) else list(windows)
    return [
        _dense(layer, globals_[i] if globals_ is not None and len(globals_) > i else None, sizes[i], length)
        for i, layer in enumerate(layers)
    ]


def _dense(band: torch.Tensor, of_globals: torch.Tensor | None, window: int, length: int) -> torch.Tensor:
    """Put each row's band where its keys are.

    The last ``window + 1`` entries of row *i* are its keys *i − window/2 … i + window/2*; entries before them
    are the keys with global attention. Rows of globally attending positions come separately, transposed.
    """
    batch, heads, rows, width = band.shape
    extra = width - window - 1
    n = min(length or rows, rows)
    out = band.new_zeros(batch, heads, n, n)
    half = window // 2
    for i in range(n):
        first, last = max(0, i - half), min(n, i + half + 1)
        out[:, :, i, first:last] = band[:, :, i, extra + first - i + half : extra + last - i + half]
    if extra and of_globals is not None:
        _add_globals(out, band, of_globals, extra, n)
    return out


def _add_globals(out: torch.Tensor, band: torch.Tensor, of_globals: torch.Tensor, extra: int, n: int) -> None:
    """Columns and rows of the positions with global attention.

    Which positions these are is not returned, but their own rows in the band are zero everywhere.
    """
    for b in range(out.shape[0]):
        empty = band[b, :, :n].abs().sum((0, 2)) == 0
        where = torch.nonzero(empty).flatten().tolist()[:extra]
        for g, position in enumerate(where):
            out[b, :, :, position] += band[b, :, :n, g]
        for g, position in enumerate(where):
            out[b, :, position, :] = of_globals[b, :, :n, g]
