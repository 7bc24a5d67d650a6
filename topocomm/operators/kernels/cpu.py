"""Compiled folds of elementwise formulas: C functions `void fold(int64_t *task)`, one per formula and dtypes.

numba compiles the formula for scalars; the loop around it is written in LLVM's language, where it can be said that its
turns do not depend on each other. So it becomes vector code even where the result goes to the memory of an operand,
whatever the number of fields. More than two operands are folded block by block, so that the result so far stays in
the core's first cache. No fast-math anywhere: two builds would round differently.

numba keeps the machine code on disk, by the `key` of a fold, which has all that it depends on but for this file: numba
itself knows a change of this file.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, config, from_dtype, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic, overload

from topocomm.operators.dtypes import computed, kind
from topocomm.operators.elementwise import Dtypes, Formula, select
from topocomm.operators.kernels.fingerprint import fingerprint
from topocomm.operators.tensors import BFLOAT16

if config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("numba is switched off by NUMBA_DISABLE_JIT")

FOLD = types.void(types.CPointer(types.int64))
BLOCK_BYTES = 8192
"""Of the result, while more than two operands are folded."""
VECTOR_BYTES = 32
"""Of loops that wait for memory: cores that store less than 64 bytes a cycle are up to 10% slower with wider ones."""
HALF, SINGLE, WORD = (ir.IntType(bits) for bits in (16, 32, 64))
FLOAT = ir.FloatType()


class Part(NamedTuple):
    """A scalar of a value: where it is stored, and as what it is computed with."""

    field: int
    stored: np.dtype[Any]
    stride: int
    """Scalars from one row to the next: 2 for the halves of complex numbers."""
    shift: int
    computed: Any
    """numba's type."""


class Spec(NamedTuple):
    """What a key stands for."""

    function: Any
    parts: tuple[Part, ...]
    fields: int
    streams: bool
    """Whether memory is what it waits for: one instruction an item, nothing converted."""


_specs: dict[str, Spec] = {}


@overload(select, jit_options={"forceinline": True})
def _select(condition, left, right):
    return lambda condition, left, right: left if condition else right


