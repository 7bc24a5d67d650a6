"""Publishing and awaiting progress counters in shared memory, compiled by numba.

numba hoists plain loads out of a loop, so counters are read with an acquire load and written with a release store:
whoever sees a counter sees everything its writer wrote before.
"""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

COUNTERS = types.int64[::1]
STRIDE = 1 << 16
"""Counter values of one call: epoch * STRIDE + stage + 1."""


def _element_pointer(context, builder, array_type, array, index):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


@intrinsic
def _load_acquire(typingctx, array, index):
    def codegen(context, builder, signature, args):
        pointer = _element_pointer(context, builder, signature.args[0], args[0], args[1])
        return builder.load_atomic(pointer, "acquire", 8, typ=ir.IntType(64))

    return types.int64(array, index), codegen


@intrinsic
def _store_release(typingctx, array, index, value):
    def codegen(context, builder, signature, args):
        pointer = _element_pointer(context, builder, signature.args[0], args[0], args[1])
        builder.store_atomic(args[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(array, index, value), codegen


@intrinsic
def _yield_core(typingctx):
    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@njit(types.boolean(COUNTERS, COUNTERS, COUNTERS, types.int64), cache=True, nogil=True)
def publish_and_wait(counters, state, plan, spins):
    """Publish this rank's progress, then wait for others'; False when `spins` looks were not enough.

    Args:
        counters: int64, one counter per rank, on a cache line each, shared.
        state: int64 [1]: number of calls made, this one included.
        plan: int64: index of the own counter, stage + 1, looks before giving the core away after each, then pairs
            (index of another's counter, that rank's stage + 1).
        spins: How often to look at most.
    """
    base = state[0] * STRIDE
    patient = spins - plan[2]
    _store_release(counters, plan[0], base + plan[1])  # type: ignore[call-arg]
    for at in range(3, plan.size, 2):
        while _load_acquire(counters, plan[at]) < base + plan[at + 1]:
            spins -= 1
            if spins <= 0:
                return False
            if spins <= patient:
                _yield_core()
    return True
