"""Whole vectors in Numba, which has only scalars and hopes that LLVM finds the vectors in loops.

A function under `vectors` is written in Python on `Lanes` (a vector: one number for each of 16
points in float32, of 8 in float64) and `Memory` (an array), runs once when Numba compiles its
caller, and leaves LLVM code behind.  LLVM maps a vector on whatever registers the processor has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.polynomial import Chebyshev, Polynomial

LINE = 64
"""Bytes in a vector: a cache line."""


def exponential(degree: int) -> list[float]:
    """Coefficients, the highest first, of a polynomial that is exp within rounding near 0."""
    half = math.log(2) / 2
    series = Chebyshev.interpolate(np.exp, degree, [-half, half])
    coefficients = series.convert(kind=Polynomial, domain=[-1, 1]).coef.tolist()
    return [*coefficients[:0:-1], 1.0]  # exp(0) is 1


Value = Any  # a value in LLVM; llvmlite has no types
INT = ir.IntType(64)


class Whole:
    """A whole number: a counter or a position in memory."""

    def __init__(self, builder: ir.IRBuilder, value: Value) -> None:
        self.builder = builder
        self.value = value if isinstance(value, ir.Value) else ir.Constant(INT, value)

    def _other(self, other: Whole | int) -> Value:
        return other.value if isinstance(other, Whole) else ir.Constant(INT, other)

    def __add__(self, other: Whole | int) -> Whole:
        return Whole(self.builder, self.builder.add(self.value, self._other(other)))

    def __mul__(self, other: Whole | int) -> Whole:
        return Whole(self.builder, self.builder.mul(self.value, self._other(other)))

    def __or__(self, other: Whole) -> Whole:
        return Whole(self.builder, self.builder.or_(self.value, other.value))

    def whole_multiple(self, unit: int) -> Whole:
        """The largest multiple of a power of two that is no larger."""
        return Whole(self.builder, self.builder.and_(self.value, ir.Constant(INT, -unit)))

    def ones(self) -> Whole:
        """How many bits are set."""
        return Whole(self.builder, self.builder.ctpop(self.value))

    def trailing_zeros(self) -> Whole:
        """The position of the lowest bit that is set."""
        return Whole(self.builder, self.builder.cttz(self.value, ir.Constant(ir.IntType(1), 1)))


class Lanes:
    """A vector of numbers, or of truth values, with the operators of arithmetic."""

    def __init__(self, builder: ir.IRBuilder, value: Value) -> None:
        self.builder, self.value, self.type = builder, value, value.type

    def _new(self, value: Value) -> Lanes:
        return Lanes(self.builder, value)

    def like(self, other: Lanes | Value | float) -> Lanes:
        """Another vector of this type: itself, or one number in all lanes."""
        if isinstance(other, Lanes):
            return other
        if not isinstance(other, ir.Value):
            return self._new(ir.Constant(self.type, [other] * self.type.count))
        empty = ir.Constant(self.type, ir.Undefined)
        first = self.builder.insert_element(empty, other, ir.Constant(ir.IntType(32), 0))
        everywhere = ir.Constant(
            ir.VectorType(ir.IntType(32), self.type.count), [0] * self.type.count
        )
        return self._new(self.builder.shuffle_vector(first, empty, everywhere))

    def _binary(self, name: str, other: Lanes | Value | float) -> Lanes:
        return self._new(getattr(self.builder, name)(self.value, self.like(other).value))

    def __add__(self, other: Lanes | Value | float) -> Lanes:
        return self._binary("fadd", other)

    def __sub__(self, other: Lanes | Value | float) -> Lanes:
        return self._binary("fsub", other)

    def __mul__(self, other: Lanes | Value | float) -> Lanes:
        return self._binary("fmul", other)

    def __truediv__(self, other: Lanes | Value | float) -> Lanes:
        return self._binary("fdiv", other)

    def __lt__(self, other: Lanes | Value | float) -> Lanes:
        return self._new(self.builder.fcmp_ordered("<", self.value, self.like(other).value))

    def nonzero(self) -> Lanes:
        return self._new(self.builder.fcmp_unordered("!=", self.value, self.like(0.0).value))

    def __gt__(self, other: Lanes | Value | float) -> Lanes:
        return self._new(self.builder.fcmp_ordered(">", self.value, self.like(other).value))

    def unordered(self) -> Lanes:
        """Where the numbers are NaN."""
        return self._new(self.builder.fcmp_unordered("uno", self.value, self.value))

    def __and__(self, other: Lanes) -> Lanes:
        return self._new(self.builder.and_(self.value, other.value))

    def where(self, mask: Lanes, other: Lanes | Value | float) -> Lanes:
        """These numbers where the mask holds, the others elsewhere."""
        return self._new(self.builder.select(mask.value, self.value, self.like(other).value))

    def maximum(self, other: Lanes | Value | float) -> Lanes:
        return self.where(self > other, other)

    def minimum(self, other: Lanes | Value | float) -> Lanes:
        return self.where(self < other, other)

    def plus_product(self, a: Lanes | Value | float, b: Lanes | Value | float) -> Lanes:
        """``self + a * b``, rounded once."""
        return self._call("llvm.fma", self.like(a), self.like(b), self)

    def sqrt(self) -> Lanes:
        return self._call("llvm.sqrt", self)

    def round(self) -> Lanes:
        return self._call("llvm.rint", self)

    def exp(self) -> Lanes:
        """For numbers from the logarithm of the smallest normal number to 0; else anything."""
        single = isinstance(self.type.element, ir.FloatType)
        power = (self * (1 / math.log(2))).round()
        high = 0.693145751953125  # log 2 in few bits: its product with a power is exact
        rest = self.plus_product(power, -high).plus_product(power, high - math.log(2))
        series = self.like(0.0)
        for coefficient in exponential(6 if single else 12):
            series = self.like(coefficient).plus_product(series, rest)
        bits, digits, bias = (32, 23, 127) if single else (64, 52, 1023)
        whole = ir.VectorType(ir.IntType(bits), self.type.count)

        def constant(n: int) -> Value:
            return ir.Constant(whole, [n] * whole.count)

        exponent = self.builder.add(self.builder.fptosi(power.value, whole), constant(bias))
        scale = self.builder.bitcast(self.builder.shl(exponent, constant(digits)), self.type)
        return series * self._new(scale)

    def converted(self, kind: ir.VectorType) -> Lanes:
        """In a vector type with as many lanes, of the same or wider numbers."""
        return self if self.type == kind else self._new(self.builder.fpext(self.value, kind))

    def shuffle(self, other: Lanes, order: list[int]) -> Lanes:
        """Lanes of this vector followed by the other, in that order."""
        kind = ir.VectorType(ir.IntType(32), len(order))
        return self._new(
            self.builder.shuffle_vector(self.value, other.value, ir.Constant(kind, order))
        )

    def total(self) -> Value:
        """The sum over the lanes, as a number in float64."""
        total, wide = self.sum(), ir.DoubleType()
        return total if total.type == wide else self.builder.fpext(total, wide)

    def sum(self) -> Value:
        """The sum over the lanes, as a number."""
        element = self.type.element
        kind = ir.FunctionType(element, [element, self.type])
        reduce = cgutils.get_or_insert_function(
            self.builder.module, kind, f"llvm.vector.reduce.fadd.{_name(self.type)}"
        )
        zero = ir.Constant(element, -0.0)
        return self.builder.call(reduce, [zero, self.value], fastmath=["reassoc"])

    def bits(self) -> Whole:
        """A mask as a whole number: bit l is lane l."""
        packed = self.builder.bitcast(self.value, ir.IntType(self.type.count))
        return Whole(self.builder, self.builder.zext(packed, INT))

    def any(self) -> Whole:
        """1 if a mask holds anywhere, else 0."""
        bits = self.bits().value
        set_ = self.builder.icmp_unsigned("!=", bits, ir.Constant(INT, 0))
        return Whole(self.builder, self.builder.zext(set_, INT))

    def _call(self, name: str, *arguments: Lanes) -> Lanes:
        kind = ir.FunctionType(self.type, [self.type] * len(arguments))
        function = cgutils.get_or_insert_function(
            self.builder.module, kind, f"{name}.{_name(self.type)}"
        )
        return self._new(self.builder.call(function, [a.value for a in arguments]))


def _name(kind: ir.VectorType) -> str:
    return f"v{kind.count}f{32 if isinstance(kind.element, ir.FloatType) else 64}"


class Memory:
    """A contiguous array, addressed by the position of an element."""

    def __init__(self, builder: ir.IRBuilder, data: Value) -> None:
        self.builder, self.data, self.element = builder, data, data.type.pointee

    @property
    def count(self) -> int:
        """Lanes of a vector of these numbers."""
        return LINE // (4 if isinstance(self.element, ir.FloatType) else 8)

    @property
    def epsilon(self) -> float:
        """The rounding of these numbers."""
        return 2.0**-23 if isinstance(self.element, ir.FloatType) else 2.0**-52

    def _at(self, position: Whole | int, kind: Value) -> Value:
        at = position.value if isinstance(position, Whole) else ir.Constant(INT, position)
        return self.builder.bitcast(self.builder.gep(self.data, [at]), kind.as_pointer())

    def scalar(self, position: Whole | int) -> Value:
        return self.builder.load(self._at(position, self.element))

    def whole(self, position: Whole | int) -> Whole:
        return Whole(self.builder, self.scalar(position))

    def put(self, position: Whole | int, value: Whole) -> None:
        self.builder.store(value.value, self._at(position, self.element))

    def add(self, position: Whole | int, value: Value) -> None:
        """Add to the number there."""
        total = self.builder.fadd(self.scalar(position), value)
        self.builder.store(total, self._at(position, self.element))

    def load(self, position: Whole | int, count: int | None = None) -> Lanes:
        kind = ir.VectorType(self.element, count or self.count)
        return Lanes(self.builder, self.builder.load(self._at(position, kind), align=4))

    def store(self, position: Whole | int, lanes: Lanes) -> None:
        self.builder.store(lanes.value, self._at(position, lanes.type), align=4)

    def all(self, value: Value | float, count: int | None = None) -> Lanes:
        """A vector with one number in all lanes."""
        kind = ir.VectorType(self.element, count or self.count)
        if isinstance(value, Whole):
            value = self.builder.trunc(value.value, self.element)
        return Lanes(self.builder, ir.Constant(kind, ir.Undefined)).like(value)


class Variable:
    """A local variable: a register, in the end."""

    def __init__(self, code: Code, start: Lanes | Whole) -> None:
        self.builder, self.kind = code.builder, type(start)
        self.slot = cgutils.alloca_once(self.builder, start.value.type)
        self.set(start)

    def get(self) -> Any:
        return self.kind(self.builder, self.builder.load(self.slot))

    def set(self, value: Lanes | Whole) -> None:
        self.builder.store(value.value, self.slot)


class Sum:
    """A sum over many terms whose error does not grow with their number (Kahan)."""

    def __init__(self, code: Code, start: Lanes) -> None:
        self.total, self.lost = code.variable(start), code.variable(start.like(0.0))

    def add(self, term: Lanes) -> None:
        term = term - self.lost.get()
        total = self.total.get() + term
        self.lost.set((total - self.total.get()) - term)
        self.total.set(total)

    def get(self) -> Lanes:
        return self.total.get()

    def set(self, total: Lanes) -> None:
        self.total.set(total)


class Code:
    """Where the body of a vector function puts its code."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def whole(self, n: int) -> Whole:
        return Whole(self.builder, n)

    def variable(self, start: Lanes | Whole | int) -> Variable:
        return Variable(self, self.whole(start) if isinstance(start, int) else start)

    @contextmanager
    def loop(self, n: Whole) -> Iterator[Whole]:
        """A loop over 0, 1, ... up to n, which is left out."""
        with cgutils.for_range(self.builder, n.value, intp=INT) as loop:
            yield Whole(self.builder, loop.index)

    @contextmanager
    def steps(self, n: Whole, step: int, start: Whole | None = None) -> Iterator[Whole]:
        """A loop over start (0), start + step, ... up to n, which is left out."""
        first = (start or self.whole(0)).value
        by = ir.Constant(INT, step)
        with cgutils.for_range_slice(self.builder, first, n.value, by, intp=INT) as (index, _):
            yield Whole(self.builder, index)

    def spans(self, n: Whole, count: int) -> list[tuple[Whole, Whole, int]]:
        """Row of any length as whole vectors and what is left: from, to, step of each part."""
        whole = n.whole_multiple(count)
        return [(self.whole(0), whole, count), (whole, n, 1)]

    @contextmanager
    def when(self, condition: Whole) -> Iterator[None]:
        """What is done only if the condition is not 0."""
        set_ = self.builder.icmp_unsigned("!=", condition.value, ir.Constant(INT, 0))
        with self.builder.if_then(set_):
            yield

    @contextmanager
    def repeat(self) -> Iterator[Callable[[Whole], None]]:
        """A loop that goes on while the function it gives is called with something not 0."""
        body = self.builder.append_basic_block("repeat")
        after = self.builder.append_basic_block("after")
        self.builder.branch(body)
        self.builder.position_at_end(body)

        def again(condition: Whole) -> None:
            set_ = self.builder.icmp_unsigned("!=", condition.value, ir.Constant(INT, 0))
            self.builder.cbranch(set_, body, after)

        yield again
        self.builder.position_at_end(after)


