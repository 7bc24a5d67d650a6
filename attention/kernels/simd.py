"""Vectors of float32 in numba code: `LANES` of them at a time, in the widest registers that the CPU has.

Numba vectorises loops by itself, but not sums of products that share operands across rows; these functions say it
outright. Every function is one instruction or a few of LLVM, which spreads a vector over several registers where those
are narrower.
"""

from __future__ import annotations

import math
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.datamodel import PrimitiveModel  # type: ignore[attr-defined]
from numba.extending import intrinsic, register_model

if config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("numba is switched off by NUMBA_DISABLE_JIT")

_FEATURES = llvm.get_host_cpu_features()
LANES = 16 if _FEATURES.get("avx512f") else 8
"""float32 in a vector."""
HALVES = bool(_FEATURES.get("f16c")) or not llvm.get_process_triple().startswith("x86_64")
"""Whether the CPU widens float16 itself."""
ROWS = 4
"""Query rows that share one pass over keys."""
KEYS = LANES // ROWS
"""Keys of which one vector holds the products with `ROWS` rows."""
TILE = 4 if LANES == 16 else 2
"""Vectors of a row that stay in registers while the values of all keys of a block are added."""
LINE_BYTES = 64

_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
_VECTOR, _INTS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT, LANES)


class Lanes(types.Type):
    """The type of a vector."""

    def __init__(self) -> None:
        super().__init__(name=f"float32x{LANES}")


LANES_TYPE = Lanes()


@register_model(Lanes)
class _Model(PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _constant(value: float) -> ir.Constant:
    return ir.Constant(_VECTOR, [value] * LANES)


def _call(builder: Any, name: str, *args: Any) -> Any:
    """An LLVM intrinsic on vectors of one type."""
    of = f"v{LANES}f32"
    signature = ir.FunctionType(_VECTOR, [_VECTOR] * len(args))
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, f"llvm.{name}.{of}"), args)


