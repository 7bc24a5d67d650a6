"""Instructions for memory that ranks share: numba has no names for them.

Addresses are int64. numba hoists plain loads out of a loop, so counters are read with an acquire load and written with
a release store: whoever sees a counter sees everything its writer wrote before.
"""

from __future__ import annotations

import platform
import time

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

VECTOR = ir.VectorType(ir.IntType(64), 4)
VECTOR_BYTES = 32
ON_X86 = platform.machine() in ("x86_64", "AMD64")
WORD = ir.IntType(64)


def _pointer(builder, address, kind):
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic
def load_word(typingctx, address):
    """The word at an address."""

    def codegen(context, builder, signature, args):
        return builder.load(_pointer(builder, args[0], WORD))

    return types.int64(types.int64), codegen


@intrinsic
def load_acquire(typingctx, address):
    """The word at an address; nothing later is read before it."""

    def codegen(context, builder, signature, args):
        return builder.load_atomic(_pointer(builder, args[0], WORD), "acquire", 8, typ=WORD)

    return types.int64(types.int64), codegen


@intrinsic
def store_release(typingctx, address, value):
    """Set the word at an address; everything earlier is written before it."""

    def codegen(context, builder, signature, args):
        builder.store_atomic(args[1], _pointer(builder, args[0], WORD), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def yield_core(typingctx):
    """Let another process run on this core."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def call(typingctx, function, argument):
    """Call the C function `void (int64_t *)` at an address."""

    def codegen(context, builder, signature, args):
        word = WORD.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [word])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [builder.inttoptr(args[1], word)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def copy_byte(typingctx, to, come_from):
    """Copy one byte."""

    def codegen(context, builder, signature, args):
        to, come_from = (_pointer(builder, address, ir.IntType(8)) for address in args)
        builder.store(builder.load(come_from), to)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _vector_copy(builder, args, to_align):
    to, come_from = (_pointer(builder, address, VECTOR) for address in args)
    loaded = builder.load(come_from)
    loaded.align = 1
    stored = builder.store(loaded, to)
    stored.align = to_align
    return stored


@intrinsic
def copy_vector(typingctx, to, come_from):
    """Copy VECTOR_BYTES."""

    def codegen(context, builder, signature, args):
        _vector_copy(builder, args, 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def stream_vector(typingctx, to, come_from):
    """Copy VECTOR_BYTES past the caches; `to` is aligned to them."""

    def codegen(context, builder, signature, args):
        stored = _vector_copy(builder, args, VECTOR_BYTES)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def cycles(typingctx):
    """The processor's clock on x86, where every process may read it; elsewhere 0: plain stores then seem quick."""

    def codegen(context, builder, signature, args):
        if not ON_X86:
            return ir.Constant(WORD, 0)
        kind = ir.FunctionType(WORD, [])
        return builder.call(builder.module.declare_intrinsic("llvm.readcyclecounter", (), kind), [])

    return types.int64(), codegen


@intrinsic
def drain(typingctx):
    """Order streamed stores before any later one: x86 does so at a fence only."""

    def codegen(context, builder, signature, args):
        if ON_X86:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.fence("release")  # costs nothing; keeps LLVM from moving stores across the instruction
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse.sfence", (), kind), [])
            builder.fence("release")
        return context.get_dummy_value()

    return types.void(), codegen


@njit
def stream(to, come_from, size_bytes):
    """Copy past the caches; `drain` comes before a release store."""
    at = min(-to % VECTOR_BYTES, size_bytes)
    for byte in range(at):
        copy_byte(to + byte, come_from + byte)
    while at + VECTOR_BYTES <= size_bytes:
        stream_vector(to + at, come_from + at)
        at += VECTOR_BYTES
    for byte in range(at, size_bytes):
        copy_byte(to + byte, come_from + byte)


@njit
def copy(to, come_from, size_bytes):
    """Copy."""
    at = 0
    while at + VECTOR_BYTES <= size_bytes:
        copy_vector(to + at, come_from + at)
        at += VECTOR_BYTES
    for byte in range(at, size_bytes):
        copy_byte(to + byte, come_from + byte)


@intrinsic
def store_word(typingctx, address, value):
    """Set the word at an address."""

    def codegen(context, builder, signature, args):
        builder.store(args[1], _pointer(builder, args[0], WORD))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def monotonic_ns(typingctx):
    """What `time.clock_gettime_ns(time.CLOCK_MONOTONIC)` gives."""

    def codegen(context, builder, signature, args):
        now = cgutils.alloca_once(builder, ir.ArrayType(WORD, 2))  # seconds and nanoseconds
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), now.type])
        clock = ir.Constant(ir.IntType(32), time.CLOCK_MONOTONIC)
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "clock_gettime"), [clock, now])
        seconds, rest = (builder.extract_value(builder.load(now), index) for index in range(2))
        return builder.add(builder.mul(seconds, ir.Constant(WORD, 1_000_000_000)), rest)

    return types.int64(), codegen