@cache
def compile_formula(formula: Formula, dtypes: Dtypes) -> int:
    """The address of the compiled fold of a formula; it lives as long as the process."""
    parts = tuple(_parts(dtypes, formula.wide))
    told = ",".join(dtype.name for dtype in dtypes) + " as " + ",".join(str(part.computed) for part in parts)
    key = f"{formula.name}({told}) {fingerprint(formula.function)}"
    function = njit(formula.function, forceinline=True, error_model="numpy")
    streams = formula.ufunc is not None and not any(_is_widened(part) for part in parts)
    _specs[key] = Spec(function, parts, len(dtypes), streams)
    block_rows = max(1, BLOCK_BYTES // sum(dtype.itemsize for dtype in dtypes))
    _alive.append(_make_fold(key, len(dtypes), block_rows))
    address: int = _alive[-1].address
    return address


_alive: list[Any] = []


def _make_fold(key: str, fields: int, block_rows: int) -> Any:
    first_field = 2 + fields

    @cfunc(FOLD, cache=True, error_model="numpy")
    def fold(task):
        rows, operands = task[0], task[1]
        words = carray(task, (2 + (2 + operands) * fields,))
        out, left = first_field, first_field + fields
        step = block_rows if operands > 2 else max(rows, 1)  # two are one pass
        for start in range(0, rows, step):
            count = min(step, rows - start)
            if operands == 1:
                _copy_rows(key, words.ctypes.data, out, left, start, count)
                continue
            _combine_rows(key, words.ctypes.data, out, left, left + fields, start, count)
            for operand in range(2, operands):
                _combine_rows(key, words.ctypes.data, out, out, left + operand * fields, start, count)

    return fold


def _parts(dtypes: Dtypes, wide: bool):
    for field, dtype in enumerate(dtypes):
        if kind(dtype) == "c":
            half = np.dtype(f"f{dtype.itemsize // 2}")
            for shift in range(2):
                yield Part(field, half, 2, shift, from_dtype(half))
        elif kind(dtype) == "b":  # True is the byte 1
            yield Part(field, np.dtype(np.uint8), 1, 0, types.uint8)
        else:
            yield Part(field, dtype, 1, 0, from_dtype(computed(dtype, wide)))


@intrinsic(prefer_literal=True)
def _combine_rows(typingctx, key, task, out, left, right, start, count):
    """`count` rows of out = left combined with right; the words of the task at out, left and right say where."""
    spec = _specs[key.literal_value]
    scalars = tuple(part.computed for part in spec.parts)
    function = typingctx.resolve_value_type(spec.function)
    signature = typingctx.resolve_function_type(function, scalars + scalars, {})

    def codegen(context, builder, _, args):
        _, task, out, left, right, start, count = args
        places = [_places(builder, spec, task, value) for value in (out, left, right)]
        combine = context.get_function(function, signature)
        for library in combine.libs:
            context.active_code_library.add_linking_library(library)

        def turn(row, loop):
            given = [
                _load(builder, place, part, row, loop)
                for operand in places[1:]
                for place, part in zip(operand, spec.parts, strict=True)
            ]
            made = combine(builder, given)
            results, kinds = [made], [signature.return_type]
            if len(spec.parts) > 1:
                kinds = list(signature.return_type)
                results = [builder.extract_value(made, index) for index in range(len(kinds))]
            for place, part, result, made_as in zip(places[0], spec.parts, results, kinds, strict=True):
                _store(builder, context.cast(builder, result, made_as, part.computed), place, part, row, loop)

        _loop(builder, spec, start, count, turn)
        return context.get_dummy_value()

    return types.void(key, *[types.int64] * 6), codegen


@intrinsic(prefer_literal=True)
def _copy_rows(typingctx, key, task, out, left, start, count):
    spec = _specs[key.literal_value]

    def codegen(context, builder, _, args):
        _, task, out, left, start, count = args
        to, come_from = (_places(builder, spec, task, value) for value in (out, left))

        def turn(row, loop):
            for target, source, part in zip(to, come_from, spec.parts, strict=True):
                item = _access(loop, builder.load(_at(builder, source, part, row), align=part.stored.itemsize))
                _access(loop, builder.store(item, _at(builder, target, part, row), align=part.stored.itemsize))

        _loop(builder, spec, start, count, turn)
        return context.get_dummy_value()

    return types.void(key, *[types.int64] * 5), codegen


def _places(builder, spec: Spec, task, first_word) -> list[Any]:
    """Pointers to the parts of a value whose fields' addresses stand in the task from `first_word` on."""
    words = builder.inttoptr(task, WORD.as_pointer())
    fields = [
        builder.load(builder.gep(words, [builder.add(first_word, ir.Constant(WORD, field))]))
        for field in range(spec.fields)
    ]
    return [builder.inttoptr(fields[part.field], _stored_type(part).as_pointer()) for part in spec.parts]


def _loop(builder, spec: Spec, start, count, turn: Callable[[Any, Any], None]) -> None:
    """Call `turn(row, loop)` to write a loop over rows; accesses marked with `loop` do not depend on other turns."""
    module = builder.module
    loop = module.add_metadata([ir.Constant(SINGLE, len(module.metadata))])
    hints: list[Any] = []
    if spec.streams:
        lanes = VECTOR_BYTES // max(part.stored.itemsize for part in spec.parts)
        width = ir.MetaDataString(module, "llvm.loop.vectorize.width"), ir.Constant(SINGLE, lanes)
        hints.append(module.add_metadata(width))
    loop.operands = (loop, *hints)  # a loop's name is a node that holds itself
    before = builder.block
    body, after = builder.append_basic_block("rows"), builder.append_basic_block("done")
    end = builder.add(start, count)
    builder.cbranch(builder.icmp_signed("<", start, end), body, after)
    builder.position_at_end(body)
    row = builder.phi(WORD)
    row.add_incoming(start, before)
    turn(row, loop)
    following = builder.add(row, ir.Constant(WORD, 1))
    row.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, end), body, after).set_metadata("llvm.loop", loop)
    builder.position_at_end(after)


def _is_widened(part: Part) -> bool:
    return kind(part.stored) == "f" and part.computed.bitwidth > 8 * part.stored.itemsize


def _access(loop, instruction):
    instruction.set_metadata("llvm.mem.parallel_loop_access", loop)
    return instruction


def _at(builder, place, part: Part, row):
    index = row
    if part.stride > 1:
        index = builder.add(builder.mul(row, ir.Constant(WORD, part.stride)), ir.Constant(WORD, part.shift))
    return builder.gep(place, [index])


