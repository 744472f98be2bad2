"""softmax(q·kᵀ·scale + mask)·v in blocks of query rows, in place, without the keys that the mask hides.

This is used where the model's own eager function is exactly this, which is read from its code and checked by numbers
on the first call of each module class. Grouped heads are not repeated: the queries of a group share one product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from attnflow.capturing import memory
from attnflow.capturing.reduce import Reduction
from attnflow.capturing.survey import Eager, is_plain

BLOCK_NUMBERS = 1 << 20
"""How many scores a block holds if no block size is given: 4 MiB, about what a processor's cache takes."""

HELD = 1 << 23
"""How many weights of one call are held at once where rows can be computed again: 32 MiB."""

_verdicts: dict[tuple[type, Any], bool] = {}

Step = tuple[int, int, int, int, int, int]
"""First row, last row, first key, last key of a block, and between which keys its mask is not zero."""

Plans = dict[tuple[int, int], tuple[torch.Tensor, list[Step]]]
"""The blocks of rows for a mask and a block size. The mask is held so that its id stays its own."""


def usable(
    eager: Eager,
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    args: tuple[Any, ...],
    kwargs: Any,
    graph: bool = False,
) -> bool:
    """True if this call may be computed here instead of by the model's own function.

    ``graph``: also where autograd is to follow, by a caller that computes in a way that it can.
    """
    if args or not is_plain(eager) or not all(t.ndim == 4 for t in (query, key, value)):
        return False
    if torch.is_autocast_enabled(query.device.type):
        return False  # the model's own function then rounds in between
    if query.dtype not in (torch.float32, torch.float64) or query.dtype != key.dtype or query.dtype != value.dtype:
        return False
    if not graph and torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value)):
        return False
    if query.shape[1] % key.shape[1] or key.shape[1] != value.shape[1] or kwargs.get("dropout"):
        return False
    if mask is not None and not _fits(mask, query, key):
        return False
    known = _verdicts.get((type(module), eager))
    if known is None:
        known = _agrees(eager, module, query, key, value, mask, kwargs)
        _verdicts[type(module), eager] = known
    return known


def _fits(mask: Any, query: torch.Tensor, key: torch.Tensor) -> bool:
    if not isinstance(mask, torch.Tensor) or mask.ndim != 4 or not mask.is_floating_point():
        return False
    wanted = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return all(have in (1, want) for have, want in zip(mask.shape, wanted, strict=True)) and (
        mask.shape[-1] == wanted[-1]
    )


def _agrees(eager: Eager, module: Any, query: Any, key: Any, value: Any, mask: Any, kwargs: dict[str, Any]) -> bool:
    """Two rows by the model's own function and by this one."""
    query, key, value = query.detach(), key.detach(), value.detach()
    rows = slice(max(query.shape[2] - 2, 0), None)
    part = mask[:, :, rows] if mask is not None and mask.shape[2] > 1 else mask
    out, weights = eager(module, query[:, :, rows], key, value, part, **kwargs)
    mine, kept = attention(
        query[:, :, rows], key, value, part, kwargs.get("scaling"), Reduction("all", query.dtype), None, {}
    )
    return (
        weights is not None
        and kept is not None
        and weights.shape == kept.shape
        and out.shape == mine.shape
        and torch.allclose(weights, kept, atol=1e-5)
        and torch.allclose(out, mine, atol=1e-4, rtol=1e-4)
    )


