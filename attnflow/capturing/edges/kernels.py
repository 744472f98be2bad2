"""Compiled kernels for all pairs of positions: how far a part brings the output (L1), and how long a part is (L2).

ALTI needs ‖y_i‖₁ − ‖y_i − T_i(j)‖₁: every coordinate of every part is needed once, and none is kept. In numbers this is
n²·H·e multiplications per layer, about two thirds of the layer's own at 512 tokens. A matrix product would write all
n²·e coordinates to memory; the kernel (distance_kernel.py) holds some of four parts at a time, in registers.

Norms need ‖Σ_h α_h[i, j]·u_h[j]‖₂, and Gram matrices give it without any vector of a pair:

    ‖Σ_h α_h u_h‖² = αᵀ·G_j·α with G_j [H, H], the products of the head vectors u_h of input position j

This takes n²·H² multiplications instead of n²·H·e, and one more kernel (gram_kernel.py) for the Gram matrices, which
keeps no head vector. The kernel of lengths (length_kernel.py) reads weights and Gram matrices as they lie in memory,
some columns at a time; products of matrices would need the weights in another order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


def distances(
    weights: torch.Tensor,
    heads: torch.Tensor,
    scale: torch.Tensor | None,
    y: torch.Tensor,
    first: int = 0,
) -> torch.Tensor:
    """``[B, n, m']`` of ``weights`` [B, H, n, m], ``heads`` [B, H, m', e] and ``y`` [B, n, e].

    ``heads`` are those of the input positions from ``first`` on. ``scale`` [B, n] is a factor of each output position.
    Pairs of which all weights are zero get zero.
    """
    if y.device.type != "cpu":
        return _by_products(weights[..., first : first + heads.shape[2]], heads, scale, y)
    found = torch.empty(len(y), heads.shape[2], y.shape[1], dtype=y.dtype)
    factor = torch.ones(y.shape[:2], dtype=y.dtype) if scale is None else scale.contiguous()
    weights, flat, y = weights.contiguous(), _flat(heads), y.contiguous()
    from attnflow.capturing.edges import distance_kernel  # it imports numba

    for b in range(len(weights)):
        given = (weights[b].numpy(), flat, b * heads.shape[2], factor[b].numpy(), y[b].numpy())
        columns(distance_kernel.distances, found[b], first, *given)
    return found.transpose(1, 2)


def _by_products(weights: Any, heads: Any, scale: Any, y: torch.Tensor) -> torch.Tensor:
    """The same by matrix products, for other devices than the processor."""
    length, out = y.abs().sum(-1), y.new_empty(*y.shape[:2], heads.shape[2])
    for j in range(out.shape[2]):
        w = weights[..., j].transpose(1, 2)
        part = torch.matmul(w, heads[:, :, j])
        far = (y - (part if scale is None else part * scale[..., None])).abs().sum(-1)
        out[:, :, j] = torch.where((w != 0).any(-1), length - far, 0.0)
    return out


def products(
    values: torch.Tensor, matrix: torch.Tensor, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(``[B, H·(H + 1)/2, m]``, ``[B, H, m]``): what the heads' vectors of an input position give with each other.

    A head's vector is its value times its rows of the ``matrix`` [H·width, e]; ``values`` are [B, H or a divisor, m,
    width]. Two heads stand for both of their orders, so that their product is there once, doubled. The second has the
    products of each head's vector with the ``residual`` [B, m, e] at the same position, zeros if there is none.

    >>> pairs, beside = products(torch.tensor([[[[1.0]], [[2.0]]]]), torch.tensor([[3.0, 0.0], [1.0, 2.0]]))
    >>> pairs.flatten().tolist(), beside.flatten().tolist()
    ([9.0, 12.0, 20.0], [0.0, 0.0])
    """
    batch, _, m, width = values.shape
    heads = len(matrix) // width
    total = heads * (heads + 1) // 2
    residual = values.new_zeros(batch, 0, matrix.shape[1]) if residual is None else residual.contiguous()
    if values.device.type != "cpu":
        return _products_by_vectors(values, matrix, residual)
    from attnflow.capturing.edges import gram_kernel  # it imports numba

    out = values.new_empty(batch, total + heads, m)
    values, rows = values.contiguous(), matrix.T.contiguous().numpy()
    for b in range(batch):
        columns(gram_kernel.products, out[b].T, values[b].numpy(), rows, residual[b].numpy())
    return out[:, :total], out[:, total:].contiguous()


