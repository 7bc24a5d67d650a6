"""Folds of functions of one row, compiled by numba: C functions `void fold(int64_t *task)`, one for each set of fields.

Every step combines a row into memory of its own, so that the function never writes to what it reads, and the last row
is copied to the result. numba keeps the machine code on disk; the `key` has all that it depends on.
"""

from __future__ import annotations

import sys
from functools import cache
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, config, from_dtype, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.core.errors import NumbaError
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from topocomm.operators.dtypes import kind
from topocomm.operators.fingerprint import fingerprint
from topocomm.operators.layout import ALIGNMENT_BYTES, BoundField

if config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("numba is switched off by NUMBA_DISABLE_JIT")

FOLD = types.void(types.CPointer(types.int64))
WORD = ir.IntType(64)
WORD_BYTES = 8


class Spec(NamedTuple):
    """Contents of a key."""

    function: Any
    fields: tuple[BoundField, ...]

    @property
    def views(self) -> tuple[Any, ...]:
        """The types, as numba has them, of the rows of one operand."""
        return tuple(types.Array(from_dtype(f.dtype), max(1, len(f.row_shape)), "C") for f in self.fields)


_specs: dict[str, Spec] = {}
_alive: list[Any] = []
_announced: set[str] = set()


def covers(fields: tuple[BoundField, ...]) -> bool:
    """Return whether numba computes with these dtypes; it does not with floats of 16 bits."""
    return all(kind(f.dtype) and not (kind(f.dtype) == "f" and f.dtype.itemsize == 2) for f in fields)


@cache
def compile_row_function(function: Any, fields: tuple[BoundField, ...]) -> int:
    """Return the address of the compiled fold of a function of one row; it lives as long as the process.

    Raises:
        NumbaError: numba does not take the function.
    """
    described = ";".join(f"{f.dtype.name}{list(f.row_shape)}" for f in fields)
    key = f"{getattr(function, '__name__', function)}({described}) {fingerprint(function, with_globals=True)}"
    spec = Spec(function if hasattr(function, "py_func") else njit(function, error_model="numpy"), fields)
    _specs[key] = spec
    *offsets, end = accumulate((-(-f.row_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for f in fields), initial=0)
    try:
        _alive.append(_make_fold(key, tuple(offsets), end))
    except (NumbaError, AttributeError):
        spec.function.compile(spec.views * 3)  # its own error, not one of what is around it
        raise
    address: int = _alive[-1].address
    return address


def _make_fold(key: str, offsets: tuple[int, ...], row_bytes: int) -> Any:
    fields = len(offsets)
    step = WORD_BYTES * fields

    def fold(task):
        rows, operands = task[0], task[1]
        words = carray(task, (2 + (2 + operands) * fields,))
        result = words.ctypes.data + WORD_BYTES * (2 + fields)
        memory = np.empty(2 * row_bytes + ALIGNMENT_BYTES, np.uint8)
        places = np.empty(2 * fields, np.int64)  # of the fields of two rows, which take turns
        start = memory.ctypes.data + -memory.ctypes.data % ALIGNMENT_BYTES
        for index in range(2 * fields):
            places[index] = start + (index // fields) * row_bytes + offsets[index % fields]
        turns = places.ctypes.data
        for row in range(rows):
            left, left_row = result + step, row
            for operand in range(2, operands + 1):
                out = turns + (operand & 1) * step
                _combine_row(key, left, left_row, result + operand * step, row, out)
                left, left_row = out, 0
            _copy_row(key, left, left_row, result, row)
        memory[0], places[0] = 0, 0  # numba frees an array after its last use: this is it

    try:
        return cfunc(FOLD, cache=True, error_model="numpy")(fold)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return cfunc(FOLD, error_model="numpy")(fold)  # no folder to keep it in can be written


@intrinsic(prefer_literal=True)
def _combine_row(typingctx, key, left, left_row, right, right_row, out):
    """Row 0 of out = two rows combined; left, right and out are where the addresses of their fields stand."""
    name = key.literal_value
    spec = _specs[name]
    if name not in _announced:  # numba compiles: what it has on disk does not come here
        _announced.add(name)
        sys.stderr.write(f"topocomm: compiling, once: fold of {name.rpartition(' ')[0]}\n")
    function = typingctx.resolve_value_type(spec.function)
    signature = typingctx.resolve_function_type(function, spec.views * 3, {})

    def codegen(context, builder, _, args):
        _, left, left_row, right, right_row, out = args
        combine = context.get_function(function, signature)
        for library in combine.libs:
            context.active_code_library.add_linking_library(library)
        zero = ir.Constant(WORD, 0)
        views = []
        for fields, row in ((left, left_row), (right, right_row), (out, zero)):
            views += _views(context, builder, spec, fields, row)
        combine(builder, views)
        return context.get_dummy_value()

    return types.void(key, *[types.int64] * 5), codegen


@intrinsic(prefer_literal=True)
def _copy_row(typingctx, key, left, left_row, out, out_row):
    spec = _specs[key.literal_value]

    def codegen(context, builder, _, args):
        _, left, left_row, out, out_row = args
        for index, f in enumerate(spec.fields):
            rows = _row_address(builder, out, index, f, out_row), _row_address(builder, left, index, f, left_row)
            pointers = [builder.inttoptr(address, ir.IntType(8).as_pointer()) for address in rows]
            cgutils.raw_memcpy(builder, *pointers, ir.Constant(WORD, f.row_bytes), 1)
        return context.get_dummy_value()

    return types.void(key, *[types.int64] * 4), codegen


def _row_address(builder, fields, index: int, field: BoundField, row):
    words = builder.inttoptr(fields, WORD.as_pointer())
    first = builder.load(builder.gep(words, [ir.Constant(WORD, index)]))
    return builder.add(first, builder.mul(row, ir.Constant(WORD, field.row_bytes)))


def _views(context, builder, spec: Spec, fields, row) -> list[Any]:
    """Return the row of every field as a numba array without an owner."""
    views = []
    for index, (f, kind_of_view) in enumerate(zip(spec.fields, spec.views, strict=True)):
        shape = f.row_shape or (1,)
        strides = [prod(shape[axis + 1 :]) * f.dtype.itemsize for axis in range(len(shape))]
        array = make_array(kind_of_view)(context, builder)
        address = _row_address(builder, fields, index, f, row)
        populate_array(
            array,
            data=builder.inttoptr(address, array.data.type),
            shape=cgutils.pack_array(builder, [ir.Constant(WORD, size) for size in shape]),
            strides=cgutils.pack_array(builder, [ir.Constant(WORD, stride) for stride in strides]),
            itemsize=ir.Constant(WORD, f.dtype.itemsize),
            meminfo=None,
        )
        views.append(array._getvalue())
    return views


__all__ = ["NumbaError", "compile_row_function", "covers"]
