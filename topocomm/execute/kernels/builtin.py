"""Builtin functions of the interpreter that make a whole call on a lane.

What `numba.njit` returns takes its arguments apart one by one: with id() of every array, counting the call and noting
it, that is two microseconds of Python a call. A builtin gets the arguments as they lie, by METH_FASTCALL, and does the
rest in compiled code: a tenth of that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

from topocomm.execute.kernels.memory import (
    let_interpreter_go,
    load_word,
    monotonic_ns,
    python_int,
    store_word,
    take_interpreter,
)
from topocomm.execute.kernels.shared_memory import DATA_AT, DONE, KEY, MISFIT, START, built_as, run_inline
from topocomm.operators.kernels.fingerprint import fingerprint

METH_FASTCALL = 0x80
"""CPython's: function(self, array of arguments, their number)."""
LANES, LANE_WORDS, EPOCH, CALLS, TAGS, TIMES, MASK, SWEEP_MASK, TAG, LOOKS, MODE = 0, *range(2, 12)
"""Where in a state stand: addresses of the words of both lanes, and how many words; addresses of the number of calls on
them, of the recorder's number of calls, its tags and its times; its places, and its calls between two sweeps, less one
each; the call's tag; looks and mode as `shared_memory.run` has them."""
STATE_WORDS = MODE + 1
DONE_AND_SWEEP = -3
"""Where a call stands that is through, when it is time for a sweep."""


class _MethodDef(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@intrinsic
def _words(typingctx, address):
    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], ir.IntType(64).as_pointer())

    return types.CPointer(types.int64)(types.int64), codegen


def _enter(state, objects):
    """Make a call; as `shared_memory.run` says, or DONE_AND_SWEEP. What fits is counted and noted."""
    state = carray(_words(state), (STATE_WORDS,))
    epoch = load_word(state[EPOCH]) + 1
    lane = carray(_words(state[LANES + (epoch & 1)]), (state[LANE_WORDS],))
    thread = let_interpreter_go()
    at = run_inline(lane, START, epoch, state[LOOKS], state[MODE], objects)
    if at != MISFIT:
        store_word(state[EPOCH], epoch)
        number = load_word(state[CALLS]) + 1
        store_word(state[CALLS], number)
        place = 8 * (number & state[MASK])
        store_word(state[TAGS] + place, state[TAG])
        store_word(state[TIMES] + place, monotonic_ns())
        if at == DONE and number & state[SWEEP_MASK] == 0:
            at = DONE_AND_SWEEP
    take_interpreter(thread)
    return python_int(at)


_enter_inline = njit(_enter)
_ADDRESS = types.int64
_FUNCTION = _ADDRESS(_ADDRESS, _ADDRESS, _ADDRESS)


def _make_two(key: str) -> Any:
    @cfunc(_FUNCTION, cache=True, error_model="numpy")
    def enter(state, given, count):
        built_as(key)
        return _enter_inline(load_word(state + DATA_AT), (load_word(given), load_word(given + 8)))

    return enter


def _make_four(key: str) -> Any:
    @cfunc(_FUNCTION, cache=True, error_model="numpy")
    def enter(state, given, count):
        built_as(key)
        objects = (load_word(given), load_word(given + 8), load_word(given + 16), load_word(given + 24))
        return _enter_inline(load_word(state + DATA_AT), objects)

    return enter


_KEY = fingerprint(_enter) + KEY
_COMPILED = {2: _make_two(_KEY), 4: _make_four(_KEY)}
_METHODS = {count: _MethodDef(b"call", function.address, METH_FASTCALL, None) for count, function in _COMPILED.items()}
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


def make_builtin(arrays: int, state: NDArray[np.int64]) -> Callable[..., int]:
    """A builtin that takes so many arrays, 2 or 4: the value's, then the result's. It looks at nothing but their types.

    It returns where the call stands, as `shared_memory.run` does, or DONE_AND_SWEEP.

    Args:
        arrays: How many; calls with fewer arguments read past them.
        state: As described above; it lives as long as the builtin.
    """
    builtin: Callable[..., int] = _new(ctypes.addressof(_METHODS[arrays]), state, None)
    return builtin
