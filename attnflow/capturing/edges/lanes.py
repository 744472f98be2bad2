# mypy: ignore-errors
"""Loops in LLVM's own terms, for kernels whose sums have to stay in the processor's registers; numba is imported here.

numba writes every sum of a loop over an array back to memory. What is built with :class:`Code` inside an ``intrinsic``
of numba does not.
"""

from __future__ import annotations

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils

BYTES = 64 if llvm.get_host_cpu_features().get("avx512f") else 32
"""Bytes of a vector. A processor with narrower ones takes several for it."""


class Code:
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

    def write(self, value, address):
        """Put a vector at an address."""
        self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer())).align = self.size

    def array(self, context, kind, given):
        """(address of the first number, sizes of the axes) of an array."""
        found = context.make_array(kind)(context, self.builder, given)
        return self.builder.ptrtoint(found.data, self.whole), cgutils.unpack_tuple(self.builder, found.shape)

    def vector(self):
        """A whole vector of numbers."""
        return ir.VectorType(self.scalar, BYTES // self.size)

    def zero(self, kind):
        """Zero in every place."""
        return ir.Constant(kind, 0.0 if kind is self.scalar else [0.0] * kind.count)

    def total(self, vector):
        """The sum of a vector's numbers."""
        start = self.zero(self.scalar)
        given = [start, vector]
        return self.call("vector.reduce.fadd", vector.type, given, self.scalar, fastmath=("reassoc",))

    def least(self, one, other):
        """The lesser of two whole numbers."""
        return self.builder.select(self.builder.icmp_signed("<", one, other), one, other)


def lanes(kind):
    """How many numbers a vector, or a number, is."""
    return kind.count if isinstance(kind, ir.VectorType) else 1
