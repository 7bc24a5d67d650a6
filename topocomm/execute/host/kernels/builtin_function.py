"""A builtin function of the interpreter that makes a whole call on a lane: a value in, its result out.

Python takes a dict apart, makes arrays and puts them in a dict in a microsecond, and what `numba.njit` returns takes
its arguments apart in another. A builtin gets its arguments as they lie, by METH_FASTCALL, and does the rest in
compiled code: a fifth of that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from topocomm.execute.host.kernels.atomics import load_word, monotonic_ns, store_word
from topocomm.execute.host.kernels.interpreter import (
    NEW_FROM_DESCR,
    fill,
    hold,
    let_interpreter_go,
    new_array,
    new_dict,
    new_int,
    new_tuple,
    next_item,
    numpy_function,
    put_item,
    release,
    same_text,
    take_interpreter,
)
from topocomm.execute.host.kernels.shared_memory_call import (
    CHECKED,
    DATA_AT,
    DIRECT,
    DONE,
    GIVEN,
    KEY,
    MISFIT,
    MOST_FIELDS,
    SIZES_AT,
    START,
    TYPE_AT,
    built_as,
    run_inline,
)
from topocomm.operators.kernels.fingerprint import fingerprint

METH_FASTCALL = 0x80
"""CPython's: function(self, array of arguments, their number)."""
LANES, LANE_WORDS, EPOCH, CALLS, TAGS, TIMES, MASK, SWEEP_MASK, TAG, LOOKS = 0, *range(2, 11)
"""Where in a state stand: addresses of the words of both lanes, and how many words; addresses of the number of calls on
them, of the recorder's number of calls, its tags and its times; its places, and its calls between two sweeps, less one
each; the call's tag; looks as `shared_memory.run` has them."""
FIELDS, BARE, GIVES, NEW_ARRAY, NONE, NOTHING, TEXT, DICT, ARRAY = range(11, 20)
"""Number of fields; whether the one field comes without a dict; whether this rank gets a result; the function for new
arrays; None; what is given where there is no result; str, dict and numpy.ndarray."""
NAMES = 20
"""The fields' names."""
RESULTS = NAMES + MOST_FIELDS
"""Where in the state the results are described, field by field: dtype, number of axes, their sizes."""
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


@intrinsic
def _room(typingctx):
    """The address of memory for this call: a dict's cursor, key and value, then the arrays."""

    def codegen(context, builder, signature, args):
        words = cgutils.alloca_once(builder, ir.ArrayType(ir.IntType(64), 3 + 2 * MOST_FIELDS))
        return builder.ptrtoint(words, ir.IntType(64))

    return types.int64(), codegen


@njit
def _take(state, given, room, objects, first):
    """Whether `given` has the fields, in their order and no others: then they are the objects from `first` on."""
    if state[BARE]:
        objects[first] = given
        return True
    if load_word(given + TYPE_AT) != state[DICT]:
        return False
    store_word(room, 0)
    for field in range(state[FIELDS]):
        if not next_item(given, room):
            return False
        key, name = load_word(room + 8), state[NAMES + field]
        if key != name and (load_word(key + TYPE_AT) != state[TEXT] or not same_text(key, name)):
            return False
        objects[first + field] = load_word(room + 16)
    return not next_item(given, room)


@njit
def _make(state, results_at, objects):
    """Make the arrays of the result; False where memory is out."""
    fields, at = state[FIELDS], RESULTS
    for field in range(fields):
        sizes = results_at + 8 * (at - RESULTS + 2)
        made = new_array(state[NEW_ARRAY], state[ARRAY], state[at], state[at + 1], sizes)
        objects[fields + field] = made
        if made == 0:
            for earlier in range(field):
                release(objects[fields + earlier])
            return False
        at += 2 + state[at + 1]
    return True


@njit
def _put_together(state, objects):
    """The result as new object, of arrays that are new and become its own; 0 where memory is out."""
    fields = state[FIELDS]
    if state[BARE]:
        return objects[fields]
    result = new_dict()
    right = result != 0
    for field in range(fields):
        right = right and put_item(result, state[NAMES + field], objects[fields + field])
        release(objects[fields + field])
    if not right:
        release(result)
        return 0
    return result


@njit
def _count(state, epoch, at):
    """Count and note a call that stands at `at`; where it stands, or DONE_AND_SWEEP."""
    store_word(state[EPOCH], epoch)
    number = load_word(state[CALLS]) + 1
    store_word(state[CALLS], number)
    place = 8 * (number & state[MASK])
    store_word(state[TAGS] + place, state[TAG])
    store_word(state[TIMES] + place, monotonic_ns())
    return DONE_AND_SWEEP if at == DONE and number & state[SWEEP_MASK] == 0 else at


