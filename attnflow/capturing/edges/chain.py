"""The steps of a chain, one after the other, applied to the sum of the parts and to what makes a part of a value.

What comes out are the parts (:mod:`.parts`) and their certificate: how far their sum is from what the model computed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from attnflow.capturing.edges.kernels import apart
from attnflow.capturing.edges.parts import Parts, Room, mixed_values
from attnflow.capturing.edges.steps import Add, Centre, Linear, Norm, Scale, Sizes, Step, View, factor_kind

LIMIT_OUT = 1e-4
"""How far weights × values may be from what attention gave before it is asked whether each head was scaled."""


class Unsupported(Exception):
    """A step that cannot be applied to one part alone; the words say what it is."""


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
        mine, model = mixed_values(self.parts), self._given(out)
        if _distance(mine, model) < LIMIT_OUT:
            return
        mine, model = mine.view(shape), model.view(shape)
        factor = (mine * model).sum(-1) / mine.square().sum(-1).clamp(min=torch.finfo(self.wide).tiny)
        self._scale("head", factor)

    def apply(self, step: Step) -> None:
        """One step."""
        self.own = None
        if isinstance(step, Linear):
            weight = step.weight.to(self.wide)
            known = self._known(step, weight)
            self._linear(weight, step.bias)
            if known is not None:
                self.parts.known = (weight, known)
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
        if parts.known is not None:
            off = self._off()
            parts.known, parts.error = (parts.known, off) if off <= LIMIT_OUT else (None, 0.0)
        given = _sum(parts.attention(), self.rest)
        parts.y = self._canonical(y, view)
        if self.own is not None and (self.beside is not None or not _same(given, self.own)):
            parts.error = max(parts.error, _distance(given, self.own, present, self.beside))
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

    def _known(self, step: Linear, weight: torch.Tensor) -> torch.Tensor | None:
        """``[B, n, e]``: weights × values × the first projection as the model computed it, without its bias.

        That is what the parts add up to, if the model multiplied these very numbers with this matrix: it was seen to
        ask torch for the product of a tensor, the numbers of which are compared here. What later steps make of it is
        compared with the matrix at the end (:meth:`_off`). None if the product has to be computed.
        """
        parts, product = self.parts, step.product
        first = parts.matrix is None and not self.before and not parts.slow and parts.scale is None
        if product is None or not first or self.rest is not None or parts.residual is not None:
            return None
        x, out = product.x, product.out
        if parts.mixed is None or parts.mixed[0] is not parts.weights or weight is not step.weight or not product.holds:
            return None
        mixed, shape = parts.mixed[1], (self.all.batch, self.all.positions, -1)
        if not x.dtype == out.dtype == self.wide or x.numel() != math.prod(shape[:2]) * mixed.shape[-1]:
            return None
        if out.numel() != math.prod(shape[:2]) * weight.shape[1]:
            return None
        x = self._picked(x.reshape(shape))
        if not _same(x, mixed) and not torch.equal(x, mixed):
            return None
        found = self._picked(out.reshape(shape))
        return found if step.bias is None else found - step.bias.to(self.wide)

    def _off(self) -> float:
        """How far what is known is from the product with the matrix: each row is compared in one direction.

        That costs next to nothing, where the product costs as much as the model's own projection. The direction is
        drawn at random, so the difference in it is of the size of the whole difference. Relative, of the worst row.
        """
        assert self.parts.known is not None
        matrix, found = self.parts.known
        direction = _direction(matrix.shape[1], self.wide, matrix.device)
        far = mixed_values(self.parts) @ (matrix @ direction) - found @ direction
        return _worst(far.abs(), torch.linalg.vector_norm(found, dim=-1))

    def _change(self, matrix: torch.Tensor, function: Any) -> None:
        """The steps so far are ``matrix`` now; ``function`` does to the known product what was done to it."""
        parts = self.parts
        known = parts.known
        parts.known = (matrix, function(known[1])) if known is not None and known[0] is parts.matrix else None
        parts.matrix = matrix

    def _linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        parts = self.parts
        if weight.shape[0] != self.width:
            raise Unsupported(f"a projection of {weight.shape[0]} channels, of which attention gives {self.width}")
        if parts.slow:
            parts.slow.append(("linear", weight))
        elif parts.matrix is None:
            self._project(weight)
        else:
            self._change(parts.matrix @ weight, lambda x: x @ weight)
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
                self._change(self._changed(torch.mul, parts.matrix, factor), lambda x: x * factor)
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
            matrix = self._changed(torch.sub, parts.matrix, parts.matrix.mean(1, keepdim=True))
            self._change(matrix, _centred)
        self._each(_centred)

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


def _centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(-1, keepdim=True)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if both are the same numbers at the same place in memory."""
    return (one.data_ptr(), one.shape, one.stride(), one.dtype) == (
        other.data_ptr(), other.shape, other.stride(), other.dtype
    )  # fmt: skip


@functools.lru_cache(maxsize=8)
def _direction(width: int, precision: torch.dtype, device: torch.device) -> torch.Tensor:
    """``[width]``: a direction that no difference of two products is at right angles to, but by chance."""
    drawn = torch.randn(width, generator=torch.Generator().manual_seed(width), dtype=torch.float64)
    return drawn.to(device, precision)


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
    return _worst(far, size)


def _worst(far: torch.Tensor, size: torch.Tensor) -> float:
    """The largest of ``far`` relative to ``size``; what is short counts as of usual length."""
    usual = max(float(size.mean()), float(torch.finfo(size.dtype).tiny))
    worst = float((far / size.clamp(min=0.1 * usual)).max())
    return worst if math.isfinite(worst) else float("inf")
