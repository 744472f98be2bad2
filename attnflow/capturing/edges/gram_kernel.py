# mypy: ignore-errors
# numba reads these functions and infers their types; annotations would have no effect.
"""Gram matrices of the head vectors of each input position, compiled: the head vectors themselves are never in memory.

See kernels.py. Head vectors are products with the output projection, n·H·e numbers in all, which a matrix product
would write to memory and the next one read again. Here some channels of all heads are computed for some input
positions, multiplied with each other while they are in the processor's nearest cache, and thrown away. A vector of the
processor holds one number of each input position, so that no sum goes over the numbers of a vector (:mod:`.lanes`).
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from attnflow.capturing.edges.lanes import BYTES, Code, lanes

SIDE = 2
"""Vectors of input positions that are taken at once."""

ROWS = 6
"""Channels that are computed at once: with two vectors each they are as many sums as registers hold."""

CHUNK = 48
"""Channels of all heads that are held at once, a multiple of ``ROWS``."""

TOGETHER = 128
"""Input positions for which some channels of the matrix are read once, a multiple of two vectors."""

TILE = 3
"""Heads that are multiplied with as many others at once."""


@intrinsic
def _mapped(typing, vectors, h, t, block, g, matrix, x, column):
    """vectors[h, t + r, :] = Σ_k matrix[x + r, column + k]·block[g, k, :] for the rows r below ``ROWS``.

    ``vectors`` are [heads, CHUNK, positions], ``block`` [groups, width, positions] and ``matrix`` [e, H·width], whose
    last row is taken behind it.
    """
    if any(a.layout != "C" for a in (vectors, block, matrix)) or not vectors.dtype == block.dtype == matrix.dtype:
        return None
    number = types.intp

    def generate(context, builder, signature, args):
        _, h, t, _, g, _, x, column = args
        code = Code(builder, context.get_value_type(signature.args[0].dtype))
        into, _ = code.array(context, signature.args[0], args[0])
        values, (_, width, _) = code.array(context, signature.args[3], args[3])
        start, (rows, gap) = code.array(context, signature.args[5], args[5])
        kind, end = code.vector(), builder.sub(rows, code.whole(1))
        near = code.whole(SIDE * lanes(kind))  # known here, so that it is part of the addresses
        values = code.at(values, builder.mul(builder.mul(g, width), near))
        numbers = [code.least(builder.add(x, code.whole(r)), end) for r in range(ROWS)]
        lines = [code.at(start, builder.mul(r, gap), column) for r in numbers]

        def one(k, sums):
            first = code.at(values, builder.mul(k, near))
            given = [code.read(code.at(first, s * lanes(kind)), kind) for s in range(SIDE)]
            factors = [code.spread(code.read(code.at(line, k), code.scalar), kind) for line in lines]
            return [code.call("fma", kind, [factors[n // SIDE], given[n % SIDE], s]) for n, s in enumerate(sums)]

        sums = code.loop(code.whole(0), width, 1, [code.zero(kind)] * (ROWS * SIDE), one)
        into = code.at(into, builder.mul(builder.add(builder.mul(h, code.whole(CHUNK)), t), near))
        for n, s in enumerate(sums):
            code.write(s, code.at(into, n * lanes(kind)))
        return context.get_dummy_value()

    given = (vectors, number, number, block, number, matrix, number, number)
    return types.none(*given), generate


@intrinsic
def _multiplied(typing, sums, place, vectors, h, g, s, rows):
    """sums[place, 3·k + l, s:] += Σ_x vectors[h + k, x, s:]·vectors[g + l, x, s:] for one vector of positions."""
    if any(a.layout != "C" for a in (sums, vectors)) or sums.dtype != vectors.dtype:
        return None
    number = types.intp

    def generate(context, builder, signature, args):
        _, place, _, h, g, s, rows = args
        code = Code(builder, context.get_value_type(signature.args[0].dtype))
        into, _ = code.array(context, signature.args[0], args[0])
        start, _ = code.array(context, signature.args[2], args[2])
        kind = code.vector()
        near = SIDE * lanes(kind)
        given = [code.at(start, s, builder.mul(first, code.whole(CHUNK * near))) for first in (h, g)]
        into = code.at(into, s, builder.mul(place, code.whole(TILE**2 * near)))
        places = [code.at(into, n * near) for n in range(TILE**2)]

        def one(x, found):
            first = [code.at(v, builder.mul(x, code.whole(near))) for v in given]
            mine, others = ([code.read(code.at(v, k * CHUNK * near), kind) for k in range(TILE)] for v in first)
            return [code.call("fma", kind, [mine[n // TILE], others[n % TILE], f]) for n, f in enumerate(found)]

        found = code.loop(code.whole(0), rows, 1, [code.read(p, kind) for p in places], one)
        for value, p in zip(found, places, strict=True):
            code.write(value, p)
        return context.get_dummy_value()

    return types.none(sums, number, vectors, number, number, number, number), generate


@njit(cache=True, nogil=True)
def products(first, last, out, values, matrix, residual):
    """``out`` [m, H·(H + 1)/2 + H] of ``values`` [groups, m, width], ``matrix`` [e, H·width] and ``residual`` [m, e].

    The first columns are the products of two heads' vectors at each input position, doubled where they are two; the
    others those of each head's vector with the residual there. ``residual`` may have no rows: then those are zero.
    """
    groups, _, width = values.shape
    heads = matrix.shape[1] // width
    near, tiles = BYTES // values.itemsize * SIDE, (heads + TILE) // TILE
    blocks = np.zeros((TOGETHER // near, groups, width, near), values.dtype)
    vectors = np.zeros((tiles * TILE, CHUNK, near), values.dtype)
    sums = np.zeros((TOGETHER // near, tiles * (tiles + 1) // 2, TILE * TILE, near), values.dtype)
    for j in range(first, last, TOGETHER):
        end = min(last, j + TOGETHER)
        for p in range(j, end):
            block = blocks[(p - j) // near]
            for g in range(groups):
                for k in range(width):
                    block[g, k, (p - j) % near] = values[g, p, k]
        sums[:] = 0
        for x in range(0, matrix.shape[0], CHUNK):
            for b in range((end - j + near - 1) // near):
                here = j + b * near
                _added(sums[b], vectors, blocks[b], matrix, x, residual[here : min(end, here + near)])
        for p in range(j, end):
            _laid_out(out[p], sums[(p - j) // near], (p - j) % near, heads)


@njit(cache=True, nogil=True)
def _added(sums, vectors, block, matrix, x, residual):
    """Add to ``sums`` what the channels from ``x`` on give at the positions of one block."""
    groups, width, near = block.shape
    heads, rows = matrix.shape[1] // width, min(CHUNK, matrix.shape[0] - x)
    for h in range(heads):
        for t in range(0, rows, ROWS):
            _mapped(vectors, h, t, block, h * groups // heads, matrix, x + t, h * width)
    for p in range(len(residual)):
        for t in range(rows):
            vectors[heads, t, p] = residual[p, x + t]
    place = 0
    for one in range(0, heads + 1, TILE):
        for other in range(one, heads + 1, TILE):
            for s in range(0, near, near // SIDE):
                _multiplied(sums, place, vectors, one, other, s, rows)
            place += 1


@njit(cache=True, nogil=True)
def _laid_out(out, sums, p, heads):
    """Put the sums of tiles at position ``p`` into ``out`` [H·(H + 1)/2 + H]."""
    total, place = heads * (heads + 1) // 2, 0
    for h in range(0, heads + 1, TILE):
        for g in range(h, heads + 1, TILE):
            for n in range(TILE * TILE):
                one, other = h + n // TILE, g + n % TILE
                if one <= other < heads:
                    value = sums[place, n, p]
                    out[one * (2 * heads - one + 1) // 2 + other - one] = value if one == other else value + value
                elif one < heads and other == heads:
                    out[total + one] = sums[place, n, p]
            place += 1
