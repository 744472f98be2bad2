"""A layer's output at each position as a sum of parts, one for each input position.

    T_i(j) = Σ_h α_h[i, j]·v_h[j]·W_O^h, and the residual stream where j = i
    Σ_j T_i(j) + bias = what the model computed

Kobayashi et al. (2021) take the norm of each part, Ferrando et al. (2022) how much nearer it brings the output.
Rows are output positions, columns input positions.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from attnflow.capturing.edges.kernels import apart, distances, lengths, products
from attnflow.capturing.edges.steps import Add, Centre, Linear, Norm, Scale, Sizes, Step, View, factor_kind

BLOCK = 1 << 20
"""How many numbers of head vectors, or of parts, are held at once."""

GAP = 48
"""Numbers between two heads: those of one position must not be a power of two apart, or they share a line of cache."""

LIMIT_OUT = 1e-4
"""How far weights × values may be from what attention gave before it is asked whether each head was scaled."""


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


class Unsupported(Exception):
    """A step that cannot be applied to one part alone; the words say what it is."""


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
    room: Room = field(default_factory=Room)

    @property
    def e(self) -> int:
        """Width of the vectors."""
        return int(self.y.shape[-1])

    @cached_property
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

    def heads(self, first: int, last: int, more: int = 0) -> torch.Tensor:
        """``[B, H, m', e]``: what each head makes of each input position from ``first`` to ``last``.

        ``more``: so many more heads, which are left as they are. The memory is used again by the next call.
        """
        assert self.matrix is not None
        size = self.sizes
        values = self.values[:, :, first:last]
        share = size.heads // values.shape[1]
        if share > 1:
            values = values.repeat_interleave(share, 1)
        matrix = self.matrix.view(size.heads, -1, self.matrix.shape[-1])
        numbers = size.batch * (last - first) * matrix.shape[-1]
        out = self.room.empty("heads", values, size.heads + more, numbers + GAP)[:, :numbers]
        given = values.transpose(0, 1).reshape(size.heads, -1, values.shape[-1])
        torch.bmm(given, matrix, out=out[: size.heads].view(size.heads, -1, matrix.shape[-1]))
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
        out = _mixed(self) @ self.matrix
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


def evaluate(
    weights: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor | None,
    own: torch.Tensor | None,
    chain: Sequence[Step],
    y: torch.Tensor,
    view: View,
    whole: tuple[torch.Tensor, int] | None = None,
    mixes: bool = False,
    room: Room | None = None,
) -> Parts:
    """Apply the steps of a chain, one after the other, to the sum of the parts and to what makes a part of a value.

    ``out`` is what attention gave, where it may be more than weights × values; ``y`` is the model's tensor at the end.
    ``whole``, where ``weights`` and ``own`` are those of some rows: (these rows, the number of all positions).
    ``mixes``: ``out`` was computed as weights × values, and nothing else. ``room`` may be used again as soon as these
    parts are no longer needed.
    """
    wide = torch.float64 if weights.dtype == torch.float64 else torch.float32
    weights, values = weights.to(wide), values.to(wide)
    batch, heads, n, m = weights.shape
    sizes = Sizes(batch, heads, n, m, heads * values.shape[-1])
    state = _State(Parts(weights, values, own, sizes, room=room or Room()), wide, whole)
    if out is not None and mixes:
        state.mixed_by(out)
    elif out is not None:
        state.scaled_after(out)
    for step in chain:
        state.apply(step)
    return state.close(y, view)


class _State:
    """The chain so far: what a part goes through is in ``parts``; ``rest`` and ``beside`` are added to the parts.

    ``own`` is the model's tensor of attention's part at the place where the residual joined, as long as nothing
    changed since then. ``all`` are the sizes of the model's own tensors, ``rows`` those of their positions that count.
    """

    def __init__(self, parts: Parts, wide: torch.dtype, whole: tuple[torch.Tensor, int] | None = None) -> None:
        self.parts, self.wide = parts, wide
        self.rows = None if whole is None else whole[0]
        self.all = parts.sizes if whole is None else replace(parts.sizes, positions=whole[1])
        self.width = parts.sizes.width
        self.rest: torch.Tensor | None = None
        self.beside: torch.Tensor | None = None
        self.before: list[tuple[str, torch.Tensor | None]] = []
        self.own: torch.Tensor | None = None

    def mixed_by(self, out: torch.Tensor) -> None:
        """``out`` is weights × values, which need not be computed again."""
        self.parts.mixed = (self.parts.weights, self._given(out))

    def _given(self, out: torch.Tensor) -> torch.Tensor:
        return self._picked(out.reshape(self.all.batch, self.all.positions, -1)).to(self.wide)

    def scaled_after(self, out: torch.Tensor) -> None:
        """Fold a factor of each head and position into the weights: a sink outside the softmax, as in granite_swa."""
        size = self.parts.sizes
        shape = (size.batch, size.positions, size.heads, -1)
        mine, model = _mixed(self.parts), self._given(out)
        if _distance(mine, model) < LIMIT_OUT:
            return
        mine, model = mine.view(shape), model.view(shape)
        factor = (mine * model).sum(-1) / mine.square().sum(-1).clamp(min=torch.finfo(self.wide).tiny)
        self._scale("head", factor)

    def apply(self, step: Step) -> None:
        """One step."""
        self.own = None
        if isinstance(step, Linear):
            self._linear(step.weight.to(self.wide), step.bias)
        elif isinstance(step, Scale):
            kind, factor = factor_kind(step.factor, step.view, self.all)
            self._scale(kind, factor if kind in ("number", "channel") else self._picked(factor))
        elif isinstance(step, Centre):
            self._centre()
        elif isinstance(step, Norm):
            self._norm(step)
        else:
            self._add(step)

    def close(self, y: torch.Tensor, view: View) -> Parts:
        """The parts, and how far their sum is from ``y``."""
        parts, present = self.parts, view.present(self.all.batch, self.all.positions)
        present = None if present is None else self._picked(present)
        self._projected()
        given = _sum(parts.attention(), self.rest)
        parts.y = self._canonical(y, view)
        if self.own is not None:
            parts.error = _distance(given, self.own, present, self.beside)
        if self.beside is not None:
            parts.y = parts.y - self.beside
        parts.error = max(parts.error, _distance(given, parts.y, present, parts.residual))
        return parts

    def _canonical(self, x: Any, view: View) -> torch.Tensor:
        return self._picked(view.canonical(x, self.all.batch, self.all.positions)).to(self.wide)

    def _picked(self, x: torch.Tensor) -> torch.Tensor:
        """``[B, n, …]`` of all positions → of those that count."""
        return x if self.rows is None else x[:, self.rows]

    def _each(self, function: Any) -> None:
        """Apply a linear function to all that is added to attention's parts."""
        self.rest = None if self.rest is None else function(self.rest)
        self.beside = None if self.beside is None else function(self.beside)
        self.parts.residual = None if self.parts.residual is None else function(self.parts.residual)

    def _plus(self, bias: torch.Tensor | None) -> None:
        if bias is not None:
            bias = bias.to(self.wide)
            self.rest = bias if self.rest is None else self.rest + bias

    def _linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        parts = self.parts
        if weight.shape[0] != self.width:
            raise Unsupported(f"a projection of {weight.shape[0]} channels, of which attention gives {self.width}")
        if parts.slow:
            parts.slow.append(("linear", weight))
        elif parts.matrix is None:
            self._project(weight)
        else:
            parts.matrix = parts.matrix @ weight
        self.width = weight.shape[1]
        self._each(lambda x: x @ weight)
        self._plus(bias)

    def _project(self, weight: torch.Tensor) -> None:
        """The first projection, and before it the steps that came before."""
        for kind, tensor in reversed(self.before):
            weight = weight - weight.mean(0) if kind == "centre" else tensor[:, None] * weight  # type: ignore[index]
        self.before.clear()
        self.parts.matrix = weight

    def _changed(self, function: Any, matrix: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """``function(matrix, other)``, in memory of its own."""
        out = self.parts.room.empty("matrix", matrix, matrix.shape[1], matrix.shape[0]).T
        changed: torch.Tensor = function(matrix, other, out=out)
        return changed

    def _projected(self) -> None:
        """A model without a projection: the heads stand side by side."""
        if self.parts.matrix is None:
            values = self.parts.values
            self._project(torch.eye(self.width, dtype=values.dtype, device=values.device))

    def _scale(self, kind: str, factor: Any) -> None:
        parts, size = self.parts, self.parts.sizes
        if kind == "number":
            ones = parts.values.new_ones(size.batch, size.positions)
            parts.scale = (ones if parts.scale is None else parts.scale) * factor
            self._each(lambda x: x * factor)
            return
        factor = factor.to(self.wide)
        if kind == "position":
            parts.scale = factor if parts.scale is None else parts.scale * factor
            self._each(lambda x: x * factor[..., None])
        elif kind == "channel":
            if parts.slow:
                parts.slow.append(("channel", factor))
            elif parts.matrix is None:
                self.before.append(("channel", factor))
            else:
                parts.matrix = self._changed(torch.mul, parts.matrix, factor)
            self._each(lambda x: x * factor)
        elif kind == "head" and parts.matrix is None and not parts.slow and self.rest is None:
            # The steps before it act within the channels of one head, or the factor would not be one of a head.
            if any(k == "centre" for k, _ in self.before):
                raise Unsupported("a norm over all heads before a factor of each head")
            parts.weights = parts.weights * factor.permute(0, 2, 1)[..., None]
        else:
            self._gate(factor)

    def _gate(self, factor: torch.Tensor) -> None:
        """A factor of each position and channel: from here on the steps are applied to the vectors."""
        self._projected()
        if factor.shape[-1] != self.width:
            factor = factor.repeat_interleave(self.width // factor.shape[-1], -1)
        self.parts.slow.append(("gate", factor))
        self._each(lambda x: x * factor)

    def _centre(self) -> None:
        parts = self.parts
        if parts.slow:
            parts.slow.append(("centre", parts.values))
        elif parts.matrix is None:
            self.before.append(("centre", None))
        else:
            parts.matrix = self._changed(torch.sub, parts.matrix, parts.matrix.mean(1, keepdim=True))
        self._each(lambda x: x - x.mean(-1, keepdim=True))

    def _norm(self, step: Norm) -> None:
        x = self._canonical(step.x, step.view)
        if step.weight is not None and step.weight.numel() != x.shape[-1]:
            raise Unsupported("a norm over some of the channels")
        if step.centred:
            self._centre()
            x = x - x.mean(-1, keepdim=True)
        self._scale("position", (x.square().mean(-1) + step.eps).rsqrt())
        if step.weight is not None:
            self._scale("channel", step.weight.reshape(-1))
        if step.bias is not None:
            self._plus(step.bias.reshape(-1))
        self.parts.norms += 1

    def _add(self, step: Add) -> None:
        parts = self.parts
        x = self._canonical(step.x, step.view)
        if step.what == "bias":
            self._plus(x)
        elif step.what == "beside":
            self.beside = x if self.beside is None else self.beside + x
            parts.beside += 1
        else:
            self._projected()
            parts.residual = x
            self.own = self._canonical(step.own, step.view)


def _mixed(parts: Parts) -> torch.Tensor:
    """``[B, n, H · width]``: weights × values, computed once for the same weights."""
    if parts.mixed is not None and parts.mixed[0] is parts.weights:
        return parts.mixed[1]
    values = parts.values.repeat_interleave(parts.sizes.heads // parts.values.shape[1], 1)
    found = torch.matmul(parts.weights, values).transpose(1, 2).flatten(2)
    parts.mixed = (parts.weights, found)
    return found


def _sum(first: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
    return first if other is None else first + other


def _distance(
    mine: torch.Tensor, model: torch.Tensor, present: torch.Tensor | None = None, other: torch.Tensor | None = None
) -> float:
    """The largest distance of a row of ``mine`` + ``other`` from the model's, relative to the length of the model's.

    Short rows count as of usual length.
    """
    if mine.shape != model.shape or (other is not None and other.shape != model.shape):
        mine, other = _sum(mine, other), None
    if mine.shape != model.shape:
        return float("inf")
    far, size = apart(mine, other, model)
    if present is not None:
        far, size = far[present], size[present]
    usual = max(float(size.mean()), float(torch.finfo(model.dtype).tiny))
    found = far / size.clamp_(min=0.1 * usual)
    worst = float(found.max())
    return worst if math.isfinite(worst) else float("inf")


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
    pairs, with_residual = [], parts.y.new_empty(size.batch, size.positions)
    for first, last in parts.blocks(size.batch * parts.e * size.heads):
        heads = parts.heads(first, last, more=1)
        rows = _beside(parts, heads[:, -1], first, last)
        found, beside = products(heads)
        pairs.append(found)
        if rows is not None:
            mine = parts.itself(parts.weights)[..., rows].transpose(1, 2)
            with_residual[:, rows] = (mine * beside[:, parts.columns(rows, first)]).sum(-1)
    out = lengths(parts.weights, torch.cat(pairs, -1))
    out = out if parts.scale is None else out.mul_(parts.scale.abs()[..., None])
    _join(parts, out, with_residual)
    return out, _aside(parts, lambda r: r.norm(dim=-1))


def _beside(parts: Parts, room: torch.Tensor, first: int, last: int) -> slice | torch.Tensor | None:
    """Put residuals into ``room`` [B, m', e], each at its own position; the output positions that are there."""
    if parts.own is None or parts.residual is None:
        room.zero_()
        return None
    rows = parts.rows(first, last)
    given = parts.residual[:, rows]
    if given.shape[1] < last - first:
        room.zero_()
    room[:, parts.columns(rows, first)] = given
    return rows


def _join(parts: Parts, out: torch.Tensor, products: torch.Tensor) -> None:
    """‖T + r‖² = ‖T‖² + 2·T·r + ‖r‖² in the column of each position itself; ``products`` [B, n] are T·r unscaled."""
    if parts.own is None or parts.residual is None:
        return
    products = products if parts.scale is None else products * parts.scale
    square = parts.itself(out).square() + 2 * products + parts.residual.square().sum(-1)
    _put(parts, out, square.clamp_(min=0).sqrt_())


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
