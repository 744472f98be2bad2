"""What happens to the output of an attention call until it is part of the residual stream, step by step.

Every step is linear in what attention gave, once the statistics of a norm are held at the value that they had. So each
step can be applied to the part of one input position alone, and the parts add up to what the model computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

Factor = float | int | torch.Tensor


@dataclass(frozen=True, eq=False)
class View:
    """How a tensor of the model holds ``[batch, positions, width]``.

    Attributes:
        shape: the tensor's shape.
        where: for each of its elements the place in the flat ``[batch, positions, width]``; None if they are in order.
        width: the width, where positions were cut off and it cannot be told from the number of elements; else 0.
    """

    shape: tuple[int, ...]
    where: torch.Tensor | None = None
    width: int = 0

    def canonical(self, x: Any, batch: int, positions: int) -> torch.Tensor:
        """``x``, which broadcasts against this view, as ``[batch, positions, width]``; zeros where it was cut off."""
        given = torch.as_tensor(x)
        full = given.reshape(self.shape) if given.numel() == math.prod(self.shape) else given.expand(self.shape)
        if self.where is None:
            return full.reshape(batch, positions, -1)
        flat = full.new_zeros(batch * positions * self.width or full.numel())
        flat[self.where.reshape(-1)] = full.reshape(-1)
        return flat.view(batch, positions, -1)

    def present(self, batch: int, positions: int) -> torch.Tensor | None:
        """``[batch, positions]``: False where a position was cut off, as padding of windows is; None if none was."""
        if self.where is None or not self.width:
            return None
        out = torch.zeros(batch * positions, dtype=torch.bool, device=self.where.device)
        out[self.where.reshape(-1) // self.width] = True
        return out.view(batch, positions)


@dataclass(frozen=True, eq=False)
class Product:
    """``out`` = x·weight + bias by torch's own function in the model's run, and how often each was written to."""

    x: torch.Tensor
    out: torch.Tensor
    written: tuple[int, int]

    @classmethod
    def of(cls, x: torch.Tensor, out: torch.Tensor) -> Product | None:
        """Now; None for tensors of which torch does not count how often they are written to."""
        return None if x.is_inference() or out.is_inference() else cls(x, out, (x._version, out._version))

    @property
    def holds(self) -> bool:
        """True if neither was written to since."""
        return self.written == (self.x._version, self.out._version)


@dataclass(frozen=True, eq=False)
class Linear:
    """x ↦ x·weight + bias with ``weight`` [in, out]; ``product`` is what the model itself computed there, if known."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    product: Product | None = None


@dataclass(frozen=True, eq=False)
class Scale:
    """x ↦ x·factor: a number, or a tensor that broadcasts against the view."""

    factor: Factor
    view: View


@dataclass(frozen=True, eq=False)
class Centre:
    """x ↦ x − mean(x), over the channels."""


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm at ``x``, whose statistics are held: x ↦ (x − mean)·rstd·weight + bias, or without the mean."""

    x: torch.Tensor
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    eps: float
    centred: bool
    view: View


@dataclass(frozen=True, eq=False)
class Add:
    """Something is added: the residual stream ("residual"), a bias ("bias"), another part of the layer ("beside").

    ``own`` is what the model had computed of attention until there.
    """

    what: str
    x: torch.Tensor
    own: torch.Tensor
    view: View


Step = Linear | Scale | Centre | Norm | Add


@dataclass(frozen=True)
class Sizes:
    """Of one call: ``width`` = heads × width of a head."""

    batch: int
    heads: int
    positions: int
    inputs: int
    width: int


def factor_kind(factor: Factor, view: View, sizes: Sizes) -> tuple[str, Any]:
    """What a factor depends on, and the factor: "number", "channel" [w], "position" [B, n], "head" [B, n, H], "all"."""
    if not isinstance(factor, torch.Tensor):
        return "number", float(factor)
    if factor.numel() == 1:
        return "number", float(factor)
    spot = _split(view.shape, sizes.batch * sizes.positions) if view.where is None else None
    if spot is None:
        return _by_value(view.canonical(factor, sizes.batch, sizes.positions))
    shape = (1,) * (len(view.shape) - factor.ndim) + tuple(factor.shape)
    factor = factor.reshape(shape)
    lead, tail = shape[:spot], shape[spot:]
    if all(s == 1 for s in lead):
        return "channel", factor.reshape(tail).expand(view.shape[spot:]).reshape(-1)
    if all(s == 1 for s in tail):
        return "position", factor.reshape(lead).expand(view.shape[:spot]).reshape(sizes.batch, sizes.positions)
    if tail == (sizes.heads, 1) and math.prod(view.shape[spot:]) == sizes.width:
        heads = factor[..., 0].expand(*view.shape[:spot], sizes.heads)
        return "head", heads.reshape(sizes.batch, sizes.positions, sizes.heads)
    return "all", view.canonical(factor, sizes.batch, sizes.positions)


def _by_value(full: torch.Tensor) -> tuple[str, Any]:
    if bool((full == full[..., :1]).all()):
        return "position", full[..., 0]
    if bool((full == full[:1, :1]).all()):
        return "channel", full[0, 0]
    return "all", full


def _split(shape: tuple[int, ...], positions: int) -> int | None:
    """After how many axes the positions end and the channels begin; None if an axis holds both."""
    count = 1
    for spot, size in enumerate(shape):
        if count == positions:
            return spot
        count *= size
    return len(shape) if count == positions else None
