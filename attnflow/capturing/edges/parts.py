"""A layer's output at each position as a sum of parts, one for each input position.

    T_i(j) = Σ_h α_h[i, j]·v_h[j]·W_O^h, and the residual stream where j = i
    Σ_j T_i(j) + bias = what the model computed

Kobayashi et al. (2021) take the norm of each part, Ferrando et al. (2022) how much nearer it brings the output.
Rows are output positions, columns input positions.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from attnflow.capturing.edges.kernels import Beside, distances, lengths, products
from attnflow.capturing.edges.steps import Sizes

BLOCK = 1 << 20
"""How many numbers of head vectors, or of parts, are held at once."""

GAP = 48
"""Numbers between two heads: those of one position must not be a power of two apart, or they share a line of cache."""


class Room(threading.local):
    """Memory that is used again from call to call: the pages of fresh memory cost more than what is put into them.

    Each thread has its own, so that one object serves all of them.
    """

    def __init__(self) -> None:
        self.held: dict[str, torch.Tensor] = {}

    def empty(self, name: str, like: torch.Tensor, *shape: int) -> torch.Tensor:
        """A tensor of ``shape`` that may hold anything, until the next one of the same name."""
        numbers, held = math.prod(shape), self.held.get(name)
        if held is None or held.numel() < numbers or (held.dtype, held.device) != (like.dtype, like.device):
            held = self.held[name] = like.new_empty(numbers)
        return held[:numbers].view(shape)

    def tidy(self) -> None:
        """Let go of what is too large to be held until the next capture."""
        self.held = {name: t for name, t in self.held.items() if t.numel() <= 2 * BLOCK and t.device.type == "cpu"}


ROOM = Room()
"""For all captures: there is one after the other in a thread, and each is done with a layer before the next begins."""


@dataclass(eq=False)
class Parts:
    """The parts of one call, after the steps of its chain.

    Attributes:
        weights: ``[B, H, n, m]``.
        values: ``[B, H or a divisor, m, width of a head]``.
        own: for each output position the input position that is itself; None in cross-attention.
        matrix: ``[H · width, e]``: all steps that do not depend on the position.
        scale: ``[B, n]`` or None: the factor of each output position.
        slow: steps that depend on position and channel; they are applied to the vectors.
        residual: ``[B, n, e]`` or None.
        y: ``[B, n, e]``: what the model computed, without other parts of the layer.
        error: how far the sum of all parts, the residual and the biases is from ``y``, and attention's part from the
            model's, relative to their size.
        norms: how many norms were made linear.
        beside: how many other parts of the layer are added at the same place.
        mixed: (these weights, weights × values), once computed.
        known: (this matrix, weights × values × matrix), where the model computed it itself.
        room: memory for head vectors and the matrix.
    """

    weights: torch.Tensor
    values: torch.Tensor
    own: torch.Tensor | None
    sizes: Sizes
    matrix: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    slow: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    residual: torch.Tensor | None = None
    y: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    error: float = 0.0
    norms: int = 0
    beside: int = 0
    mixed: tuple[torch.Tensor, torch.Tensor] | None = None
    known: tuple[torch.Tensor, torch.Tensor] | None = None
    room: Room = field(default_factory=Room)

    @property
    def e(self) -> int:
        """Width of the vectors."""
        return int(self.y.shape[-1])

    @functools.cached_property
    def start(self) -> int | None:
        """The own position of the first output position, if those of the others follow one by one; else None."""
        if self.own is None or len(self.own) == 0:
            return None
        start = int(self.own[0])
        return start if torch.equal(self.own - start, torch.arange(len(self.own), device=self.own.device)) else None

    def rows(self, first: int, last: int) -> slice | torch.Tensor:
        """The output positions whose own position is in a block: slices are many times faster than lists of places."""
        assert self.own is not None
        if self.start is not None:
            begin = min(max(0, first - self.start), len(self.own))
            return slice(begin, max(begin, min(len(self.own), last - self.start)))
        return torch.nonzero((self.own >= first) & (self.own < last)).flatten()

    def itself(self, matrix: torch.Tensor) -> torch.Tensor:
        """``[..., n]`` of ``[..., n, m]``: the number of each output position in the column of its own."""
        assert self.own is not None
        if self.start is not None:
            return matrix.diagonal(self.start, -2, -1)
        return matrix[..., torch.arange(len(self.own), device=matrix.device), self.own]

    def heads(self, first: int, last: int) -> torch.Tensor:
        """``[B, H, m', e]``: what each head makes of each input position from ``first`` to ``last``.

        The memory is used again by the next call.
        """
        assert self.matrix is not None
        size = self.sizes
        values = self.values[:, :, first:last]
        share = size.heads // values.shape[1]
        if share > 1:
            values = values.repeat_interleave(share, 1)
        matrix = self.matrix.view(size.heads, -1, self.matrix.shape[-1])
        numbers = size.batch * (last - first) * matrix.shape[-1]
        out = self.room.empty("heads", values, size.heads, numbers + GAP)[:, :numbers]
        given = values.transpose(0, 1).reshape(size.heads, -1, values.shape[-1])
        torch.bmm(given, matrix, out=out.view(size.heads, -1, matrix.shape[-1]))
        return out.view(len(out), size.batch, last - first, -1).transpose(0, 1)

    def vectors(self, first: int, last: int) -> torch.Tensor:
        """``[B, n, m', e]``: the attention parts themselves, of the input positions from ``first`` to ``last``."""
        weights = self.weights[..., first:last].permute(0, 3, 2, 1)
        t = torch.matmul(weights, self.heads(first, last).transpose(1, 2)).transpose(1, 2)
        for kind, tensor in self.slow:
            t = _slow(kind, tensor, t)
        return t if self.scale is None else t * self.scale[:, :, None, None]

    def attention(self) -> torch.Tensor:
        """``[B, n, e]``: the sum of attention's parts, without residual and biases."""
        assert self.matrix is not None
        # The weights are those of the product, as nothing scales the heads behind a projection.
        out = self.known[1] if self.known and self.known[0] is self.matrix else mixed_values(self) @ self.matrix
        for kind, tensor in self.slow:
            out = _slow(kind, tensor, out[:, :, None])[:, :, 0]
        return out if self.scale is None else out * self.scale[..., None]

    def blocks(self, numbers: int) -> Iterator[tuple[int, int]]:
        """Blocks of input positions; ``numbers`` per position are held."""
        step = max(1, BLOCK // max(numbers, 1))
        for first in range(0, self.sizes.inputs, step):
            yield first, min(self.sizes.inputs, first + step)

    def of_itself(self, heads: torch.Tensor, first: int, last: int) -> tuple[slice | torch.Tensor, torch.Tensor] | None:
        """(rows, ``[B, rows, e]``): the attention part of each output position whose own position is in the block."""
        if self.own is None:
            return None
        rows = self.rows(first, last)
        weights = self.itself(self.weights)[..., rows]
        own = heads[:, :, self.columns(rows, first)]
        t = torch.matmul(weights.permute(0, 2, 1)[:, :, None], own.transpose(1, 2))[:, :, 0]
        return rows, t if self.scale is None else t * self.scale[:, rows, None]

    def columns(self, rows: slice | torch.Tensor, first: int) -> slice | torch.Tensor:
        """The own positions of ``rows`` within a block of input positions that begins with ``first``."""
        assert self.own is not None
        if isinstance(rows, slice):
            assert self.start is not None
            return slice(rows.start + self.start - first, rows.stop + self.start - first)
        return self.own[rows] - first


def mixed_values(parts: Parts) -> torch.Tensor:
    """``[B, n, H · width]``: weights × values, computed once for the same weights."""
    if parts.mixed is not None and parts.mixed[0] is parts.weights:
        return parts.mixed[1]
    values = parts.values.repeat_interleave(parts.sizes.heads // parts.values.shape[1], 1)
    found = torch.matmul(parts.weights, values).transpose(1, 2).flatten(2)
    parts.mixed = (parts.weights, found)
    return found


def _slow(kind: str, tensor: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """One step on vectors ``[B, n, m', w]``."""
    if kind == "gate":
        return t * tensor[:, :, None]
    if kind == "linear":
        return t @ tensor
    if kind == "channel":
        return t * tensor
    return t - t.mean(-1, keepdim=True)


# Contributions: [B, n, m] before rows are divided by their sums, and that of the residual where it is no column.


def norm(parts: Parts) -> tuple[torch.Tensor, torch.Tensor | None]:
    """‖T_i(j)‖₂ (Kobayashi et al. 2021, AttnRes-N and AttnResLn-N)."""
    size = parts.sizes
    if parts.slow:
        out = parts.y.new_empty(size.batch, size.positions, size.inputs)
        for first, last in parts.blocks(size.batch * parts.e * size.heads * size.positions):
            out[..., first:last] = _explicit(parts, first, last, lambda t: t.norm(dim=-1))
        return out, _aside(parts, lambda r: r.norm(dim=-1))
    assert parts.matrix is not None
    residual = parts.residual if parts.own is not None else None
    pairs, beside = products(parts.values, parts.matrix, None if residual is None else _at_inputs(parts, residual))
    own = None
    if parts.own is not None and residual is not None:
        own = Beside(parts.own, beside, residual.square().sum(-1))
    return lengths(parts.weights, pairs, parts.scale, own), _aside(parts, lambda r: r.norm(dim=-1))


def _at_inputs(parts: Parts, residual: torch.Tensor) -> torch.Tensor:
    """``[B, m, e]`` of ``[B, n, e]``: the residual of each output position at its own input position, else zeros."""
    assert parts.own is not None
    if parts.start == 0 and parts.sizes.positions == parts.sizes.inputs:
        return residual
    laid = residual.new_zeros(len(residual), parts.sizes.inputs, residual.shape[-1])
    laid[:, parts.own] = residual
    return laid


def alti(parts: Parts) -> tuple[torch.Tensor, torch.Tensor | None]:
    """max(0, ‖y_i‖₁ − ‖y_i − T_i(j)‖₁) (Ferrando et al. 2022, equations 8 and 9)."""
    size, y = parts.sizes, parts.y
    length = y.abs().sum(-1)
    out = y.new_empty(size.batch, size.positions, size.inputs)
    own = y.new_empty(size.batch, size.positions)
    for first, last in parts.blocks(size.batch * parts.e * size.heads * (size.positions if parts.slow else 1)):
        if parts.slow:
            far = _explicit(parts, first, last, lambda t: (y[:, :, None] - t).abs().sum(-1))
            out[..., first:last] = length[..., None] - far
            continue
        heads = parts.heads(first, last)
        out[..., first:last] = distances(parts.weights, heads, parts.scale, y, first)
        _own(parts, own, heads, first, last, lambda t, rows: length[:, rows] - (y[:, rows] - t).abs().sum(-1))
    if not parts.slow:
        _put(parts, out, own)
    aside = _aside(parts, lambda r: (length - (y - r).abs().sum(-1)).clamp_(min=0))
    # A sum of e numbers is rounded; what is less than that is nothing.
    return out.masked_fill_(out <= 8 * torch.finfo(y.dtype).eps * length[..., None], 0), aside


def mixing(parts: Parts) -> torch.Tensor:
    """``[B, n]``: r_i = ‖Σ_{j≠i} T_i(j)‖ / (‖Σ_{j≠i} T_i(j)‖ + ‖T_i(i)‖) (Kobayashi et al. 2021, section 4.2).

    In cross-attention all input positions are others, and what is its own is the residual.
    """
    size = parts.sizes
    own = torch.zeros_like(parts.y)
    for first, last in parts.blocks(size.batch * parts.e * size.heads * (size.positions if parts.slow else 1)):
        if parts.own is None:
            break
        rows = torch.nonzero((parts.own >= first) & (parts.own < last)).flatten()
        if parts.slow:
            own[:, rows] = parts.vectors(first, last)[:, rows, parts.own[rows] - first]
        else:
            found = parts.of_itself(parts.heads(first, last), first, last)
            own[:, rows] = found[1] if found is not None else 0
    others = parts.attention() - own
    if parts.residual is not None:
        own = own + parts.residual
    far, near = others.norm(dim=-1), own.norm(dim=-1)
    ratio: torch.Tensor = far / (far + near).clamp(min=torch.finfo(far.dtype).tiny)
    return ratio


def _explicit(parts: Parts, first: int, last: int, measure: Any) -> torch.Tensor:
    """``[B, n, m']`` of the vectors themselves, the residual with the part of the own position."""
    t = parts.vectors(first, last)
    if parts.own is not None and parts.residual is not None:
        rows = torch.nonzero((parts.own >= first) & (parts.own < last)).flatten()
        t[:, rows, parts.own[rows] - first] += parts.residual[:, rows]
    found: torch.Tensor = measure(t)
    return found


def _own(parts: Parts, own: torch.Tensor, heads: torch.Tensor, first: int, last: int, measure: Any) -> None:
    """``own`` [B, n] of the positions in a block: the part of the own position holds the residual too."""
    found = parts.of_itself(heads, first, last)
    if found is None:
        return
    rows, t = found
    if parts.residual is not None:
        t = t + parts.residual[:, rows]
    own[:, rows] = measure(t, rows)


def _put(parts: Parts, out: torch.Tensor, own: torch.Tensor) -> None:
    """Put ``own`` [B, n] into the column of each position itself."""
    if parts.start is not None:
        parts.itself(out).copy_(own)
    elif parts.own is not None:
        out[:, torch.arange(len(parts.own), device=out.device), parts.own] = own


def _aside(parts: Parts, measure: Any) -> torch.Tensor | None:
    """The residual's contribution where it is no column: in cross-attention."""
    if parts.own is not None or parts.residual is None:
        return None
    found: torch.Tensor = measure(parts.residual)
    return found