@njit
def _run(state, mode, objects):
    """Run a lane; as `shared_memory.run` says, or DONE_AND_SWEEP. What fits is counted and noted.

    The objects of a call that is not through stay held.
    """
    for index in range(len(objects)):  # other threads may take them out of their dict now
        hold(objects[index])
    thread = let_interpreter_go()
    epoch = load_word(state[EPOCH]) + 1
    lane = carray(_words(state[LANES + (epoch & 1)]), (state[LANE_WORDS],))
    at = run_inline(lane, START, epoch, state[LOOKS], mode, objects)
    if at != MISFIT:
        at = _count(state, epoch, at)
    take_interpreter(thread)
    if at < 0:
        for index in range(len(objects)):
            release(objects[index])
    return at


@njit
def _record(at, result, objects, held):
    """A new tuple of where a call stands, its result, and what is held: all become the tuple's. 0 and an error set."""
    record, number = new_tuple(2 + held), new_int(at)
    if record == 0 or number == 0 or result == 0:
        for index in range(held):
            release(objects[index])
        release(number)
        release(record)
        release(result)
        return 0
    fill(record, 0, number)
    fill(record, 1, result)
    for index in range(held):
        fill(record, 2 + index, objects[index])
    return record


@njit
def _given(thing):
    hold(thing)
    return thing


def _enter(state_id, x, out):
    """Make a call: its result, or a record if it is not DONE; None if it does not fit; 0 and an error set."""
    state_at = load_word(state_id + DATA_AT)
    state = carray(_words(state_at), (load_word(load_word(state_id + SIZES_AT)),))
    fields, room = state[FIELDS], _room()
    objects = carray(_words(room + 24), (2 * fields,))
    mode, makes = DIRECT | CHECKED, state[GIVES] != 0 and out == state[NONE]
    if not _take(state, x, room, objects, 0):
        return _given(state[NONE])
    if makes:
        if not _make(state, state_at + 8 * RESULTS, objects):
            return 0
    elif state[GIVES]:
        mode |= GIVEN
        if not _take(state, out, room, objects, fields):
            return _given(state[NONE])
    else:
        for field in range(fields):
            objects[fields + field] = objects[field]
    at = _run(state, mode, objects)
    if at == MISFIT:
        for field in range(fields if makes else 0):
            release(objects[fields + field])
        return _given(state[NONE])
    result = _put_together(state, objects) if makes else _given(out if state[GIVES] else state[NOTHING])
    return result if at == DONE else _record(at, result, objects, 2 * fields if at >= 0 else 0)


_enter_inline = njit(_enter)
_ADDRESS = types.int64


def _make_function(key: str) -> Any:
    @cfunc(_ADDRESS(_ADDRESS, _ADDRESS, _ADDRESS), cache=True, error_model="numpy")
    def enter(state, given, count):
        built_as(key)
        return _enter_inline(state, load_word(given), load_word(given + 8))

    return enter


_COMPILED = _make_function(fingerprint(_enter) + KEY)
_METHOD = _MethodDef(b"call", _COMPILED.address, METH_FASTCALL, None)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_METHOD))  # builtins read it when they go, at exit after this module
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


def result_words(
    shapes: Sequence[tuple[str, tuple[int, ...], np.dtype[Any]]], nothing: object, *, bare: bool, gives: bool
) -> list[int]:
    """What a state says, from FIELDS on, of what a call takes and gives.

    Args:
        shapes: (name, shape, dtype) of every field of the result.
        nothing: What is given where there is no result.
        bare: Whether the one field comes and goes without a dict.
        gives: Whether this rank gets a result.
    """
    objects = (None, nothing, str, dict, np.ndarray)
    names = [id(name) for name, _, _ in shapes]
    described = chain.from_iterable((id(dtype), len(shape), *shape) for _, shape, dtype in shapes)
    numbers = (len(shapes), int(bare), int(gives), numpy_function(NEW_FROM_DESCR))
    return [*numbers, *map(id, objects), *names, *[0] * (MOST_FIELDS - len(names)), *described]


def make_builtin(state: NDArray[np.int64], named: object) -> Callable[[Any, Any], Any]:
    """A builtin of a value and where its result goes, or None for new arrays.

    It gives the result where all fits and the call is through; None, and nothing done, where something does not fit;
    else a tuple: where the call stands, as `shared_memory.run` says or DONE_AND_SWEEP, the result, and of a call that
    is not through its arrays, the value's, then the result's.

    Args:
        state: As described above. A call with fewer arguments reads past them.
        named: Holds the objects that it names; state and this live as long as the builtin.
    """
    builtin: Callable[[Any, Any], Any] = _new(ctypes.addressof(_METHOD), state, named)
    return builtin
