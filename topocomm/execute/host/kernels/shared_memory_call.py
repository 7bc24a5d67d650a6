"""One rank's part of a plan in shared memory, in one compiled call: write, publish, await, fold.

A rank that writes its value with plain stores takes every cache line back from the ranks that read it in an earlier
call, one after the other: 30 ns a line between cores without a common cache, where stores past the caches do not wait;
between cores with one, plain stores are quicker. So every now and then some calls are made either way, and what they
work, apart from waiting, is timed: all ranks make the same calls, and try the same way in the same call.

Arrays come as `id(array)`: what NumPy's C API calls PyArrayObject stands there. So one compiled function serves all
dtypes and shapes, and checks them, and a call costs half a microsecond instead of several.

A lane is told to this code as one int64 array of a header and sections.

Sections follow each other in the order of the header's last nine words, each the index where one starts:

    SHAPES    per array: id() of its dtype, number of axes, then their sizes
    PACK      per piece of the value that other ranks read, or that is a result: array, byte offset in it, address in
              shared memory, bytes
    PACK_OWN  the same of pieces that only folds of this rank read: written if these may not read the caller's arrays
    OWN       per operand that is this rank's own value: array, byte offset in it, address in shared memory, and the
              index of the word that tells its fold where to read
    TARGETS   per fold that makes a piece of the result, which no fold of this rank reads: array, byte offset in it,
              index of the word that tells it where to write
    UNPACK    per other piece of the result: array, byte offset in it, address, bytes
    CREDITS   per rank that must have finished an earlier call before this one writes: byte offset of its counter and
              the progress awaited
    PROGRAM   per stage: own progress to publish, number of waits, then for each the byte offset of a counter and the
              progress awaited; number of folds, then for each the index of its task; number of words about pieces of
              the result that these folds made and other ranks read: array, byte offset, address, bytes
    TASKS     tasks as `topocomm.operators.operator.Kernel` describes

Arrays are numbered: the value's fields in the operator's order, then those of the result.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types
from numba.extending import intrinsic

from topocomm.execute.host.kernels.atomics import (
    call,
    copy,
    cycles,
    drain,
    load_acquire,
    load_word,
    store_release,
    stream,
    yield_core,
)
from topocomm.operators.kernels.fingerprint import fingerprint

COUNTERS = 0
"""Address of the progress counters."""
FUNCTION = 1
"""Address of the operator's compiled fold; 0 where folds run outside: a lane then stands there for a while."""
OWN_COUNTER = 2
"""Byte offset of this rank's counter."""
LOOKS = 3
"""Looks at a counter before the core is given away after every look."""
ARRAY_TYPE = 4
"""id() of numpy.ndarray."""
STREAMING = 5
"""Whether the value is written past the caches."""
UNTIL_CHOICE = 6
"""Calls until that is chosen anew, the last ones on trial."""
FINAL = 7
"""Progress to publish when through; 0 where no rank waits for it."""
MEMORIES = 8
"""Where the two memories of the call begin and end."""
WORKED = 12
"""Clock cycles that this call has worked so far."""
QUICKEST = 13
"""Those of the quickest call on trial, by plain stores and past the caches."""
SIZES = 15
"""Bytes of every array."""
MOST_FIELDS = 4
"""Operators of more fields run outside this file."""
SHAPES, PACK, PACK_OWN, OWN, TARGETS, UNPACK, CREDITS, PROGRAM, TASKS = range(23, 32)
HEADER_WORDS = 32
START = 0
"""Where a lane stands before a call."""
TO_FOLD = 1 << 32
"""Added to the index of a stage's folds where it stands when they are to be run outside."""

DONE = -1
"""Where a lane stands when it is through."""
MISFIT = -2
"""Where it stands when the value was to be checked and is not as the lane says; nothing was done."""

DIRECT = 1
"""Folds may read the caller's arrays: not where the result goes to the same memory."""
CHECKED = 2
"""The value's arrays are checked first: NumPy arrays of the lane's dtypes and shapes, C-contiguous."""
GIVEN = 4
"""So are the result's: writable, and apart from all others but the value's of the same field and size."""
STRIDE = 1 << 16
"""Counter values of one call: epoch * STRIDE + stage + 1."""
FINISHED = STRIDE - 1
"""What is published when through: more than any stage, less than the next call's."""

