# mypy: ignore-errors
# numba reads these functions and infers their types; annotations would have no effect.
"""How long each part is (L2), compiled: what the weights make of the Gram matrices of the head vectors.

See kernels.py. Sums stay in registers (:mod:`.lanes`), of four output positions at once, so that each number of a Gram
matrix that is read is multiplied four times.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from attnflow.capturing.edges.lanes import BYTES, Code, lanes

ROWS = 4
"""Output positions that are taken at once."""

SIDE = 2
"""Vectors of input positions that are taken at once."""

NEAR = 64
"""Input positions that are taken at once."""


@intrinsic
def _squares(typing, out, lines, x, pairs, j, count):
    """Σ_{h ≤ g} lines[h, r, x]·lines[g, r, x]·pairs[h, g; j + x] for each row r, into ``out`` [ROWS, NEAR] from x on.

    ``lines`` are [H, ROWS, NEAR], ``pairs`` [H·(H + 1)/2, at least j + NEAR].
    """
    if any(a.layout != "C" for a in (out, lines, pairs)) or not out.dtype == lines.dtype == pairs.dtype:
        return None
    number = types.intp

    def generate(context, builder, signature, args):
        _, _, x, _, j, count = args
        code = Code(builder, context.get_value_type(signature.args[0].dtype))
        into, line, pair = (code.array(context, signature.args[k], args[k]) for k in (0, 1, 3))
        kind, gap = code.vector(), pair[1][1]
        line, pair = code.at(line[0], x), code.at(pair[0], j, x)

        def weights(h):
            start = code.at(line, builder.mul(h, code.whole(ROWS * NEAR)))
            return [
                code.read(code.at(start, r * NEAR + s * lanes(kind)), kind) for r in range(ROWS) for s in range(SIDE)
            ]

        def head(h, state):
            *sums, place = state

            def other(g, part):
                start = code.at(pair, builder.mul(builder.add(place, builder.sub(g, h)), gap))
                given = [code.read(code.at(start, s * lanes(kind)), kind) for s in range(SIDE)]
                found = enumerate(zip(weights(g), part, strict=True))
                return [code.call("fma", kind, [given[k % SIDE], w, p]) for k, (w, p) in found]

            part = code.loop(h, count, 1, [code.zero(kind)] * (ROWS * SIDE), other)
            found = zip(weights(h), part, sums, strict=True)
            sums = [code.call("fma", kind, [w, p, s]) for w, p, s in found]
            return [*sums, builder.add(place, builder.sub(count, h))]

        state = [*[code.zero(kind)] * (ROWS * SIDE), code.whole(0)]
        *sums, _ = code.loop(code.whole(0), count, 1, state, head)
        for k, s in enumerate(sums):
            code.write(s, code.at(into[0], x, k // SIDE * NEAR + k % SIDE * lanes(kind)))
        return context.get_dummy_value()

    return types.none(out, lines, number, pairs, number, number), generate


@njit(cache=True, nogil=True)
def lengths(first, last, out, w, pairs, scale, own, beside, squares):
    """``out`` [m, n], which holds zeros, of ``w`` [H, n, m] and ``pairs`` [H·(H + 1)/2, at least m + NEAR].

    ``scale`` [n] is a factor of each output position. Its residual, of the square ``squares`` [n], is in the column of
    its own position ``own`` [n] (or of none, if that is empty) and gives ``beside`` [H, m] with the heads' vectors.
    """
    count, n, _ = w.shape
    lines, total = np.zeros((count, ROWS, NEAR), w.dtype), np.zeros((ROWS, NEAR), w.dtype)
    step = BYTES // w.itemsize * SIDE
    for i in range(0, n, ROWS):
        rows = min(ROWS, n - i)
        for j in range(first, last, NEAR):
            some = min(NEAR, last - j)
            used = False
            for r in range(min(rows, len(own) - i)):
                used |= j <= own[i + r] < j + some
            for h in range(count):
                for r in range(rows):
                    line, given = lines[h, r], w[h, i + r, j : j + some]
                    for x in range(some):
                        line[x] = given[x]
                        used |= given[x] != 0
            if not used:
                continue  # a causal row ends early
            for x in range(0, NEAR, step):
                _squares(total, lines, x, pairs, j, count)
            for r in range(rows):
                size = abs(scale[i + r])
                for x in range(some):
                    out[j + x, i + r] = np.sqrt(max(total[r, x], 0)) * size
            for r in range(min(rows, len(own) - i)):
                x = own[i + r] - j
                if 0 <= x < some:
                    product = total[r, x] * 0
                    for h in range(count):
                        product += lines[h, r, x] * beside[h, j + x]
                    factor = scale[i + r]
                    square = max(total[r, x], 0) * factor * factor + 2 * factor * product + squares[i + r]
                    out[j + x, i + r] = np.sqrt(max(square, 0))