def _load(builder, place, part: Part, row, loop):
    item = _access(loop, builder.load(_at(builder, place, part, row), align=part.stored.itemsize))
    if kind(part.stored) != "f":
        return item
    if part.stored.itemsize == 2:
        item = _widen_bfloat16(builder, item) if part.stored == BFLOAT16 else _widen_float16(builder, item)
    return builder.fpext(item, ir.DoubleType()) if _is_halved(part) else item


def _store(builder, item, place, part: Part, row, loop) -> None:
    if kind(part.stored) == "f":
        if _is_halved(part):
            item = builder.fptrunc(item, FLOAT)
        if part.stored.itemsize == 2:
            item = _round_bfloat16(builder, item) if part.stored == BFLOAT16 else _round_float16(builder, item)
    _access(loop, builder.store(item, _at(builder, place, part, row), align=part.stored.itemsize))


def _is_halved(part: Part) -> bool:
    """Whether float64, in which it is computed with, is rounded to float32 on the way to memory."""
    return part.computed == types.float64 and part.stored != np.float64


def _stored_type(part: Part):
    if kind(part.stored) == "f":
        return {2: HALF, 4: FLOAT, 8: ir.DoubleType()}[part.stored.itemsize]
    return ir.IntType(8 * part.stored.itemsize)


# Floats of 16 bits by integer arithmetic: the same on machines with and without instructions for them.


def _bits(builder, number: int):
    return ir.Constant(SINGLE, number)


def _widen_bfloat16(builder, item):
    return builder.bitcast(builder.shl(builder.zext(item, SINGLE), _bits(builder, 16)), FLOAT)


def _is_nan(builder, item):
    return builder.fcmp_unordered("uno", item, item)


def _round_bfloat16(builder, item):
    """To the nearest, ties to even, by the carry of an addition."""
    bits = builder.bitcast(item, SINGLE)
    odd = builder.and_(builder.lshr(bits, _bits(builder, 16)), _bits(builder, 1))
    rounded = builder.lshr(builder.add(builder.add(bits, odd), _bits(builder, 0x7FFF)), _bits(builder, 16))
    return builder.trunc(builder.select(_is_nan(builder, item), _bits(builder, 0x7FC0), rounded), HALF)


def _widen_float16(builder, item):
    """The exponent moves from a bias of 15 to one of 127 by a product with 2^112, which also makes subnormals whole."""
    bits = builder.zext(item, SINGLE)
    sign = builder.shl(builder.and_(bits, _bits(builder, 0x8000)), _bits(builder, 16))
    magnitude = builder.shl(builder.and_(bits, _bits(builder, 0x7FFF)), _bits(builder, 13))
    scaled = builder.fmul(builder.bitcast(magnitude, FLOAT), ir.Constant(FLOAT, 2.0**112))
    special = builder.icmp_unsigned(">=", magnitude, _bits(builder, 0x7C00 << 13))
    infinite = builder.or_(magnitude, _bits(builder, 0x7F800000))
    chosen = builder.select(special, infinite, builder.bitcast(scaled, SINGLE))
    return builder.bitcast(builder.or_(chosen, sign), FLOAT)


def _round_float16(builder, item):
    """To the nearest, ties to even: subnormals by adding 0.5, whose last bit is theirs; others by a carry."""
    bits = builder.bitcast(item, SINGLE)
    sign = builder.and_(builder.lshr(bits, _bits(builder, 16)), _bits(builder, 0x8000))
    magnitude = builder.and_(bits, _bits(builder, 0x7FFFFFFF))
    half = ir.Constant(FLOAT, 0.5)
    small = builder.sub(
        builder.bitcast(builder.fadd(builder.bitcast(magnitude, FLOAT), half), SINGLE), builder.bitcast(half, SINGLE)
    )
    odd = builder.and_(builder.lshr(magnitude, _bits(builder, 13)), _bits(builder, 1))
    carried = builder.add(builder.add(magnitude, odd), _bits(builder, 0xFFF - (112 << 23) & 0xFFFFFFFF))
    usual = builder.lshr(carried, _bits(builder, 13))
    is_small = builder.icmp_unsigned("<", magnitude, _bits(builder, 113 << 23))
    is_large = builder.icmp_unsigned(">=", magnitude, _bits(builder, 143 << 23))
    finite = builder.select(is_small, small, usual)
    limited = builder.select(is_large, _bits(builder, 0x7C00), finite)
    chosen = builder.select(_is_nan(builder, item), _bits(builder, 0x7E00), limited)
    return builder.trunc(builder.or_(chosen, sign), HALF)
