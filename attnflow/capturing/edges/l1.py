"""‖y_i‖₁ − ‖y_i − T_i(j)‖₁ for all pairs of positions: every coordinate of every part is needed once, and none is kept.

In numbers this is n²·H·e multiplications per layer, about two thirds of the layer's own at 512 tokens. A matrix product
would write all n²·e coordinates to memory; the compiled kernel holds one part at a time, in the first cache.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch


def distances(
    weights: torch.Tensor,
    heads: torch.Tensor,
    scale: torch.Tensor | None,
    y: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Fill ``out`` [B, n, m] from ``weights`` [B, H, n, m], ``heads`` [B, m, H, e] and ``y`` [B, n, e].

    ``scale`` [B, n] is a factor of each output position. Pairs of which all weights are zero get zero.
    """
    w = weights.permute(0, 3, 2, 1)
    if scale is not None:
        w = w * scale[:, None, :, None]
    w = w.contiguous()
    if y.device.type != "cpu":
        _by_products(w, heads, y, out)
        return
    found = torch.empty(out.transpose(1, 2).shape, dtype=y.dtype)
    for b in range(len(w)):
        _on_threads(w[b].numpy(), heads[b].numpy(), y[b].contiguous().numpy(), found[b].numpy())
    out.copy_(found.transpose(1, 2))


def _by_products(w: torch.Tensor, heads: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    """The same by matrix products, for other devices than the processor."""
    length = y.abs().sum(-1)
    for j in range(out.shape[2]):
        far = (y - torch.matmul(w[:, j], heads[:, j])).abs().sum(-1)
        out[:, :, j] = torch.where((w[:, j] != 0).any(-1), length - far, 0.0)


def _on_threads(w: Any, heads: Any, y: Any, out: Any) -> None:
    """Input positions are shared out among as many threads as torch uses; the kernel lets them run together."""
    kernel, threads = _kernel(), min(torch.get_num_threads(), len(w))
    if threads < 2:
        kernel(w, heads, y, out)
        return
    cuts = [range(len(w))[i::threads] for i in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        jobs = [
            pool.submit(kernel, w[c.start :: threads], heads[c.start :: threads], y, out[c.start :: threads])
            for c in cuts
        ]
        for job in jobs:
            job.result()


@functools.cache
def _kernel() -> Any:
    from numba import njit

    # Rounding may be in any order; infinities and NaN keep their meaning.
    return njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"})(_fill)


def _fill(w: Any, heads: Any, y: Any, out: Any) -> None:  # pragma: no cover: compiled
    """``out`` [m, n] of ``w`` [m, n, H], ``heads`` [m, H, e], ``y`` [n, e]; four heads in one pass."""
    m, n, count = w.shape
    width = heads.shape[2]
    rest, length = np.empty(width, y.dtype), np.empty(n, y.dtype)
    for i in range(n):
        # Summed as the distances below are, so that a part of zero is at a distance of exactly the length.
        for x in range(width):
            rest[x] = y[i, x]
        far = rest[0] * 0
        for x in range(width):
            far += abs(rest[x])
        length[i] = far
    for j in range(m):
        u = heads[j]
        for i in range(n):
            a = w[j, i]
            used = False
            for h in range(count):
                used |= a[h] != 0
            if not used:
                out[j, i] = 0
                continue
            for x in range(width):
                rest[x] = y[i, x]
            h = 0
            while h + 4 <= count:
                a0, a1, a2, a3 = a[h], a[h + 1], a[h + 2], a[h + 3]
                u0, u1, u2, u3 = u[h], u[h + 1], u[h + 2], u[h + 3]
                for x in range(width):
                    rest[x] -= a0 * u0[x] + a1 * u1[x] + a2 * u2[x] + a3 * u3[x]
                h += 4
            while h < count:
                a0, u0 = a[h], u[h]
                for x in range(width):
                    rest[x] -= a0 * u0[x]
                h += 1
            far = rest[0] * 0
            for x in range(width):
                far += abs(rest[x])
            out[j, i] = length[i] - far