DATA_AT = object.__basicsize__
"""PyArrayObject: the object head, which ends with the type; data, nd, dimensions, strides, base, descr, flags."""
TYPE_AT, AXES_AT, SIZES_AT, DTYPE_AT, FLAGS_AT = (DATA_AT + 8 * word for word in (-1, 1, 2, 5, 6))
PLAIN = 0x001 | 0x100
"""NPY_ARRAY_C_CONTIGUOUS and NPY_ARRAY_ALIGNED."""
WRITEABLE = 0x400
"""NPY_ARRAY_WRITEABLE."""
WORDS = types.int64[::1]
CALLS_A_WAY = 4
"""Calls on trial past the caches, then by plain stores; the first of each warms up."""
CALLS_A_CHOICE = 512
NO_TIME = 1 << 62


@njit
def _data(object_id):
    return load_word(object_id + DATA_AT)


@njit
def _write(lane, objects, first, end, streaming):
    """Write pieces of arrays to shared memory. What lies there already is left."""
    for at in range(first, end, 4):
        come_from = _data(objects[lane[at]]) + lane[at + 1]
        if come_from != lane[at + 2]:
            if streaming:
                stream(lane[at + 2], come_from, lane[at + 3])
            else:
                copy(lane[at + 2], come_from, lane[at + 3])


@njit
def _learn(lane):
    """Take note of how long a call on trial worked; after the last one, choose how to write."""
    left = lane[UNTIL_CHOICE]
    if left <= 2 * CALLS_A_WAY and left % CALLS_A_WAY != 0:
        lane[QUICKEST + lane[STREAMING]] = min(lane[QUICKEST + lane[STREAMING]], lane[WORKED])
    if left == 1:
        lane[STREAMING] = lane[QUICKEST + 1] < lane[QUICKEST]
        lane[QUICKEST] = lane[QUICKEST + 1] = NO_TIME
        left = CALLS_A_CHOICE
    lane[UNTIL_CHOICE] = left - 1


@njit
def _is_plain(array_type, words, at, object_id, flags):
    """Whether an object is an array as the word `at` and the next ones say, with these flags."""
    if load_word(object_id + TYPE_AT) != array_type or load_word(object_id + DTYPE_AT) != words[at]:
        return False
    axes = load_word(object_id + AXES_AT) & 0xFFFFFFFF
    if axes != words[at + 1] or load_word(object_id + FLAGS_AT) & flags != flags:
        return False
    sizes, same = load_word(object_id + SIZES_AT), True
    for axis in range(axes):
        same &= load_word(sizes + 8 * axis) == words[at + 2 + axis]
    return same