def _element(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Pointer to an element of a one-dimensional contiguous array."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index], inbounds=True)


def _wide(builder: Any, kind: Any, values: Any) -> Any:
    """Stored numbers as float32: bfloat16 comes as uint16, float16 as int16."""
    if kind.dtype == types.float32:
        return values
    if kind.dtype == types.uint16:
        bits = builder.shl(builder.zext(values, _INTS), ir.Constant(_INTS, [16] * LANES))
        return builder.bitcast(bits, _VECTOR)
    return builder.fpext(builder.bitcast(values, ir.VectorType(ir.HalfType(), LANES)), _VECTOR)


@intrinsic
def load(_typing: Any, array: Any, index: Any) -> Any:
    """`LANES` consecutive elements of a float32 array; or of a uint16 (bfloat16) or int16 (float16) one, widened."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        stored = ir.VectorType(context.get_value_type(kind.dtype), LANES)
        at = _element(context, builder, kind, *args)
        values = builder.load(builder.bitcast(at, stored.as_pointer()), align=1)
        return _wide(builder, kind, values)

    return LANES_TYPE(array, index), codegen


def _first_lanes(builder: Any, kind: Any, stored: Any, at: Any, count: Any) -> Any:
    """The first `count` elements at a pointer, 0 in the other lanes; nothing beyond them is touched."""
    vector = ir.VectorType(stored, LANES)
    mask = builder.icmp_signed("<", ir.Constant(_INTS, list(range(LANES))), _spread(builder, count, _INTS))
    name = f"llvm.masked.load.v{LANES}{'f32' if kind.dtype == types.float32 else 'i16'}.p0"
    form = ir.FunctionType(vector, [vector.as_pointer(), _INT, ir.VectorType(ir.IntType(1), LANES), vector])
    function = cgutils.get_or_insert_function(builder.module, form, name)
    at = builder.bitcast(at, vector.as_pointer())
    return _wide(builder, kind, builder.call(function, [at, ir.Constant(_INT, 1), mask, ir.Constant(vector, None)]))


def _spread(builder: Any, value: Any, vector: Any) -> Any:
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_INT, 0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.Constant(_INTS, [0] * LANES))


@intrinsic
def store(_typing: Any, array: Any, index: Any, vector: Any) -> Any:
    """Write a vector to consecutive elements of a float32 array."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = _element(context, builder, signature.args[0], *args[:2])
        builder.store(args[2], builder.bitcast(at, _VECTOR.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, index, vector), codegen


@intrinsic
def spread(_typing: Any, value: Any) -> Any:
    """One float32 in every lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _spread(builder, args[0], _VECTOR)

    return LANES_TYPE(types.float32), codegen


@intrinsic
def fma(_typing: Any, a: Any, b: Any, c: Any) -> Any:
    """A b + c, rounded once."""
    return LANES_TYPE(a, b, c), lambda context, builder, signature, args: _call(builder, "fma", *args)


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
        lowest = builder.fcmp_ordered("==", args[0], _constant(-math.inf))
        return builder.select(lowest, _constant(0.0), args[0])

    return LANES_TYPE(x), codegen


def _exp(builder: Any, x: Any) -> Any:
    lowest = _constant(LOWEST)
    below = builder.fcmp_ordered("<", x, lowest)
    x = builder.select(below, lowest, x)
    n = _call(builder, "floor", _call(builder, "fma", x, _constant(1.4426950408889634), _constant(0.5)))
    r = _call(builder, "fma", n, _constant(-0.693359375), x)
    r = _call(builder, "fma", n, _constant(2.12194440e-4), r)
    p = _constant(EXP[0])
    for coefficient in EXP[1:]:
        p = _call(builder, "fma", p, r, _constant(coefficient))
    p = builder.fadd(_call(builder, "fma", p, builder.fmul(r, r), r), _constant(1.0))
    # The integer of a NaN is undefined; p is NaN then, whatever the power.
    whole = builder.fptosi(builder.select(builder.fcmp_unordered("uno", n, n), _constant(0.0), n), _INTS)
    power = builder.shl(builder.add(whole, ir.Constant(_INTS, [127] * LANES)), ir.Constant(_INTS, [23] * LANES))
    result = builder.fmul(p, builder.bitcast(power, _VECTOR))
    return builder.select(below, _constant(0.0), result)


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
        size = _call(builder, "fabs", args[0])
        t = _exp(builder, builder.fmul(size, _constant(-2.0)))
        far = builder.fdiv(builder.fsub(_constant(1.0), t), builder.fadd(_constant(1.0), t))
        square, series = builder.fmul(size, size), _constant(TANH[0])
        for coefficient in TANH[1:]:
            series = _call(builder, "fma", series, square, _constant(coefficient))
        near = builder.fmul(size, series)
        value = builder.select(builder.fcmp_ordered("<", size, _constant(0.25)), near, far)
        return _call(builder, "copysign", value, args[0])

    return LANES_TYPE(x), codegen


LOWEST = -87.0
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
TANH = (-1382 / 155925, 62 / 2835, -17 / 315, 2 / 15, -1 / 3, 1.0)


def _halve(builder: Any, x: Any, y: Any, span: int) -> Any:
    """In each group of 2 span lanes the sum of both halves of x's group, then that of y's."""
    first = [lane % span + lane // (2 * span) * 2 * span + (lane // span % 2) * LANES for lane in range(LANES)]
    low, high = (ir.Constant(_INTS, [at + more for at in first]) for more in (0, span))
    return builder.fadd(builder.shuffle_vector(x, y, low), builder.shuffle_vector(x, y, high))


@intrinsic
def greatest(_typing: Any, x: Any) -> Any:
    """In every lane the greatest of those of the same row: lanes i, i + `ROWS`, ..."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, shift = args[0], ROWS
        while shift < LANES:
            order = ir.Constant(_INTS, [(lane + shift) % LANES for lane in range(LANES)])
            turned = builder.shuffle_vector(x, ir.Constant(_VECTOR, ir.Undefined), order)
            x = builder.select(builder.fcmp_ordered(">", turned, x), turned, x)
            shift *= 2
        return x

    return LANES_TYPE(x), codegen


@intrinsic
def products(_typing: Any, queries: Any, keys: Any, first: Any, d: Any) -> Any:
    """The products of `ROWS` query rows with `KEYS` keys: lane 4 i + r is that of key i with row r.

    Args:
        queries: (array, at, stride): float32 rows, filled up with zeros to whole vectors; the first begins at `at`.
        keys: (array, places): what `load` takes, and int64: where each key begins.
        first: Number of the first key in `places`.
        d: Elements of a key.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first, d = args[2:]
        tile = _Tile(context, builder, signature.args[1], args[1])
        rows = _rows(context, builder, signature.args[0], args[0])
        starts = [tile.start(builder.add(first, first.type(i))) for i in range(KEYS)]
        sums = [[cgutils.alloca_once_value(builder, _constant(0.0)) for _ in rows] for _ in starts]

        def step(at: Any, count: Any) -> None:
            wide = [_load_vector(builder, builder.gep(row, [at])) for row in rows]
            for start, of_key in zip(starts, sums, strict=True):
                x = tile.read(start, at, count)
                for row, total in zip(wide, of_key, strict=True):
                    builder.store(_call(builder, "fma", x, row, builder.load(total)), total)

        tile.over(d, step)
        return _sums(builder, [builder.load(total) for of_key in sums for total in of_key])

    return LANES_TYPE(queries, keys, first, d), codegen


@intrinsic
def add_weighted(_typing: Any, sums: Any, weights: Any, count: Any, values: Any, d: Any, following: Any) -> Any:
    """Add to `ROWS` rows the values of some keys, each times its weight.

    Args:
        sums: (array, at, stride): float32 rows, whole vectors long; the first begins at `at`.
        weights: float32: element 4 i + r is that of key i for row r.
        count: Keys.
        values: (array, places): what `load` takes, and int64: where the value of each key begins.
        d: Elements of a value.
        following: (array, places): what is read next, key by key; meanwhile as much of it is asked for.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        count, d = args[2], args[4]
        kinds = signature.args
        tile, soon = (_Tile(context, builder, kinds[which], args[which]) for which in (3, 5))
        rows = _rows(context, builder, kinds[0], args[0])
        weight = _element(context, builder, kinds[1], args[1], count.type(0))

        def columns(column: Any, vectors: int, lanes: Any) -> None:
            at = [builder.add(column, column.type(v * LANES)) for v in range(vectors)]
            targets = [[builder.gep(row, [place]) for place in at] for row in rows]
            totals = [
                [cgutils.alloca_once_value(builder, _load_vector(builder, one)) for one in of_row] for of_row in targets
            ]
            with cgutils.for_range(builder, count, intp=count.type) as loop:
                start = tile.start(loop.index)
                if vectors > 1:
                    soon.fetch(builder.gep(soon.start(loop.index), [column]), vectors * LANES)
                mine = builder.gep(weight, [builder.mul(loop.index, count.type(ROWS))])
                one = [builder.load(builder.gep(mine, [count.type(row)])) for row in range(ROWS)]
                spread = [_spread(builder, each, _VECTOR) for each in one]
                for v, place in enumerate(at):
                    x = tile.read(start, place, lanes)
                    for row in range(ROWS):
                        total = totals[row][v]
                        builder.store(_call(builder, "fma", x, spread[row], builder.load(total)), total)
            for of_row, into in zip(totals, targets, strict=True):
                for total, target in zip(of_row, into, strict=True):
                    builder.store(builder.load(total), builder.bitcast(target, _VECTOR.as_pointer()), align=4)

        wide = builder.mul(builder.sdiv(d, d.type(TILE * LANES)), d.type(TILE * LANES))
        with cgutils.for_range_slice(builder, d.type(0), wide, d.type(TILE * LANES), d.type) as (column, _):
            columns(column, TILE, None)
        tile.over(d, lambda column, lanes: columns(column, 1, lanes), wide)
        return context.get_dummy_value()

    return types.void(sums, weights, count, values, d, following), codegen


def _rows(context: Any, builder: Any, kind: Any, given: Any) -> list[Any]:
    """Pointers to `ROWS` rows of (array, at, stride)."""
    array, at, stride = cgutils.unpack_tuple(builder, given)
    first = _element(context, builder, kind[0], array, at)
    return [builder.gep(first, [builder.mul(stride, stride.type(row))]) for row in range(ROWS)]


class _Tile:
    """Code that reads rows of one array, given with int64 places: where each row begins."""

    def __init__(self, context: Any, builder: Any, kind: Any, given: Any) -> None:
        self.context, self.builder = context, builder
        self.kind, self.numbers = kind[0], kind[1]
        array, self.places = cgutils.unpack_tuple(builder, given)
        self.stored = context.get_value_type(self.kind.dtype)
        self.item_bytes = context.get_abi_sizeof(self.stored)
        self.data = context.make_array(self.kind)(context, builder, array).data

    def start(self, number: Any) -> Any:
        """Pointer to the row with this number."""
        place = _element(self.context, self.builder, self.numbers, self.places, number)
        return self.builder.gep(self.data, [self.builder.load(place)])

    def read(self, start: Any, at: Any, count: Any) -> Any:
        """A vector of the row, of which `count` lanes exist (None: all)."""
        pointer = self.builder.gep(start, [at])
        if count is not None:
            return _first_lanes(self.builder, self.kind, self.stored, pointer, count)
        stored = ir.VectorType(self.stored, LANES)
        return _wide(
            self.builder, self.kind, self.builder.load(self.builder.bitcast(pointer, stored.as_pointer()), align=1)
        )

    def fetch(self, pointer: Any, elements: int) -> None:
        """Ask for the lines of elements at a pointer, into the second cache; it need not lie within the array."""
        byte = ir.IntType(8).as_pointer()
        form = ir.FunctionType(ir.VoidType(), [byte, _INT, _INT, _INT])
        function = cgutils.get_or_insert_function(self.builder.module, form, "llvm.prefetch.p0")
        read, level, data_cache = (ir.Constant(_INT, value) for value in (0, 2, 1))
        for at in range(0, elements, LINE_BYTES // self.item_bytes):
            line = self.builder.bitcast(self.builder.gep(pointer, [ir.Constant(ir.IntType(64), at)]), byte)
            self.builder.call(function, [line, read, level, data_cache])

    def over(self, d: Any, step: Any, start: Any = None) -> None:
        """Code for all vectors of a row from `start` on: `step(at, lanes there or None)`."""
        builder, of = self.builder, d.type
        whole = builder.mul(builder.sdiv(d, of(LANES)), of(LANES))
        with cgutils.for_range_slice(builder, of(0) if start is None else start, whole, of(LANES), of) as (at, _):
            step(at, None)
        with builder.if_then(builder.icmp_signed("<", whole, d)):
            step(whole, builder.trunc(builder.sub(d, whole), _INT))


def _load_vector(builder: Any, pointer: Any) -> Any:
    return builder.load(builder.bitcast(pointer, _VECTOR.as_pointer()), align=4)


def _sums(builder: Any, vectors: list[Any]) -> Any:
    """Lane i of the result is the sum over the lanes of vector i."""
    span = 1
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [_halve(builder, x, y, span) for x, y in pairs]
        span *= 2
    return vectors[0]


@intrinsic
def prefetch(_typing: Any, values: Any, first: Any, d: Any) -> Any:
    """Ask for the cache lines of `KEYS` rows of d elements, of (array, places) from row `first` on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, first, d = args
        tile = _Tile(context, builder, signature.args[0], args[0])
        step = LINE_BYTES // tile.item_bytes
        starts = [tile.start(builder.add(first, first.type(i))) for i in range(KEYS)]
        with cgutils.for_range_slice(builder, d.type(0), d, d.type(step), d.type) as (at, _):
            for start in starts:
                tile.fetch(builder.gep(start, [at]), step)
        return context.get_dummy_value()

    return types.void(values, first, d), codegen
