"""The shortest ways through an allreduce in shared memory: one microsecond of Python around the compiled call.

Each is a function of a value and where its result goes, or None for new memory. It gives the result where both fit;
None, and nothing done, elsewhere. The check is part of the compiled call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from topocomm.execute.compiled_lane import CompiledLane
from topocomm.execute.compiled_run import ALL_LOOKS
from topocomm.execute.kernels import shared_memory as word
from topocomm.execute.lanes import BUSY
from topocomm.execute.result_memory import LEAST_BYTES
from topocomm.execute.structure import Fields
from topocomm.execute.waiting import UnderWay
from topocomm.operators.operator import Layout
from topocomm.operators.tensors import BFLOAT16, as_array, as_tensor

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator

PAIR = 2
Quick = Callable[[Any, Any], Any]
FRESH = word.DIRECT | word.CHECKED
INTO = FRESH | word.GIVEN


def quick_bare(comm: Communicator, lanes: Sequence[CompiledLane], layout: Layout, tag: int) -> Quick:
    """For bare NumPy arrays."""
    shared, words = lanes[0].compiled.shared, [lane.compiled.words for lane in lanes]
    shape, dtype = (*layout.leading, *layout.fields[0].row_shape), layout.fields[0].dtype
    run, start, looks = word.run, word.START, ALL_LOOKS
    done, misfit, empty, begin = word.DONE, word.MISFIT, _maker(comm, layout), comm.recorder.begin

    def quick(x: Any, out: Any) -> NDArray[Any] | None:
        if comm.refusal is not None:
            return None
        y, mode = (empty(shape, dtype), FRESH) if out is None else (out, INTO)
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
    run_pair, looks, done, misfit, empty = word.run_pair, ALL_LOOKS, word.DONE, word.MISFIT, _maker(comm, layout)
    begin, names = comm.recorder.begin, [name0, name1]

    def quick(x: Any, out: Any) -> Fields | None:
        if type(x) is not dict or list(x) != names or comm.refusal is not None:  # another order is another call
            return None
        if out is not None and (type(out) is not dict or len(out) != PAIR):
            return None
        x0, x1 = x.values()
        if out is None:
            y0, y1, mode = empty(shape0, dtype0), empty(shape1, dtype1), FRESH
        elif name0 in out and name1 in out:
            y0, y1, mode = out[name0], out[name1], INTO
        else:
            return None
        comm.refusal = BUSY
        epoch = shared.epoch + 1
        at = run_pair(words[epoch & 1], epoch, looks, mode, id(x0), id(x1), id(y0), id(y1))
        if at == misfit:
            comm.refusal = None
            return None
        shared.epoch = epoch
        number = begin(tag)
        if at != done:
            finish(comm, lanes[epoch & 1], at, (x0, x1, y0, y1), UnderWay(lanes[epoch & 1], tag, number))
        comm.refusal = None
        return {name0: y0, name1: y1} if out is None else out

    return quick


def quick_tensors(quick: Quick, dtypes: Collection[np.dtype[Any]], *, bare: bool) -> Quick:
    """For torch tensors in the place of the arrays that `quick` takes."""
    import torch

    half = BFLOAT16 in dtypes
    to_array: Callable[[Any], Any] = as_array if half else torch.Tensor.numpy
    to_tensor: Callable[[Any], Any] = as_tensor if half else torch.from_numpy

    def arrays(x: Any) -> Any:
        return to_array(x) if bare else {name: to_array(part) for name, part in x.items()}

    def tensors(x: Any, out: Any) -> Any:
        try:
            value, given = arrays(x), None if out is None else arrays(out)
        except (AttributeError, RuntimeError, TypeError):  # no tensors, or such as NumPy cannot have
            return None
        made = quick(value, given)
        if made is None or out is not None:
            return None if made is None else out
        return to_tensor(made) if bare else {name: to_tensor(part) for name, part in made.items()}

    return tensors


def _maker(comm: Communicator, layout: Layout) -> Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]:
    """What makes arrays for results; the shortest that does."""
    return np.empty if layout.packed_bytes(layout.rows) < LEAST_BYTES else comm.results.empty


def finish(comm: Communicator, lane: CompiledLane, at: int, kept: Sequence[Any], call: UnderWay) -> None:
    """Wait for a call that stands at `at`, on these arrays."""
    try:
        lane.stand_at(at, kept)
        comm.waiting.for_call(call)
    except BaseException as error:
        comm.fail_with(error)
        raise