@njit
def _fits(lane, objects, first, flags):
    """Whether the arrays from `first` on, one a field, are what the lane was made for."""
    at = lane[SHAPES]
    for index in range(first + len(objects) // 2):
        if index >= first and not _is_plain(lane[ARRAY_TYPE], lane, at, objects[index], flags):
            return False
        at += 2 + lane[at + 1]
    return True


@njit
def _fitting_mode(lane, objects, mode):
    """The mode of a call on these arrays: without DIRECT where the result's are the value's; MISFIT if they misfit."""
    fields = len(objects) // 2
    if mode & CHECKED and not _fits(lane, objects, 0, PLAIN):
        return MISFIT
    if not mode & GIVEN:
        return mode
    if not _fits(lane, objects, fields, PLAIN | WRITEABLE):
        return MISFIT
    for field in range(fields):
        begin = _data(objects[fields + field])
        size = lane[SIZES + fields + field]
        end = begin + size
        for at in range(MEMORIES, MEMORIES + 4, 2):
            if begin < lane[at + 1] and lane[at] < end:
                return MISFIT
        for other in range(2 * fields):
            its = _data(objects[other])
            if other == field and its == begin and lane[SIZES + other] == size:
                mode &= ~DIRECT
            elif other != fields + field and begin < its + lane[SIZES + other] and its < end:
                return MISFIT
    return mode


@njit
def _begin(lane, objects, direct):
    """Write the value for the others to read, and tell the folds where the caller's arrays are."""
    if lane[UNTIL_CHOICE] <= 2 * CALLS_A_WAY:
        lane[STREAMING] = lane[UNTIL_CHOICE] > CALLS_A_WAY
    _write(lane, objects, lane[PACK], lane[PACK_OWN], lane[STREAMING])
    if not direct:
        _write(lane, objects, lane[PACK_OWN], lane[OWN], False)
    for at in range(lane[OWN], lane[TARGETS], 4):
        lane[lane[at + 3]] = _data(objects[lane[at]]) + lane[at + 1] if direct else lane[at + 2]
    for at in range(lane[TARGETS], lane[UNPACK], 3):
        lane[lane[at + 2]] = _data(objects[lane[at]]) + lane[at + 1]
    drain()


@njit
def _await(lane, waits, end, base, looks):
    """The looks that are left when all counters of a list stand where they must; 0 if they do not."""
    counters, patient = lane[COUNTERS], looks - lane[LOOKS]
    for wait in range(waits, end, 2):
        while load_acquire(counters + lane[wait]) < base + lane[wait + 1]:
            looks -= 1
            if looks <= 0:
                return 0
            if looks <= patient:
                yield_core()
    return looks


@njit
def _advance(lane, tasks, at, epoch, looks, objects):
    """Run the stages from `at` on, or what follows folds run outside; where it stands, TASKS when through."""
    counters, base = lane[COUNTERS], epoch * STRIDE
    while at < lane[TASKS] or at >= TO_FOLD:
        folds = at - TO_FOLD
        if folds < 0:
            store_release(counters + lane[OWN_COUNTER], base + lane[at])
            folds = at + 2 + 2 * lane[at + 1]
            lane[WORKED] += cycles()
            looks = _await(lane, at + 2, folds, base, looks)
            lane[WORKED] -= cycles()
            if looks <= 0:
                return at
            if lane[FUNCTION] == 0 and lane[folds] > 0:
                return folds + TO_FOLD
            for fold in range(folds + 1, folds + 1 + lane[folds]):
                call(lane[FUNCTION], tasks + 8 * lane[fold])
        at = folds + 1 + lane[folds]
        if lane[at] > 0:
            _write(lane, objects, at + 1, at + 1 + lane[at], lane[STREAMING])
            drain()
        at += 1 + lane[at]
    return at


def _run(lane, at, epoch, looks, mode, objects):
    """Run a lane, or go on with it; where it stands, or DONE, or MISFIT.

    Args:
        lane: int64, as described above.
        at: Where it stands: START, or what the call before returned; if that is TO_FOLD or more, the folds were run.
        epoch: Number of calls made on this memory, this one included.
        looks: How often to look at counters at most.
        mode: DIRECT, CHECKED and GIVEN, or-ed.
        objects: id() of the caller's C-contiguous arrays by field, then of those for the result.
    """
    if at < lane[PROGRAM]:
        if at == START:
            mode = _fitting_mode(lane, objects, mode)
            if mode == MISFIT:
                return MISFIT
        if lane[CREDITS] < lane[PROGRAM] and _await(lane, lane[CREDITS], lane[PROGRAM], epoch * STRIDE, looks) <= 0:
            return lane[CREDITS]
        lane[WORKED] = -cycles()
        _begin(lane, objects, mode & DIRECT if lane[FUNCTION] else 0)
        at = lane[PROGRAM]
    else:
        lane[WORKED] -= cycles()
    at = _advance(lane, lane.ctypes.data, at, epoch, looks, objects)
    if at != lane[TASKS]:
        lane[WORKED] += cycles()
        return at
    for piece in range(lane[UNPACK], lane[CREDITS], 4):
        copy(_data(objects[lane[piece]]) + lane[piece + 1], lane[piece + 2], lane[piece + 3])
    lane[WORKED] += cycles()
    _learn(lane)
    if lane[FINAL]:
        store_release(lane[COUNTERS] + lane[OWN_COUNTER], epoch * STRIDE + lane[FINAL])
    return DONE


@intrinsic(prefer_literal=True)
def built_as(typingctx, key):
    """Nothing. numba's cache on disk knows a change of the file that a function is in; a key names all it calls."""
    return types.void(key), lambda context, builder, signature, args: context.get_dummy_value()


def _signature(fields: int) -> Any:
    word = types.int64
    return word(WORDS, word, word, word, word, types.UniTuple(word, 2 * fields))


run_inline = njit(_run)
KEY = fingerprint(_run)


def _make_run(key: str) -> Any:
    @njit([_signature(fields) for fields in range(1, MOST_FIELDS + 1)], cache=True, nogil=True)
    def run(lane, at, epoch, looks, mode, objects):
        built_as(key)
        return run_inline(lane, at, epoch, looks, mode, objects)

    return run


run = _make_run(KEY)
"""`_run`, compiled."""


def _make_matches(key: str) -> Any:
    @njit(types.boolean(WORDS, types.int64), cache=True)
    def matches(expected, object_id):
        built_as(key)
        return _data(object_id) == expected[0] and _is_plain(expected[1], expected, 2, object_id, PLAIN)

    return matches


matches = _make_matches(KEY)
"""Whether the array with this id() is read right, (expected, id): expected is an int64 array of the address of its
data, id() of its type, id() of its dtype, number of axes, their sizes."""