def _products_by_vectors(
    values: torch.Tensor, matrix: torch.Tensor, residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by operations of torch, for other devices than the processor; some input positions at a time."""
    batch, groups, m, width = values.shape
    heads, wide = len(matrix) // width, matrix.shape[1]
    one, other = torch.triu_indices(heads, heads, device=values.device)
    factor = torch.where(one == other, 1.0, 2.0).to(values.dtype)
    pairs, beside = values.new_empty(batch, len(one), m), values.new_zeros(batch, heads, m)
    by_head = matrix.view(heads, width, wide)
    step = max(1, (1 << 20) // (batch * heads * wide))
    for first in range(0, m, step):
        some = values[:, :, first : first + step].repeat_interleave(heads // groups, 1)
        vectors = torch.matmul(some, by_head).transpose(1, 2)
        gram = torch.matmul(vectors, vectors.transpose(-1, -2))
        pairs[..., first : first + step] = (gram[..., one, other] * factor).transpose(1, 2)
        if residual.shape[1]:
            with_it = torch.matmul(vectors, residual[:, first : first + step, :, None])[..., 0]
            beside[..., first : first + step] = with_it.transpose(1, 2)
    return pairs, beside


def _flat(heads: torch.Tensor) -> Any:
    """``[H, numbers]`` of ``heads`` [B, H, m, e]: the vectors of a head one after the other, and perhaps a gap."""
    batch, count, m, width = heads.shape
    apart = heads.stride(1)
    end = heads.storage_offset() + count * apart
    if (
        apart >= batch * m * width
        and heads.transpose(0, 1)[0].is_contiguous()
        and end * heads.element_size() <= heads.untyped_storage().nbytes()
    ):
        return heads.as_strided((count, apart), (apart, 1)).numpy()
    return heads.transpose(0, 1).reshape(count, -1).contiguous().numpy()


@dataclass(frozen=True, eq=False)
class Beside:
    """What stands beside attention in the part that each output position has of itself: the residual stream.

    Attributes:
        own: ``[n]``: the input position that is the output position itself.
        products: ``[B, H, m]``: what the residual at each input position gives with each head's vector there.
        squares: ``[B, n]``: the squared length of each output position's residual.
    """

    own: torch.Tensor
    products: torch.Tensor
    squares: torch.Tensor


def lengths(
    weights: torch.Tensor, pairs: torch.Tensor, scale: torch.Tensor | None = None, beside: Beside | None = None
) -> torch.Tensor:
    """``[B, n, m]`` of ``weights`` [B, H, n, m] and the :func:`products` of all input positions.

    ``scale`` [B, n] is a factor of each output position, not of the residual, which ``beside`` adds:
    ‖s·T + r‖² = s²·‖T‖² + 2·s·T·r + ‖r‖².

    >>> weights, values = torch.ones(1, 2, 1, 1), torch.ones(1, 2, 1, 1)
    >>> pairs, beside = products(values, torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.ones(1, 1, 2))
    >>> lengths(weights, pairs)
    tensor([[[5.]]])
    >>> residual = Beside(torch.tensor([0]), beside, torch.tensor([[2.0]]))
    >>> lengths(weights, pairs, None, residual).square().round()  # (3 + 1)² + (4 + 1)²
    tensor([[[41.]]])
    """
    if weights.device.type != "cpu":
        return _lengths_by_products(weights, pairs, scale, beside)
    batch, _, n, m = weights.shape
    from attnflow.capturing.edges import length_kernel  # it imports numba

    out = weights.new_zeros(batch, n, m)
    # The kernel reads whole vectors of input positions, also behind the last one.
    weights, pairs = weights.contiguous(), torch.nn.functional.pad(pairs, (0, length_kernel.NEAR))
    factor = weights.new_ones(batch, n) if scale is None else scale.contiguous()
    own, given, squares = _nothing(weights) if beside is None else (beside.own, beside.products, beside.squares)
    for b in range(batch):
        residual = (own.numpy(), given[b].numpy(), squares[b].numpy())
        columns(length_kernel.lengths, out[b].T, weights[b].numpy(), pairs[b].numpy(), factor[b].numpy(), *residual)
    return out


def _nothing(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Beside attention there is no position of its own."""
    none = weights.new_zeros(len(weights), 0)
    return torch.zeros(0, dtype=torch.int64), none[:, None], none


def _lengths_by_products(
    weights: torch.Tensor, pairs: torch.Tensor, scale: torch.Tensor | None, beside: Beside | None
) -> torch.Tensor:
    """The same by operations of torch, for other devices than the processor."""
    square = weights.new_zeros(weights.shape[0], *weights.shape[2:])
    for p, (one, other) in enumerate(torch.triu_indices(weights.shape[1], weights.shape[1]).T.tolist()):
        square += weights[:, one] * weights[:, other] * pairs[:, p, None]
    factor = weights.new_ones(square.shape[:2]) if scale is None else scale
    square = square.clamp_(min=0) * factor.square()[..., None]
    if beside is not None:
        rows = torch.arange(len(beside.own), device=weights.device)
        mine = (weights[:, :, rows, beside.own] * beside.products[:, :, beside.own]).sum(1)
        square[:, rows, beside.own] += 2 * factor * mine + beside.squares
    return square.clamp_(min=0).sqrt_()


def apart(mine: torch.Tensor, other: torch.Tensor | None, model: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(‖mine + other − model‖₂, ‖model‖₂) of each row, ``[...]`` of ``[..., e]``; rows that are NaN are so in both.

    >>> apart(torch.tensor([[3.0, 4.0]]), None, torch.tensor([[0.0, 0.0]]))
    (tensor([5.]), tensor([0.]))
    """
    if model.device.type != "cpu":
        given = mine if other is None else mine + other
        return (given - model).norm(dim=-1), model.norm(dim=-1)
    width = model.shape[-1]
    rows = [t.contiguous().view(-1, width).numpy() for t in (mine, mine if other is None else other, model)]
    out = model.new_empty(len(rows[0]), 2)
    columns(_compiled(_apart), out, *rows, other is not None)
    return out[:, 0].view(model.shape[:-1]), out[:, 1].view(model.shape[:-1])


def columns(kernel: Any, out: torch.Tensor, *given: Any) -> None:
    """Let a kernel fill ``out`` [m, n] from one input position to another, shared out among torch's number of threads.

    The kernel lets go of the interpreter, so that its threads run together.
    """
    m = len(out)
    threads = min(torch.get_num_threads(), m)
    if threads < 2:
        kernel(0, m, out.numpy(), *given)
        return
    cuts = [m * k // threads for k in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(kernel, cuts[k], cuts[k + 1], out.numpy(), *given) for k in range(threads)]
        for job in jobs:
            job.result()


@functools.cache
def _compiled(function: Callable[..., None]) -> Any:
    from numba import njit

    # Rounding may be in any order; infinities and NaN keep their meaning.
    return njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"})(function)


def _apart(
    first: int, last: int, out: Any, mine: Any, other: Any, model: Any, both: bool
) -> None:  # pragma: no cover: compiled
    """``out`` [rows, 2] of three times [rows, e]; ``other`` counts if ``both``."""
    values = np.zeros(1, model.dtype)
    zero = values[0]
    for i in range(first, last):
        a, b, y = mine[i, :], other[i, :], model[i, :]
        far = size = zero
        if both:
            for x in range(len(y)):
                d = a[x] + b[x] - y[x]
                far += d * d
                size += y[x] * y[x]
        else:
            for x in range(len(y)):
                d = a[x] - y[x]
                far += d * d
                size += y[x] * y[x]
        out[i, 0] = np.sqrt(far)
        out[i, 1] = np.sqrt(size)
