"""Distances between two outputs of a model, row by row; logits become distributions by a softmax."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def tvd(p: Tensor, q: Tensor) -> Tensor:
    """Total variation distance ½Σ|p − q|: 0 for equal distributions, 1 for those that share nothing."""
    return 0.5 * (p.softmax(-1) - q.softmax(-1)).abs().sum(-1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Kullback-Leibler divergence Σ p·ln(p / q)."""
    a, b = p.log_softmax(-1), q.log_softmax(-1)
    return (a.exp() * (a - b)).sum(-1)


def jsd(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon divergence, natural logarithm: at most ln 2."""
    a, b = p.log_softmax(-1), q.log_softmax(-1)
    middle = torch.logaddexp(a, b) - float(np.log(2))
    return 0.5 * ((a.exp() * (a - middle)).sum(-1) + (b.exp() * (b - middle)).sum(-1))


# Distances between the whole output before and after; no target is needed for them.
DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tvd": tvd,
    "kl": kl,
    "jsd": jsd,
    "cosine": lambda p, q: 1 - torch.nn.functional.cosine_similarity(p, q, dim=-1),
    "euclidean": lambda p, q: (p - q).norm(dim=-1),
}
