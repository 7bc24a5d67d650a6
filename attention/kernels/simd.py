"""Vectors of float32 in numba code: `LANES` of them at a time.

Numba vectorises loops by itself, but not sums of products that share operands across rows; these functions say it
outright. Every function is one instruction or a few of LLVM.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from attention.kernels.simd_lanes import (
    INTS,
    LANES,
    LANES_TYPE,
    ROWS,
    VECTOR,
    call,
    constant,
    element,
    repeated,
    widened,
)


@intrinsic
def load(_typing: Any, array: Any, index: Any) -> Any:
    """`LANES` consecutive elements of a float32 array; or of a uint16 (bfloat16) or int16 (float16) one, widened."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        stored = ir.VectorType(context.get_value_type(kind.dtype), LANES)
        at = element(context, builder, kind, *args)
        values = builder.load(builder.bitcast(at, stored.as_pointer()), align=1)
        return widened(builder, kind, values)

    return LANES_TYPE(array, index), codegen


@intrinsic
def store(_typing: Any, array: Any, index: Any, vector: Any) -> Any:
    """Write a vector to consecutive elements of a float32 array."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = element(context, builder, signature.args[0], *args[:2])
        builder.store(args[2], builder.bitcast(at, VECTOR.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, index, vector), codegen


@intrinsic
def spread(_typing: Any, value: Any) -> Any:
    """One float32 in every lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return repeated(builder, args[0], VECTOR)

    return LANES_TYPE(types.float32), codegen


@intrinsic
def fma(_typing: Any, a: Any, b: Any, c: Any) -> Any:
    """A b + c, rounded once."""
    return LANES_TYPE(a, b, c), lambda context, builder, signature, args: call(builder, "fma", *args)


@intrinsic
def sub(_typing: Any, a: Any, b: Any) -> Any:
    """A - b."""
    return LANES_TYPE(a, b), lambda context, builder, signature, args: builder.fsub(*args)


@intrinsic
def add(_typing: Any, a: Any, b: Any) -> Any:
    """A + b."""
    return LANES_TYPE(a, b), lambda context, builder, signature, args: builder.fadd(*args)


@intrinsic
def mul(_typing: Any, a: Any, b: Any) -> Any:
    """A b."""
    return LANES_TYPE(a, b), lambda context, builder, signature, args: builder.fmul(*args)


@intrinsic
def div(_typing: Any, a: Any, b: Any) -> Any:
    """A / b."""
    return LANES_TYPE(a, b), lambda context, builder, signature, args: builder.fdiv(*args)


@intrinsic
def greater(_typing: Any, a: Any, b: Any) -> Any:
    """The greater; of a NaN and a number either."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return LANES_TYPE(a, b), codegen


@intrinsic
def finite(_typing: Any, x: Any) -> Any:
    """0 where x is -inf, else x."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lowest = builder.fcmp_ordered("==", args[0], constant(-math.inf))
        return builder.select(lowest, constant(0.0), args[0])

    return LANES_TYPE(x), codegen


def _exp(builder: Any, x: Any) -> Any:
    lowest = constant(LOWEST)
    below = builder.fcmp_ordered("<", x, lowest)
    x = builder.select(below, lowest, x)
    n = call(builder, "floor", call(builder, "fma", x, constant(1.4426950408889634), constant(0.5)))
    r = call(builder, "fma", n, constant(-0.693359375), x)
    r = call(builder, "fma", n, constant(2.12194440e-4), r)
    p = constant(EXP[0])
    for coefficient in EXP[1:]:
        p = call(builder, "fma", p, r, constant(coefficient))
    p = builder.fadd(call(builder, "fma", p, builder.fmul(r, r), r), constant(1.0))
    # The integer of a NaN is undefined; p is NaN then, whatever the power.
    whole = builder.fptosi(builder.select(builder.fcmp_unordered("uno", n, n), constant(0.0), n), INTS)
    power = builder.shl(builder.add(whole, ir.Constant(INTS, [127] * LANES)), ir.Constant(INTS, [23] * LANES))
    result = builder.fmul(p, builder.bitcast(power, VECTOR))
    return builder.select(below, constant(0.0), result)


@intrinsic
def exp(_typing: Any, x: Any) -> Any:
    """The exponential of x <= 0 within 1 ulp, 0 below -87 (where it is close to the least normal float32); NaN of NaN.

    exp(x) = 2^n exp(r) with n = round(x / ln 2), |r| <= ln 2 / 2, ln 2 in two parts so that r keeps its digits, and
    exp(r) by the polynomial of the Cephes library (expf).
    """
    return LANES_TYPE(x), lambda context, builder, signature, args: _exp(builder, args[0])


@intrinsic
def tanh(_typing: Any, x: Any) -> Any:
    """The hyperbolic tangent within 3e-7 of its value.

    (1 - t) / (1 + t) with t = exp(-2 |x|); below 1/4, where that cancels, its series to x^11.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size = call(builder, "fabs", args[0])
        t = _exp(builder, builder.fmul(size, constant(-2.0)))
        far = builder.fdiv(builder.fsub(constant(1.0), t), builder.fadd(constant(1.0), t))
        square, series = builder.fmul(size, size), constant(TANH[0])
        for coefficient in TANH[1:]:
            series = call(builder, "fma", series, square, constant(coefficient))
        near = builder.fmul(size, series)
        value = builder.select(builder.fcmp_ordered("<", size, constant(0.25)), near, far)
        return call(builder, "copysign", value, args[0])

    return LANES_TYPE(x), codegen


LOWEST = -87.0
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
TANH = (-1382 / 155925, 62 / 2835, -17 / 315, 2 / 15, -1 / 3, 1.0)


@intrinsic
def greatest(_typing: Any, x: Any) -> Any:
    """In every lane the greatest of those of the same row: lanes i, i + `ROWS`, ..."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, shift = args[0], ROWS
        while shift < LANES:
            order = ir.Constant(INTS, [(lane + shift) % LANES for lane in range(LANES)])
            turned = builder.shuffle_vector(x, ir.Constant(VECTOR, ir.Undefined), order)
            x = builder.select(builder.fcmp_ordered(">", turned, x), turned, x)
            shift *= 2
        return x

    return LANES_TYPE(x), codegen
