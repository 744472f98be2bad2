"""How far apart two distributions are; exact where probabilities are zero."""

from __future__ import annotations

import torch
from torch import Tensor


def tvd(p: Tensor, q: Tensor) -> Tensor:
    """Total variation distance ½Σ|p − q| over the last axis."""
    return 0.5 * (p - q).abs().sum(-1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Kullback-Leibler divergence Σ p·ln(p / q) over the last axis."""
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1)


def jsd(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon divergence over the last axis, natural logarithm: at most ln 2."""
    middle = 0.5 * (p + q)
    return 0.5 * (kl(p, middle) + kl(q, middle))
