"""How far apart two distributions are: exact where probabilities are zero, and differentiable.

:mod:`attnflow.divergence` takes logits; these take the probabilities themselves, ``[…, n]``, and compare along the
last axis. Tensors give tensors, inside the autograd graph; anything else gives numpy numbers.

Two papers write "TVD" for two numbers. Jain & Wallace (2019, §4.2) mean the total variation distance ½Σ|p − q|
(:func:`tvd`). The code of Wiegreffe & Pinter (2019) takes ½|a − b| of the sigmoid outputs a and b of
a binary classifier (:func:`scalar_tvd`), which is **half** of the first: of (a, 1 − a) and (b, 1 − b) it is |a − b|.
Every experiment here uses the first.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

LN2 = math.log(2)
"""The largest Jensen-Shannon divergence that there is."""


def tvd(p: Any, q: Any) -> Any:
    """Total variation distance ½Σ|p − q|: 0 for equal distributions, 1 for those that share nothing.

    >>> float(tvd([0.9, 0.1], [0.4, 0.6]))
    0.5
    """
    a, b = _pair(p, q)
    return _as_given(0.5 * (a - b).abs().sum(-1), p, q)


def scalar_tvd(p: Any, q: Any) -> Any:
    """½|p − q| of two probabilities: the "TVD" in the code of Wiegreffe & Pinter (2019), half of :func:`tvd`.

    >>> float(scalar_tvd(0.9, 0.4))
    0.25
    """
    a, b = _pair(p, q)
    return _as_given(0.5 * (a - b).abs(), p, q)


def kl(p: Any, q: Any) -> Any:
    """Kullback-Leibler divergence Σ p·ln(p / q) in nats; infinite where q is zero and p is not.

    >>> round(float(kl([1.0, 0.0], [0.5, 0.5])), 4), float(kl([0.5, 0.5], [1.0, 0.0]))
    (0.6931, inf)
    """
    a, b = _pair(p, q)
    return _as_given(_relative(a, b).sum(-1), p, q)


def jsd(p: Any, q: Any) -> Any:
    """Jensen-Shannon divergence ½KL(p‖m) + ½KL(q‖m), m = ½(p + q), in nats: at most ln 2.

    >>> round(float(jsd([1.0, 0.0], [0.0, 1.0])), 4), float(jsd([0.3, 0.7], [0.3, 0.7]))
    (0.6931, 0.0)
    """
    a, b = _pair(p, q)
    middle = 0.5 * (a + b)
    return _as_given(0.5 * (_relative(a, middle) + _relative(b, middle)).sum(-1), p, q)


def furthest(p: Any, free: Any = None) -> Any:
    """The largest Jensen-Shannon divergence from ``p`` that any distribution has.

    The divergence is convex in its second argument, so that the furthest distribution puts everything on one entry.

    Args:
        p: ``[…, n]``.
        free: ``[…, n]`` bool: only these entries may change, the others stay as they are; None for all.

    >>> round(float(furthest([0.5, 0.5])), 4), round(float(furthest([0.9, 0.1])), 4)
    (0.2158, 0.5256)
    """
    a, _ = _pair(p, p)
    may = torch.ones_like(a, dtype=torch.bool) if free is None else torch.as_tensor(free).expand_as(a)
    mass = (a * may).sum(-1, keepdim=True)
    # Of the entries that lose everything each gives ½·pᵢ·ln 2; the one that gains has ½(a + mass) in the middle.
    middle = 0.5 * (a + mass)
    reached = 0.5 * (LN2 * (mass - a) + _relative(a, middle) + _relative(mass.expand_as(a), middle))
    return _as_given(reached.masked_fill(~may, 0.0).amax(-1), p, p)


def _relative(p: Tensor, q: Tensor) -> Tensor:
    """p·ln(p / q) entry by entry, 0 where p is: also its gradient, which would be 0·∞ there."""
    some = p > 0
    return torch.where(some, p * (torch.where(some, p, 1.0) / torch.where(some, q, 1.0)).log(), 0.0)


def _pair(p: Any, q: Any) -> tuple[Tensor, Tensor]:
    kind = None if isinstance(p, Tensor) or isinstance(q, Tensor) else torch.float64
    return torch.as_tensor(p, dtype=kind), torch.as_tensor(q, dtype=kind)


def _as_given(value: Tensor, p: Any, q: Any) -> Any:
    return value if isinstance(p, Tensor) or isinstance(q, Tensor) else value.numpy()[()]
