# mypy: ignore-errors
# numba reads these functions and infers their types; annotations would have no effect.
"""How much nearer each part brings the output (L1), compiled: the inner loop of ALTI's edges. See kernels.py.

Every coordinate of every part is needed once, and none is kept: n²·H·e multiplications per layer. What such a loop
costs is decided by what it reads for each of them. Here it reads little: four output positions are taken at once, some
coordinates of each stay in the processor's registers while all heads are added, and each number of a head vector that
is read is multiplied four times. numba writes every sum of a loop back to memory, so this one is written in LLVM's own
terms.
"""

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

ROWS = 4
"""Output positions that are taken at once."""

SIDE = 2
"""Vectors of coordinates that are taken at once: with four positions they are as many sums as hide the time of one."""

NEAR = 32
"""Input positions whose weights are laid out anew at once, so that those of one pair of positions are side by side."""

BYTES = 64 if llvm.get_host_cpu_features().get("avx512f") else 32
"""Bytes of a vector. A processor with narrower ones takes several for it."""


class _Code:
    """LLVM code for numbers of one type; an address is a whole number."""

    def __init__(self, builder, scalar):
        self.builder, self.scalar = builder, scalar
        self.size = 4 if scalar == ir.FloatType() else 8
        self.whole = ir.IntType(64)

    def at(self, base, *numbers):
        """The address of a number that is so many others behind ``base``."""
        for number in numbers:
            number = self.whole(number) if isinstance(number, int) else number
            base = self.builder.add(base, self.builder.mul(number, self.whole(self.size)))
        return base

    def read(self, address, kind):
        """A number or a vector; vectors may begin anywhere."""
        found = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
        found.align = self.size
        return found

    def spread(self, number, kind):
        """A vector that holds a number in each place."""
        if kind is self.scalar:
            return number
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.IntType(32)(0))
        places = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), [0] * kind.count)
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), places)

    def call(self, name, kind, given, result=None, **flags):
        """One of LLVM's own functions."""
        lanes = "" if kind is self.scalar else f"v{kind.count}"
        form = ir.FunctionType(result or kind, [x.type for x in given])
        function = cgutils.get_or_insert_function(self.builder.module, form, f"llvm.{name}.{lanes}f{8 * self.size}")
        return self.builder.call(function, given, **flags)

    def loop(self, first, last, step, state, body):
        """``state = body(x, state)`` for x from ``first`` to ``last``."""
        builder, before = self.builder, self.builder.block
        head, inner, done = (builder.append_basic_block(name) for name in ("head", "inner", "done"))
        builder.branch(head)
        builder.position_at_end(head)
        x, held = builder.phi(self.whole), [builder.phi(s.type) for s in state]
        builder.cbranch(builder.icmp_signed("<", x, last), inner, done)
        builder.position_at_end(inner)
        after = body(x, held)
        after = [builder.add(x, self.whole(step)), *after]
        for phi, start, then in zip([x, *held], [first, *state], after, strict=True):
            phi.add_incoming(start, before)
            phi.add_incoming(then, builder.block)
        builder.branch(head)
        builder.position_at_end(done)
        return held


@intrinsic
def _far(typing, y, i, heads, at, near, place, count):
    """Σ_x |y[r, x] + Σ_h near[place + 4·h + r − i]·heads[h, at + x]| for the four rows r from ``i`` on.

    ``near`` is read as a flat array. Behind the last row of ``y`` [n, e] the last one is taken.
    """
    if any(a.layout != "C" for a in (y, heads, near)) or not y.dtype == heads.dtype == near.dtype:
        return None
    number = types.intp

    def generate(context, builder, signature, args):
        y, heads, near = (context.make_array(signature.args[k])(context, builder, args[k]) for k in (0, 2, 4))
        code = _Code(builder, context.get_value_type(signature.args[0].dtype))
        n, width = cgutils.unpack_tuple(builder, y.shape)
        gap = cgutils.unpack_tuple(builder, heads.shape)[1]
        base = [builder.ptrtoint(a.data, code.whole) for a in (y, heads, near)]
        u, weights = code.at(base[1], args[3]), code.at(base[2], args[5])
        end, rows = builder.sub(n, code.whole(1)), []
        for k in range(ROWS):
            row = builder.add(args[1], code.whole(k))
            row = builder.select(builder.icmp_signed("<", row, end), row, end)
            rows.append(code.at(base[0], builder.mul(row, width)))

        def some(kind, side):
            """What is done with ``side`` vectors of each row."""
            lanes = 1 if kind is code.scalar else kind.count

            def coordinates(x, sums):
                rest = [code.read(code.at(row, x, s * lanes), kind) for row in rows for s in range(side)]

                def head(h, rest):
                    start = code.at(u, x, builder.mul(h, gap))
                    given = [code.read(code.at(start, s * lanes), kind) for s in range(side)]
                    first = code.at(weights, builder.mul(h, code.whole(ROWS)))
                    factor = [code.spread(code.read(code.at(first, k), code.scalar), kind) for k in range(ROWS)]
                    return [code.call("fma", kind, [factor[k // side], given[k % side], r]) for k, r in enumerate(rest)]

                rest = code.loop(code.whole(0), args[6], 1, rest, head)
                sums = list(sums)
                for k, r in enumerate(rest):
                    sums[k // side] = builder.fadd(sums[k // side], code.call("fabs", kind, [r]))
                return sums

            return coordinates

        kind = ir.VectorType(code.scalar, BYTES // code.size)
        step = kind.count * SIDE
        most = builder.mul(builder.sdiv(width, code.whole(step)), code.whole(step))
        none = ir.Constant(kind, [0.0] * kind.count)
        sums = code.loop(code.whole(0), most, step, [none] * ROWS, some(kind, SIDE))
        zero = code.scalar(0.0)
        sums = [code.call("vector.reduce.fadd", kind, [zero, s], code.scalar, fastmath=("reassoc",)) for s in sums]
        sums = code.loop(most, width, 1, sums, some(code.scalar, 1))
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
