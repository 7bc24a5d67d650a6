"""The shortest ways through an allreduce in shared memory: one microsecond of Python around the compiled call.

Each is a function that gives the result for a value that fits; None, and nothing done, for any other. The check of the
value is part of the compiled call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from topocomm.execute.compiled_lane import CompiledLane
from topocomm.execute.compiled_run import ALL_LOOKS
from topocomm.execute.kernels import shared_memory as word
from topocomm.execute.lanes import BUSY
from topocomm.execute.structure import Fields
from topocomm.execute.waiting import UnderWay
from topocomm.operators.operator import Layout

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator

PAIR = 2
Quick = Callable[[Any], Any]


def quick_bare(comm: Communicator, lanes: Sequence[CompiledLane], layout: Layout, tag: int) -> Quick:
    """For bare NumPy arrays."""
    shared, words = lanes[0].compiled.shared, [lane.compiled.words for lane in lanes]
    shape, dtype = (*layout.leading, *layout.fields[0].row_shape), layout.fields[0].dtype
    run, start, mode, looks = word.run, word.START, word.DIRECT | word.CHECKED, ALL_LOOKS
    done, misfit, empty, begin = word.DONE, word.MISFIT, np.empty, comm.recorder.begin

    def quick(x: Any) -> NDArray[Any] | None:
        if comm.refusal is not None:
            return None
        y = empty(shape, dtype)
        comm.refusal = BUSY
        epoch = shared.epoch + 1
        at = run(words[epoch & 1], start, epoch, looks, mode, (id(x), id(y)))
        if at == misfit:
            comm.refusal = None
            return None
        shared.epoch = epoch
        number = begin(tag)
        if at != done:
            finish(comm, lanes[epoch & 1], at, (x, y), UnderWay(lanes[epoch & 1], tag, number))
        comm.refusal = None
        return y

    return quick


def quick_pair(comm: Communicator, lanes: Sequence[CompiledLane], layout: Layout, tag: int) -> Quick:
    """For dicts of two NumPy arrays."""
    shared, words = lanes[0].compiled.shared, [lane.compiled.words for lane in lanes]
    (name0, shape0, dtype0), (name1, shape1, dtype1) = (
        (f.name, (*layout.leading, *f.row_shape), f.dtype) for f in layout.fields
    )
    run_pair, looks, done, misfit, empty = word.run_pair, ALL_LOOKS, word.DONE, word.MISFIT, np.empty
    begin = comm.recorder.begin

    def quick(x: Any) -> Fields | None:
        if type(x) is not dict or len(x) != PAIR or comm.refusal is not None:
            return None
        try:
            x0, x1 = x[name0], x[name1]
        except KeyError:
            return None
        y0, y1 = empty(shape0, dtype0), empty(shape1, dtype1)
        comm.refusal = BUSY
        epoch = shared.epoch + 1
        at = run_pair(words[epoch & 1], epoch, looks, id(x0), id(x1), id(y0), id(y1))
        if at == misfit:
            comm.refusal = None
            return None
        shared.epoch = epoch
        number = begin(tag)
        if at != done:
            finish(comm, lanes[epoch & 1], at, (x0, x1, y0, y1), UnderWay(lanes[epoch & 1], tag, number))
        comm.refusal = None
        return {name0: y0, name1: y1}

    return quick


def finish(comm: Communicator, lane: CompiledLane, at: int, kept: Sequence[Any], call: UnderWay) -> None:
    """Wait for a call that stands at `at`, on these arrays."""
    try:
        lane.stand_at(at, kept)
        comm.waiting.for_call(call)
    except BaseException as error:
        comm.fail_with(error)
        raise