def block_rows(query: torch.Tensor, key: torch.Tensor, block: int | None) -> int:
    """Number of query rows in a block."""
    if block is not None:
        return block
    one = query.shape[0] * query.shape[1] * key.shape[2]
    return max(16, min(query.shape[2], BLOCK_NUMBERS // max(one, 1)))


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    reduction: Reduction | None,
    block: int | None,
    plans: Plans,
    held: Held | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(output ``[batch, queries, heads, width]``, reduced weights or None) of one call.

    ``held``: memory for the weights of all heads, where ``reduction`` keeps them as they are.
    """
    batch, heads, rows, _ = query.shape
    groups, keys = key.shape[1], key.shape[2]
    size = block_rows(query, key, block)
    steps = _plan(mask, rows, keys, size, plans)
    if held is not None:
        kept: torch.Tensor | None = held.cleared(steps)
    else:
        kept = reduction.buffer(batch, heads, rows, keys, query.device) if reduction is not None else None
    out = query.new_empty(batch, rows, heads, value.shape[-1])
    values = value.reshape(batch * groups, keys, value.shape[-1])
    straight = kept is not None and _as_kept(kept, query, steps)
    # One piece of memory for all blocks stays in the processor's cache.
    room = kept.view(-1) if kept is not None and straight else query.new_empty(batch * heads * min(size, rows) * keys)
    for start, stop, first, last, weights in blocks(query, key, mask, scaling, block, plans, room):
        n = stop - start
        if kept is not None and reduction is not None and not straight:
            reduction.put(kept, weights, start, first)
        mixed = torch.bmm(weights.view(batch * groups, -1, last - first), values[:, first:last])
        out[:, start:stop] = mixed.view(batch, heads, n, -1).transpose(1, 2)
    return out, kept


def _as_kept(kept: torch.Tensor, query: torch.Tensor, steps: list[Step]) -> bool:
    """True if one block has all weights in the form in which they are kept, so that they may be computed there."""
    alike = (kept.ndim, kept.dtype, kept.device) == (4, query.dtype, query.device)
    return alike and len(steps) == 1 and steps[0][2:4] == (0, kept.shape[-1])


def blocks(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    block: int | None,
    plans: Plans,
    room: torch.Tensor | None = None,
) -> Iterator[tuple[int, int, int, int, torch.Tensor]]:
    """(first row, last row, first key, last key, weights ``[batch, heads, rows, keys]``) of each block of rows.

    In ``room``, if it is given, the weights of each block take the place of those before.
    """
    batch, heads, rows, width = query.shape
    groups, keys = key.shape[1], key.shape[2]
    share = heads // groups
    scale = width**-0.5 if scaling is None else scaling
    size = block_rows(query, key, block)
    transposed = key.reshape(batch * groups, keys, width).transpose(1, 2)
    none = query.new_empty(1, 1, 1)
    for start, stop, first, last, low, high in _plan(mask, rows, keys, size, plans):
        n = stop - start
        part = query[:, :, start:stop].reshape(batch * groups, share * n, width)
        shape = (batch * groups, share * n, last - first)
        # The scale is applied to the product, as the model's own function does, so that both round alike.
        given = None if room is None else room[: batch * heads * n * (last - first)].view(shape)
        scores = torch.baddbmm(none, part, transposed[..., first:last], beta=0, alpha=scale, out=given)
        scores = scores.view(batch, heads, n, last - first)
        if mask is not None and high > low:
            shown = mask[:, :, start:stop, low:high] if mask.shape[2] > 1 else mask[..., low:high]
            scores[..., low - first : high - first] += shown
        torch.softmax(scores, -1, out=scores)
        yield start, stop, first, last, scores


@dataclass(eq=False)
class Held:
    """Memory for the weights ``[batch, heads, queries, keys]`` of one call after the other.

    The pages of fresh memory cost more than what is put into them. ``steps`` are the blocks of the call before: outside
    of them there are zeros.
    """

    weights: torch.Tensor
    steps: list[Step] = field(default_factory=list)

    @classmethod
    def of(cls, query: torch.Tensor, key: torch.Tensor) -> Held:
        """Zeros."""
        return cls(memory.zeros((*query.shape[:3], key.shape[2]), query.dtype, query.device))

    def fits(self, query: torch.Tensor, key: torch.Tensor) -> bool:
        """True if it has the form of the weights of a call."""
        form = (self.weights.shape, self.weights.dtype, self.weights.device)
        return form == ((*query.shape[:3], key.shape[2]), query.dtype, query.device)

    def cleared(self, steps: list[Step]) -> torch.Tensor:
        """The weights, with zeros where the blocks of the next call write nothing."""
        if self.steps and self.steps != steps:
            for start, stop, first, last, *_ in steps:
                self.weights[:, :, start:stop, :first] = 0
                self.weights[:, :, start:stop, last:] = 0
        self.steps = list(steps)
        return self.weights


@dataclass(frozen=True, eq=False)
class Again:
    """The weights of one call, which are not held: rows are computed again when they are wanted."""

    query: torch.Tensor
    key: torch.Tensor
    mask: torch.Tensor | None
    scaling: float | None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch, heads, queries, keys."""
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[2]

    @property
    def device(self) -> torch.device:
        """Where they are computed."""
        return self.query.device

    def rows(self, first: int, last: int) -> torch.Tensor:
        """``[batch, heads, last − first, keys]``."""
        batch, heads, _, keys = self.shape
        every, query = Reduction("all", self.query.dtype), self.query[:, :, first:last]
        mask = self.mask if self.mask is None or self.mask.shape[2] == 1 else self.mask[:, :, first:last]
        kept = every.buffer(batch, heads, last - first, keys, self.device)
        for start, _, key, _, weights in blocks(query, self.key, mask, self.scaling, None, {}):
            every.put(kept, weights, start, key)
        return kept

    def pieces(self) -> Iterator[tuple[int, int]]:
        """First and last row of parts that may be held."""
        batch, heads, queries, keys = self.shape
        step = max(1, HELD // (batch * heads * keys))
        for first in range(0, queries, step):
            yield first, min(queries, first + step)


def many(query: torch.Tensor, key: torch.Tensor) -> bool:
    """True if the weights of all heads are more than may be held at once."""
    return query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2] > HELD


def _plan(mask: torch.Tensor | None, rows: int, keys: int, size: int, plans: Plans) -> list[Step]:
    """The blocks of rows; the mask is looked at once, not in every layer."""
    if mask is None:
        return [(i, min(rows, i + size), 0, keys, 0, 0) for i in range(0, rows, size)]
    known = plans.get((id(mask), size))
    if known is not None:
        return known[1]
    hidden = torch.finfo(mask.dtype).min / 2
    made = []
    for start in range(0, rows, size):
        stop = min(rows, start + size)
        part = mask[:, :, start:stop] if mask.shape[2] > 1 else mask
        seen = part > hidden
        first, last = 0, keys
        # A row that may see nothing is spread over all keys, so its block keeps them all.
        if bool(seen.any(-1).all()):
            first, last = _span(seen)
        low, high = _span(part[..., first:last] != 0)
        made.append((start, stop, first, last, first + low, first + high))
    plans[id(mask), size] = (mask, made)
    return made


def _span(cells: torch.Tensor) -> tuple[int, int]:
    """The first column with a true cell, and that behind the last one."""
    columns = torch.nonzero(cells.flatten(0, 2).any(0)).flatten()
    return (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (0, 0)
