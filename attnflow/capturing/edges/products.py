"""Linear maps that read a norm of the residual stream, without a matrix product for each input position.

In most layers a norm follows attention and linear maps read it: y_i = κ_i·g ⊙ C(s_i) + b and z_i = y_i·W + c. Here
s_i is the residual stream with the output of attention, C takes the mean away (LayerNorm) or does nothing (RMSNorm),
and κ_i is one number. Without the value of input position *j*, s_i becomes s_i − Σ_h α_h[i, j]·o_h[j], where o_h[j] is
v_h[j]·W_O^h. Hence::

    z_ij = κ_ij·(g ⊙ C(s_i))·W − κ_ij·Σ_h α_h[i, j]·(g ⊙ C(o_h[j]))·W + b·W + c

The products with W are computed once for each *i*, and once for each *j* and head. What is left for a pair takes H·f
multiplications and not e·f, where e is the width of the stream and f that of the map.

No class of norms is known here: g, b and C are found by giving the norm three vectors, and κ from its output.

Linear maps *before* attention need no second product at all: they give again what they gave.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from attnflow.capturing.edges.decompose import limit

LARGE = 1024.0
"""The size of the vectors that a norm is given: what it adds under its root is then nothing beside them."""


@dataclass(frozen=True, eq=False)
class Ran:
    """One call of a module without parts: what it was given and what it gave."""

    module: nn.Module
    x: torch.Tensor
    out: torch.Tensor


@contextmanager
def noted(layer: nn.Module) -> Iterator[list[Ran]]:
    """While a layer runs: the calls of its modules that have no parts and no hooks, in their order."""
    found: list[Ran] = []

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if len(args) == 1 and isinstance(args[0], torch.Tensor) and isinstance(output, torch.Tensor):
            found.append(Ran(module, args[0], output))

    with ExitStack() as stack:
        for module in layer.modules():
            # A hook of the user's may change what goes in or comes out.
            hooked = module._forward_hooks or module._forward_pre_hooks
            if not hooked and next(module.children(), None) is None:
                stack.callback(module.register_forward_hook(leave).remove)
        yield found


def matrix_of(module: nn.Module) -> torch.Tensor | None:
    """``[in, out]`` of a linear module; None for others, also for classes of one's own, which may do more."""
    from transformers.pytorch_utils import Conv1D

    if type(module) is nn.Linear:
        return module.weight.T
    return module.weight if type(module) is Conv1D else None


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm as κ·gain ⊙ C(s) + shift: ``gain`` and ``shift`` ``[e]``, C the mean's removal where ``centred``."""

    module: nn.Module
    gain: torch.Tensor
    shift: torch.Tensor
    centred: bool

    def direction(self, s: torch.Tensor) -> torch.Tensor:
        """gain ⊙ C(s) for ``s`` ``[…, e]``."""
        return self.gain * (s - s.mean(-1, keepdim=True) if self.centred else s)

    def size(self, s: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """κ ``[…, 1]`` of the norm's output ``y`` at ``s``."""
        along = self.direction(s)
        square = along.square().sum(-1, keepdim=True).clamp(min=torch.finfo(s.dtype).tiny)
        return ((y - self.shift) * along).sum(-1, keepdim=True) / square


def norm_of(ran: Ran) -> Norm | None:
    """A module as a norm, if it was one in this call.

    >>> ran = Ran(nn.LayerNorm(4), x := torch.tensor([[1.0, 2.0, 0.0, 5.0]]), nn.LayerNorm(4)(x))
    >>> norm_of(ran).centred, norm_of(Ran(nn.ReLU(), x, x))
    (True, None)
    """
    e = ran.x.shape[-1]
    if ran.x.shape != ran.out.shape or not ran.x.is_floating_point() or e % 2:
        return None
    ones = ran.x.new_full((e,), LARGE)
    turns = ones * ones.new_tensor([1.0, -1.0]).repeat(e // 2)
    probes = torch.stack([torch.zeros_like(ones), ones, turns]).reshape(3, *[1] * (ran.x.ndim - 2), e)
    try:
        shift, same, turned = ran.module.forward(probes).reshape(3, e)
    except Exception:  # whatever a module does that is no norm
        return None
    found = Norm(ran.module, (turned - shift) / turns * LARGE, shift, bool(torch.equal(same, shift)))
    mine = found.size(ran.x, ran.out) * found.direction(ran.x) + found.shift
    close = (mine - ran.out).abs().max() <= limit(ran.x.dtype) / 10 * ran.out.abs().max()
    return found if bool(close) and bool((ran.out != ran.x).any()) else None


class NormedMaps:
    """The norm behind attention and the linear maps that read it, while a layer is run again."""

    def __init__(self, norm: Norm, maps: list[nn.Module], s: torch.Tensor) -> None:
        self.norm = norm
        self.maps = maps
        self.matrices = [matrix for m in maps if (matrix := matrix_of(m)) is not None]
        along = norm.direction(s)
        self.whole = [along @ matrix for matrix in self.matrices]
        self.constant = [self._constant(m, w) for m, w in zip(maps, self.matrices, strict=True)]
        self.missing: Missing | None = None
        self.start = 0
        self.kappa: torch.Tensor | None = None

    def _constant(self, module: nn.Module, matrix: torch.Tensor) -> torch.Tensor:
        fixed = self.norm.shift @ matrix
        return fixed if module.bias is None else fixed + module.bias  # type: ignore[operator]

    def missing_of(self, weights: torch.Tensor, heads: torch.Tensor) -> Missing:
        """For ``weights`` ``[…, n, H]`` and the vectors of the heads ``[…, H, e]``; ``…`` are columns and batch."""
        along = self.norm.direction(heads)
        lead = heads.shape[:-2]
        products = [
            torch.cat([along @ w, c.expand(*lead, 1, -1)], -2)
            for w, c in zip(self.matrices, self.constant, strict=True)
        ]
        return weights, products

    @contextmanager
    def instead(self, missing: Missing | None, start: int) -> Iterator[None]:
        """While the layer runs: the maps give what is known beforehand, and multiply nothing."""
        self.missing, self.start, self.kappa = missing, start, None
        with ExitStack() as stack:
            stack.callback(self.norm.module.register_forward_hook(self._normed).remove)
            for number, module in enumerate(self.maps):
                stack.callback(module.register_forward_pre_hook(_nothing).remove)
                stack.callback(module.register_forward_hook(self._mapped(number)).remove)
            yield

    def _normed(self, module: nn.Module, args: Any, output: torch.Tensor) -> None:
        self.kappa = self.norm.size(args[0], output)

    def _mapped(self, number: int) -> Any:
        def mapped(module: nn.Module, args: Any, output: Any) -> torch.Tensor:
            assert self.kappa is not None  # the norm comes before what reads it
            whole = self.kappa * self.whole[number][:, self.start :]
            if self.missing is None:
                return whole + self.constant[number]
            weights, products = self.missing
            factors = torch.cat([-self.kappa * weights, torch.ones_like(self.kappa)], -1)
            return whole + factors @ products[number]

        return mapped


Missing = tuple[torch.Tensor, list[torch.Tensor]]
"""Weights ``[…, n, H]`` of the positions that are missing, and for each map the products ``[…, H + 1, f]``: heads, then
what does not change."""


class Remembered:
    """Linear modules that come before what is changed: they give again what they gave, and multiply nothing."""

    def __init__(self, calls: list[Ran]) -> None:
        self.calls = calls

    @contextmanager
    def instead(self) -> Iterator[None]:
        """While the layer runs, also with its first positions left out."""
        with ExitStack() as stack:
            for ran in self.calls:
                length: list[int] = []
                stack.callback(ran.module.register_forward_pre_hook(_measured(length)).remove)
                stack.callback(ran.module.register_forward_hook(_again(ran.out, length)).remove)
            yield


def remembered(calls: list[Ran], last: nn.Module) -> Remembered | None:
    """The linear modules that ran once and not after ``last``; None where there is none."""
    times = [c.module for c in calls]
    end = times.index(last) if last in times else -1
    kept = [c for c in calls[: end + 1] if matrix_of(c.module) is not None and times.count(c.module) == 1]
    return Remembered(kept) if kept and all(c.x.ndim == 3 for c in kept) else None


def normed_maps(calls: list[Ran], after: nn.Module, without: list[Ran], missing: torch.Tensor) -> NormedMaps | None:
    """The first norm that runs after a module, with the linear maps that read it; None where there is none.

    ``without`` are the calls of a run in which that module's output ``[B, n, e]`` lacked ``missing``. The norm must be
    given just that less: not where a layer scale, a convolution or another branch comes between.
    """
    begun = next((k for k, c in enumerate(calls) if c.module is after), len(calls))
    times = [c.module for c in calls]
    for ran in calls[begun + 1 :]:
        if ran.x.ndim != 3 or times.count(ran.module) > 1 or matrix_of(ran.module) is not None:
            continue
        read = [c.module for c in calls if c.x is ran.out and matrix_of(c.module) is not None]
        if read and all(times.count(m) == 1 for m in read) and (norm := norm_of(ran)) is not None:
            other = next((c.x for c in without if c.module is ran.module), None)
            return NormedMaps(norm, read, ran.x) if _lacks(ran.x, other, missing) else None
    return None


def _lacks(x: torch.Tensor, other: torch.Tensor | None, missing: torch.Tensor) -> bool:
    """True if ``other`` is ``x`` without ``missing``, all ``[B, n, e]``, but for rounding.

    >>> x, less = torch.randn(2, 1, 3, 4)
    >>> _lacks(x, x - less, less), _lacks(x, x - 1.01 * less, less)
    (True, False)
    """
    if other is None or not other.shape == x.shape == missing.shape:
        return False
    off, part, size = (float(t.detach().norm()) for t in (x - other - missing, missing, x))
    return off <= 1e-6 * part + 8 * torch.finfo(x.dtype).eps * size


def _nothing(module: nn.Module, args: Any) -> tuple[torch.Tensor]:
    return (args[0][:, :0],)


def _measured(length: list[int]) -> Any:
    def measured(module: nn.Module, args: Any) -> tuple[torch.Tensor]:
        length[:] = [args[0].shape[1]]
        return _nothing(module, args)

    return measured


def _again(out: torch.Tensor, length: list[int]) -> Any:
    def again(module: nn.Module, args: Any, output: Any) -> torch.Tensor:
        return out[:, out.shape[1] - length[0] :]

    return again
