"""Attention in bands, blocks and chunks as ordinary matrices: Longformer, LED, BigBird, LongT5, CANINE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

FAMILIES = {"longformer", "led"}
"""Model types whose local attention comes as a band around the diagonal."""


def dense(model: Any, outputs: Mapping[str, Any], field: str, layers: Sequence[Any], length: int) -> list[Any]:
    """``[batch, heads, n, global + window + 1]`` per layer → ``[batch, heads, n, n]``; other families unchanged."""
    kind = getattr(getattr(model, "config", None), "model_type", "")
    if kind not in FAMILIES or field in ("decoder_attentions", "cross_attentions"):
        return list(layers)
    globals_ = outputs.get("encoder_global_attentions" if kind == "led" else "global_attentions")
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


_SPARSE = {"BigBirdBlockSparseAttention", "BigBirdPegasusBlockSparseAttention"}
_BLOCKS = {"LongT5LocalAttention"}
_GLOBAL = {"LongT5TransientGlobalAttention"}
REPLACING = {"big_bird", "bigbird_pegasus"}
"""Model types that put other attention modules in place of their own when they are given a short text."""


def sparse(module: nn.Module) -> bool:
    """True for BigBird's module, which takes five softmaxes over blocks.

    The matrix that it returns lacks what is given to a block twice, as the first one is outside training.
    """
    return type(module).__name__ in _SPARSE


def five_parts(parts: Sequence[torch.Tensor], n: int) -> torch.Tensor:
    """BigBird's rows of the first, the second, the middle, the last but one and the last block → ``[..., n, n]``.

    The first and last block see everything and are seen by all; the others also see their neighbours and "random"
    blocks, all of which are the first one outside training.
    """
    first, second, middle, fourth, last = parts
    size, whole = first.shape[2], first.shape[3]
    out = first.new_zeros(*first.shape[:2], whole, whole)

    def add(row: int, weights: torch.Tensor, blocks: Sequence[int]) -> None:
        for i, part in enumerate(torch.split(weights, size, -1)):
            column = (blocks[i] if i < len(blocks) else 0) % (whole // size) * size
            out[:, :, row * size : (row + 1) * size, column : column + size] += part

    out[:, :, :size], out[:, :, -size:] = first, last
    add(1, second, (0, 1, 2, -1))
    for i in range(middle.shape[2]):
        blocks = middle.shape[-1] // size
        add(i + 2, middle[:, :, i], (0, i + 1, i + 2, i + 3, *(0,) * (blocks - 5), -1))
    add(whole // size - 2, fourth, (0, -3, -2, -1))
    return out[:, :, :n, :n]


def unusual(module: nn.Module) -> bool:
    """True for a module whose softmaxes go over blocks of positions."""
    return type(module).__name__ in _SPARSE | _BLOCKS | _GLOBAL


def with_summaries(module: nn.Module) -> bool:
    """True for a module whose keys are positions and summaries of blocks of them."""
    return type(module).__name__ in _GLOBAL


def three_blocks(weights: torch.Tensor, n: int) -> torch.Tensor:
    """``[batch, blocks, heads, b, 3 · b]`` → ``[batch, heads, n, n]``: block *i* sees blocks *i − 1* to *i + 1*."""
    batch, blocks, heads, rows, _ = weights.shape
    out = weights.new_zeros(batch, heads, blocks * rows, (blocks + 2) * rows)
    for i in range(blocks):
        out[:, :, i * rows : (i + 1) * rows, i * rows : (i + 3) * rows] = weights[:, i]
    return out[:, :, :n, rows : rows + n]


def chunk_bounds(parent: Any, n: int) -> list[tuple[int, int, int, int]]:
    """CANINE's local attention over ``n`` characters: (first query, last query, first key, last key) of each call."""
    rows, columns, start = [], [], 0
    if parent.first_position_attends_to_all:
        rows, columns, start = [(0, 1)], [(0, n)], 1
    rows += [(i, min(n, i + parent.attend_from_chunk_width)) for i in range(start, n, parent.attend_from_chunk_stride)]
    columns += [(i, min(n, i + parent.attend_to_chunk_width)) for i in range(0, n, parent.attend_to_chunk_stride)]
    return [(*r, *c) for r, c in zip(rows, columns, strict=True)]


def from_chunks(parent: Any, parts: Sequence[torch.Tensor], n: int) -> torch.Tensor:
    """``[..., queries, keys]`` of each chunk → ``[..., n, n]``."""
    out = parts[0].new_zeros(*parts[0].shape[:-2], n, n)
    for part, (top, bottom, left, right) in zip(parts, chunk_bounds(parent, n), strict=True):
        first = int(parent.always_attend_to_first_position)
        out[..., top:bottom, left:right] += part[..., first:]
        if first:
            out[..., top:bottom, 0] += part[..., 0]
    return out
