"""One rank's part of a plan in shared memory, in one compiled call: write, publish, await, fold.

numba hoists plain loads out of a loop, so counters are read with an acquire load and written with a release store:
whoever sees a counter sees everything its writer wrote before. A rank that writes its value with plain stores takes
every cache line back from the ranks that read it in an earlier call, one after the other: 30 ns a line between
cores without a common cache. Stores past the caches do not wait.

Arrays come as `id(array)`: the address of their data stands after the object head (PyArrayObject in NumPy's C API).
So one compiled function serves all dtypes and shapes, and a call costs half a microsecond instead of several.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from topocomm.execute.kernels.layout import (
    COUNTERS,
    DONE,
    FUNCTION,
    LOOKS,
    OWN,
    OWN_COUNTER,
    PACK,
    PROGRAM,
    STRIDE,
    TARGETS,
    TASKS,
    UNPACK,
)

DATA_AT = object.__basicsize__
VECTOR = ir.VectorType(ir.IntType(64), 4)
VECTOR_BYTES = 32
WORDS = types.int64[::1]
MOST_FIELDS = 4
"""Operators of more fields run outside this function."""


def _pointer(builder, address, kind):
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic
def _load_word(typingctx, address):
    def codegen(context, builder, signature, args):
        return builder.load(_pointer(builder, args[0], ir.IntType(64)))

    return types.int64(types.int64), codegen


@intrinsic
def _load_acquire(typingctx, address):
    def codegen(context, builder, signature, args):
        return builder.load_atomic(_pointer(builder, args[0], ir.IntType(64)), "acquire", 8, typ=ir.IntType(64))

    return types.int64(types.int64), codegen


@intrinsic
def _store_release(typingctx, address, value):
    def codegen(context, builder, signature, args):
        builder.store_atomic(args[1], _pointer(builder, args[0], ir.IntType(64)), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _yield_core(typingctx):
    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _call(typingctx, function, argument):
    """Call the C function `void (int64_t *)` at an address."""

    def codegen(context, builder, signature, args):
        word = ir.IntType(64).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [word])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [builder.inttoptr(args[1], word)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _copy_byte(typingctx, to, come_from):
    def codegen(context, builder, signature, args):
        to, come_from = (_pointer(builder, address, ir.IntType(8)) for address in args)
        builder.store(builder.load(come_from), to)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _stream_vector(typingctx, to, come_from):
    """Copy VECTOR_BYTES past the caches; `to` is aligned to them."""

    def codegen(context, builder, signature, args):
        to, come_from = (_pointer(builder, address, VECTOR) for address in args)
        loaded = builder.load(come_from)
        loaded.align = 1
        stored = builder.store(loaded, to)
        stored.align = VECTOR_BYTES
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _drain(typingctx):
    """Order streamed stores before any later one: x86 does so at a fence only."""

    def codegen(context, builder, signature, args):
        if platform.machine() in ("x86_64", "AMD64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse.sfence", (), kind), [])
        return context.get_dummy_value()

    return types.void(), codegen


@njit
def _data(object_id):
    return _load_word(object_id + DATA_AT)


@njit
def _stream(to, come_from, size_bytes):
    at = min(-to % VECTOR_BYTES, size_bytes)
    for byte in range(at):
        _copy_byte(to + byte, come_from + byte)
    while at + VECTOR_BYTES <= size_bytes:
        _stream_vector(to + at, come_from + at)
        at += VECTOR_BYTES
    for byte in range(at, size_bytes):
        _copy_byte(to + byte, come_from + byte)


@njit
def _copy(to, come_from, size_bytes):
    for byte in range(size_bytes):
        _copy_byte(to + byte, come_from + byte)


@njit
def _begin(lane, objects, direct):
    """Write the value for the others to read, and tell the folds where the caller's arrays are."""
    for at in range(lane[PACK], lane[OWN], 4):
        come_from = _data(objects[lane[at]]) + lane[at + 1]
        if come_from != lane[at + 2]:  # else it lies in the send buffer already
            _stream(lane[at + 2], come_from, lane[at + 3])
    for at in range(lane[OWN], lane[TARGETS], 4):
        lane[lane[at + 3]] = _data(objects[lane[at]]) + lane[at + 1] if direct else lane[at + 2]
    for at in range(lane[TARGETS], lane[UNPACK], 3):
        lane[lane[at + 2]] = _data(objects[lane[at]]) + lane[at + 1]
    _drain()


@njit
def _advance(lane, tasks, at, epoch, looks):
    """Run the stages from `at` on; where it stands, TASKS when through."""
    counters, base, patient = lane[COUNTERS], epoch * STRIDE, looks - lane[LOOKS]
    while at < lane[TASKS]:
        _store_release(counters + lane[OWN_COUNTER], base + lane[at])
        folds = at + 2 + 2 * lane[at + 1]
        for wait in range(at + 2, folds, 2):
            while _load_acquire(counters + lane[wait]) < base + lane[wait + 1]:
                looks -= 1
                if looks <= 0:
                    return at
                if looks <= patient:
                    _yield_core()
        for fold in range(folds + 1, folds + 1 + lane[folds]):
            _call(lane[FUNCTION], tasks + 8 * lane[fold])
        at = folds + 1 + lane[folds]
    return at


def _run(lane, at, epoch, looks, direct, objects):
    """Run a lane, or go on with it; where it stands, or DONE.

    Args:
        lane: int64, as `kernels.layout` describes.
        at: Where it stands; at its start, lane[PROGRAM].
        epoch: Number of calls made on this memory, this one included.
        looks: How often to look at counters at most.
        direct: Whether folds may read the caller's arrays: not where the result goes to the same arrays.
        objects: id() of the caller's C-contiguous arrays by field, then of those for the result.
    """
    if at == lane[PROGRAM]:
        _begin(lane, objects, direct)
    at = _advance(lane, lane.ctypes.data, at, epoch, looks)
    if at < lane[TASKS]:
        return at
    for copy in range(lane[UNPACK], lane[PROGRAM], 4):
        _copy(_data(objects[lane[copy]]) + lane[copy + 1], lane[copy + 2], lane[copy + 3])
    return DONE


def _signature(fields: int) -> Any:
    word = types.int64
    return word(WORDS, word, word, word, types.boolean, types.UniTuple(word, 2 * fields))


run = njit([_signature(fields) for fields in range(1, MOST_FIELDS + 1)], cache=True, nogil=True)(_run)


@njit(types.int64(types.int64), cache=True)
def data_address(object_id):
    """Where the data of the array with this id() starts."""
    return _data(object_id)
