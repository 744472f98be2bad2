# mypy: ignore-errors
# numba reads these functions and infers their types; annotations would have no effect.
"""How much nearer each part brings the output (L1), compiled: the inner loop of ALTI's edges. See kernels.py.

Every coordinate of every part is needed once, and none is kept: n²·H·e multiplications per layer. What such a loop
costs is decided by what it reads for each of them. Here it reads little: four output positions are taken at once, some
coordinates of each stay in the processor's registers while all heads are added, and each number of a head vector that
is read is multiplied four times (:mod:`.lanes`).
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from attnflow.capturing.edges.lanes import Code, lanes

ROWS = 4
"""Output positions that are taken at once."""

SIDE = 2
"""Vectors of coordinates that are taken at once: with four positions they are as many sums as hide the time of one."""

NEAR = 32
"""Input positions whose weights are laid out anew at once, so that those of one pair of positions are side by side."""


@intrinsic
def _far(typing, y, i, heads, at, near, place, count):
    """Σ_x |y[r, x] + Σ_h near[place + 4·h + r − i]·heads[h, at + x]| for the four rows r from ``i`` on.

    ``near`` is read as a flat array. Behind the last row of ``y`` [n, e] the last one is taken.
    """
    if any(a.layout != "C" for a in (y, heads, near)) or not y.dtype == heads.dtype == near.dtype:
        return None
    number = types.intp

    def generate(context, builder, signature, args):
        _, i, _, at, _, place, count = args
        code = Code(builder, context.get_value_type(signature.args[0].dtype))
        start, (n, width) = code.array(context, signature.args[0], args[0])
        u, (_, gap) = code.array(context, signature.args[2], args[2])
        weights, _ = code.array(context, signature.args[4], args[4])
        u, weights = code.at(u, at), code.at(weights, place)
        end = builder.sub(n, code.whole(1))
        numbers = [code.least(builder.add(i, code.whole(k)), end) for k in range(ROWS)]
        rows = [code.at(start, builder.mul(row, width)) for row in numbers]

        def some(kind, side):
            """What is done with ``side`` vectors of each row."""

            def coordinates(x, sums):
                rest = [code.read(code.at(row, x, s * lanes(kind)), kind) for row in rows for s in range(side)]

                def head(h, rest):
                    start = code.at(u, x, builder.mul(h, gap))
                    given = [code.read(code.at(start, s * lanes(kind)), kind) for s in range(side)]
                    first = code.at(weights, builder.mul(h, code.whole(ROWS)))
                    factor = [code.spread(code.read(code.at(first, k), code.scalar), kind) for k in range(ROWS)]
                    return [code.call("fma", kind, [factor[k // side], given[k % side], r]) for k, r in enumerate(rest)]

                rest = code.loop(code.whole(0), count, 1, rest, head)
                sums = list(sums)
                for k, r in enumerate(rest):
                    sums[k // side] = builder.fadd(sums[k // side], code.call("fabs", kind, [r]))
                return sums

            return coordinates

        kind = code.vector()
        step = lanes(kind) * SIDE
        most = builder.mul(builder.sdiv(width, code.whole(step)), code.whole(step))
        sums = code.loop(code.whole(0), most, step, [code.zero(kind)] * ROWS, some(kind, SIDE))
        sums = code.loop(most, width, 1, [code.total(s) for s in sums], some(code.scalar, 1))
        return context.make_tuple(builder, signature.return_type, sums)

    return types.UniTuple(y.dtype, ROWS)(y, number, heads, number, near, number, number), generate


@njit(cache=True, nogil=True)
def distances(first, last, out, skip, w, heads, before, scale, y):
    """``out`` [m', n] of ``w`` [H, n, m], ``heads`` [H, (before + m')·e] and ``y`` [n, e]: ‖y‖₁ − ‖y − part‖₁.

    The length is summed as the distances are, without any head, so that a part of zero is at a distance of exactly it.
    """
    count, n, _ = w.shape
    width = y.shape[1]
    blocks = (n + ROWS - 1) // ROWS
    near = np.zeros((NEAR, blocks, count, ROWS), y.dtype)
    seen = np.zeros((blocks * ROWS, NEAR), y.dtype)
    length = np.zeros((blocks, ROWS), y.dtype)
    lines = np.zeros((count, NEAR), y.dtype)
    none = length[0, 0]
    for b in range(blocks):
        found = _far(y, ROWS * b, heads, 0, near, 0, 0)
        for k in range(ROWS):
            length[b, k] = found[k]
    for start in range(first, last, NEAR):
        some = min(NEAR, last - start)
        for i in range(n):
            total = seen[i]
            total[:] = 0
            for h in range(count):
                line, given = lines[h], w[h, i, skip + start : skip + start + some]
                for x in range(some):
                    line[x] = given[x]
                    total[x] += abs(given[x])
            used = none
            for x in range(some):
                used += total[x]
            if used == 0:
                continue  # a causal row ends early
            for x in range(some):
                place = near[x, i // ROWS]
                for h in range(count):
                    place[h, i % ROWS] = -lines[h, x] * scale[i]
        for x in range(some):
            for b in range(blocks):
                i, j = ROWS * b, start + x
                if seen[i, x] == 0 and seen[i + 1, x] == 0 and seen[i + 2, x] == 0 and seen[i + 3, x] == 0:
                    for k in range(i, min(i + ROWS, n)):
                        out[j, k] = 0
                    continue
                found = _far(y, i, heads, (before + j) * width, near, (x * blocks + b) * count * ROWS, count)
                for k in range(min(ROWS, n - i)):
                    out[j, i + k] = length[b, k] - found[k] if seen[i + k, x] != 0 else none
