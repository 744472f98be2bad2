"""‖Σ_h α_h[i, j]·u_h[j]‖₂ for all pairs of positions through Gram matrices, so that no vector of a pair is made.

    ‖Σ_h α_h u_h‖² = αᵀ·G_j·α with G_j [H, H], the products of the head vectors u_h of input position j

This takes n²·H² multiplications instead of n²·H·e. The compiled kernel reads weights and Gram matrices as they lie in
memory, some columns at a time; products of matrices would need the weights in another order.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from attnflow.capturing.edges.l1 import columns

_WIDTH = 128
"""Input positions in one pass."""

_NEAR = 512
"""Input positions whose weights are read one after the other, while their Gram matrices are in the second cache."""


def products_of(heads: torch.Tensor) -> torch.Tensor:
    """``[B, m, H, H]`` of ``heads`` [B, H, m, e]: the products of two heads' vectors at each input position."""
    across = heads.transpose(1, 2)
    return torch.matmul(across, across.transpose(-1, -2))


def pairs(gram: torch.Tensor) -> torch.Tensor:
    """``[B, H·(H + 1)/2, m]`` of ``gram`` [B, m, H, H].

    Two heads stand for both of their orders, so that their product is there once, doubled.
    """
    count = gram.shape[-1]
    one, other = torch.triu_indices(count, count, device=gram.device)
    found = gram[..., one, other] * torch.where(one == other, 1.0, 2.0).to(gram.dtype)
    return found.transpose(1, 2).contiguous()


def lengths(weights: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
    """``[B, n, m]`` of ``weights`` [B, H, n, m] and the :func:`pairs` of all input positions.

    >>> u = torch.tensor([[[[3.0, 0.0]], [[0.0, 4.0]]]])
    >>> lengths(torch.tensor([[[[1.0]], [[1.0]]]]), pairs(products_of(u)))
    tensor([[[5.]]])
    """
    batch, count, n, m = weights.shape
    out = weights.new_zeros(batch, n, m)
    if weights.device.type != "cpu":
        for p, (one, other) in enumerate(torch.triu_indices(count, count).T.tolist()):
            out += weights[:, one] * weights[:, other] * products[:, p, None]
        return out.clamp_(min=0).sqrt_()
    weights = weights.contiguous()
    for b in range(batch):
        columns(_kernel(), out[b].T, weights[b].numpy(), products[b].numpy())
    return out


@functools.cache
def _kernel() -> Any:
    from numba import njit

    return njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"})(_fill)


def _fill(first: int, last: int, out: Any, w: Any, pairs: Any) -> None:  # pragma: no cover: compiled
    """``out`` [m, n] of ``w`` [H, n, m] and ``pairs`` [H·(H + 1)/2, m]; two heads in one pass."""
    count, n, _ = w.shape
    total, part = np.empty(_WIDTH, w.dtype), np.empty(_WIDTH, w.dtype)
    for begin in range(first, last, _NEAR):
        for i in range(n):
            for start in range(begin, min(last, begin + _NEAR), _WIDTH):
                width = min(_WIDTH, last - start)
                used = False
                for h in range(count):
                    for x in range(width):
                        used |= w[h, i, start + x] != 0
                    if used:
                        break
                total[:] = 0
                p = 0
                for h in range(count if used else 0):
                    part[:] = 0
                    g = h
                    # Slices, so that the compiler knows of no negative index and takes several at once.
                    while g + 2 <= count:
                        a, b = pairs[p, start : start + width], pairs[p + 1, start : start + width]
                        c, d = w[g, i, start : start + width], w[g + 1, i, start : start + width]
                        for x in range(width):
                            part[x] += a[x] * c[x] + b[x] * d[x]
                        g += 2
                        p += 2
                    if g < count:
                        a, c = pairs[p, start : start + width], w[g, i, start : start + width]
                        for x in range(width):
                            part[x] += a[x] * c[x]
                        p += 1
                    c = w[h, i, start : start + width]
                    for x in range(width):
                        total[x] += part[x] * c[x]
                for x in range(width):
                    out[start + x, i] = np.sqrt(max(total[x], 0))
