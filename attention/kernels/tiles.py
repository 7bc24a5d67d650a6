"""Tiles of the two matrix products of attention, in registers: scores of some keys, and sums of weighted values."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from attention.kernels.simd_lanes import (
    INT,
    INTS,
    KEYS,
    LANES,
    LANES_TYPE,
    ROWS,
    VECTOR,
    call,
    constant,
    element,
    first_lanes,
    repeated,
    widened,
)

TILE = 4 if LANES == 16 else 2
"""Vectors of a row that stay in registers while the values of all keys of a block are added."""
LINE_BYTES = 64


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
        sums = [[cgutils.alloca_once_value(builder, constant(0.0)) for _ in rows] for _ in starts]

        def step(at: Any, count: Any) -> None:
            wide = [_load_vector(builder, builder.gep(row, [at])) for row in rows]
            for start, of_key in zip(starts, sums, strict=True):
                x = tile.read(start, at, count)
                for row, total in zip(wide, of_key, strict=True):
                    builder.store(call(builder, "fma", x, row, builder.load(total)), total)

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
        weight = element(context, builder, kinds[1], args[1], count.type(0))

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
                spread = [repeated(builder, each, VECTOR) for each in one]
                for v, place in enumerate(at):
                    x = tile.read(start, place, lanes)
                    for row in range(ROWS):
                        total = totals[row][v]
                        builder.store(call(builder, "fma", x, spread[row], builder.load(total)), total)
            for of_row, into in zip(totals, targets, strict=True):
                for total, target in zip(of_row, into, strict=True):
                    builder.store(builder.load(total), builder.bitcast(target, VECTOR.as_pointer()), align=4)

        wide = builder.mul(builder.sdiv(d, d.type(TILE * LANES)), d.type(TILE * LANES))
        with cgutils.for_range_slice(builder, d.type(0), wide, d.type(TILE * LANES), d.type) as (column, _):
            columns(column, TILE, None)
        tile.over(d, lambda column, lanes: columns(column, 1, lanes), wide)
        return context.get_dummy_value()

    return types.void(sums, weights, count, values, d, following), codegen


def _rows(context: Any, builder: Any, kind: Any, given: Any) -> list[Any]:
    """Pointers to `ROWS` rows of (array, at, stride)."""
    array, at, stride = cgutils.unpack_tuple(builder, given)
    first = element(context, builder, kind[0], array, at)
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
        place = element(self.context, self.builder, self.numbers, self.places, number)
        return self.builder.gep(self.data, [self.builder.load(place)])

    def read(self, start: Any, at: Any, count: Any) -> Any:
        """A vector of the row, of which `count` lanes exist (None: all)."""
        pointer = self.builder.gep(start, [at])
        if count is not None:
            return first_lanes(self.builder, self.kind, self.stored, pointer, count)
        stored = ir.VectorType(self.stored, LANES)
        return widened(
            self.builder, self.kind, self.builder.load(self.builder.bitcast(pointer, stored.as_pointer()), align=1)
        )

    def fetch(self, pointer: Any, elements: int) -> None:
        """Ask for the lines of elements at a pointer, into the second cache; it need not lie within the array."""
        byte = ir.IntType(8).as_pointer()
        form = ir.FunctionType(ir.VoidType(), [byte, INT, INT, INT])
        function = cgutils.get_or_insert_function(self.builder.module, form, "llvm.prefetch.p0")
        read, level, data_cache = (ir.Constant(INT, value) for value in (0, 2, 1))
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
            step(whole, builder.trunc(builder.sub(d, whole), INT))


def _load_vector(builder: Any, pointer: Any) -> Any:
    return builder.load(builder.bitcast(pointer, VECTOR.as_pointer()), align=4)


def _sums(builder: Any, vectors: list[Any]) -> Any:
    """Lane i of the result is the sum over the lanes of vector i."""
    span = 1
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [_halve(builder, x, y, span) for x, y in pairs]
        span *= 2
    return vectors[0]


def _halve(builder: Any, x: Any, y: Any, span: int) -> Any:
    """In each group of 2 span lanes the sum of both halves of x's group, then that of y's."""
    first = [lane % span + lane // (2 * span) * 2 * span + (lane // span % 2) * LANES for lane in range(LANES)]
    low, high = (ir.Constant(INTS, [at + more for at in first]) for more in (0, span))
    return builder.fadd(builder.shuffle_vector(x, y, low), builder.shuffle_vector(x, y, high))


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