def vectors(returns: types.Type = types.void) -> Callable[[Callable[..., Any]], Any]:
    """A function for Numba code whose body writes vector code.

    Its first argument is the `Code`; the others are arrays (`Memory`), whole numbers (`Whole`) and
    floating-point numbers.  It returns nothing or one number.
    """

    def decorate(body: Callable[..., Any]) -> Any:
        def typed(*given: types.Type) -> tuple[Any, Callable[..., Any]]:
            kinds = [types.int64 if isinstance(t, types.Integer) else t for t in given]

            def codegen(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
                def wrapped(kind: types.Type, value: Value) -> Any:
                    if isinstance(kind, types.Array):
                        return Memory(
                            builder, context.make_array(kind)(context, builder, value).data
                        )
                    return Whole(builder, value) if kind == types.int64 else value

                arguments = map(wrapped, signature.args, values)
                result = body(Code(builder), *arguments)
                return context.get_dummy_value() if returns is types.void else result

            return returns(*kinds), codegen

        # Numba reads the number of arguments from the signature.
        names = ", ".join(body.__code__.co_varnames[1 : body.__code__.co_argcount])
        scope: dict[str, Any] = {"typed": typed}
        source = f"def {body.__name__}(context, {names}): return typed({names})"
        exec(source, scope)
        return intrinsic(scope[body.__name__])

    return decorate
