"""The shortest ways through calls in shared memory: half a microsecond of Python around the compiled call.

Each is a function of a value and where its result goes, or None for new memory. It gives the result where both fit, or
NOTHING on ranks that get none; None, and nothing done, elsewhere. The check is part of the compiled call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topocomm.execute.compiled_lane import CompiledLane
from topocomm.execute.compiled_run import ALL_LOOKS
from topocomm.execute.kernels import shared_memory as word
from topocomm.execute.kernels.builtin import DONE_AND_SWEEP, make_builtin
from topocomm.execute.lanes import BUSY, NOTHING
from topocomm.execute.recorder import MASK, SWEEP_MASK
from topocomm.execute.result_memory import LEAST_BYTES
from topocomm.execute.waiting import UnderWay
from topocomm.operators.tensors import BFLOAT16, as_array, as_tensor

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator

PAIR = 2
Quick = Callable[[Any, Any], Any]
FRESH = word.DIRECT | word.CHECKED
INTO = FRESH | word.GIVEN
DONE, MISFIT = word.DONE, word.MISFIT


class Results(NamedTuple):
    """What a call gives this rank.

    Attributes:
        shapes: (name, shape, dtype) of every field.
        given: Whether it gives anything.
    """

    shapes: Sequence[tuple[str, tuple[int, ...], np.dtype[Any]]]
    given: bool


def quick_bare(comm: Communicator, lanes: Sequence[CompiledLane], results: Results, tag: int) -> Quick:
    """For bare NumPy arrays."""
    ((_, shape, dtype),) = results.shapes
    empty, gives = _maker(comm, results), results.given
    fresh, into = _builtins(comm, lanes, tag, 2)

    def quick(x: Any, out: Any) -> Any:
        if comm.refusal is not None:
            return None
        if not gives:
            y, call = x, fresh
        elif out is None:
            y, call = empty(shape, dtype), fresh
        else:
            y, call = out, into
        try:
            comm.refusal = BUSY
            at = call(x, y)
            if at != DONE and not _goes_on(comm, lanes, tag, at, (x, y)):
                return None
            comm.refusal = None
        except BaseException as error:  # an interrupt comes after the compiled code
            comm.fail_with(error)
            raise
        return y if gives else NOTHING

    return quick


def quick_pair(comm: Communicator, lanes: Sequence[CompiledLane], results: Results, tag: int) -> Quick:
    """For dicts of two NumPy arrays."""
    (name0, shape0, dtype0), (name1, shape1, dtype1) = results.shapes
    empty, names, gives = _maker(comm, results), [name0, name1], results.given
    fresh, into = _builtins(comm, lanes, tag, 4)

    def quick(x: Any, out: Any) -> Any:
        if type(x) is not dict or [*x] != names or comm.refusal is not None:  # another order is another call
            return None
        x0, x1 = x.values()
        if not gives:
            y0, y1, call = x0, x1, fresh
        elif out is None:
            y0, y1, call = empty(shape0, dtype0), empty(shape1, dtype1), fresh
        elif type(out) is dict and len(out) == PAIR and name0 in out and name1 in out:
            y0, y1, call = out[name0], out[name1], into
        else:
            return None
        try:
            comm.refusal = BUSY
            at = call(x0, x1, y0, y1)
            if at != DONE and not _goes_on(comm, lanes, tag, at, (x0, x1, y0, y1)):
                return None
            comm.refusal = None
        except BaseException as error:  # an interrupt comes after the compiled code
            comm.fail_with(error)
            raise
        if not gives:
            return NOTHING
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
        if made is None or made is NOTHING:
            return made
        if out is not None:
            return out
        return to_tensor(made) if bare else {name: to_tensor(part) for name, part in made.items()}

    return tensors


def _maker(comm: Communicator, results: Results) -> Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]:
    """What makes arrays for results; the shortest that does."""
    size_bytes = sum(prod(shape) * dtype.itemsize for _, shape, dtype in results.shapes)
    return np.empty if size_bytes < LEAST_BYTES else comm.results.empty


def _builtins(comm: Communicator, lanes: Sequence[CompiledLane], tag: int, arrays: int) -> list[Callable[..., int]]:
    """What makes a call with a new result, and one with a result that is given."""
    words, shared, recorder = [lane.compiled.words for lane in lanes], lanes[0].compiled.shared, comm.recorder
    places = [*(one.ctypes.data for one in words), words[0].size]
    places += [one.buffer_info()[0] for one in (shared.calls, recorder.count, recorder.tags, recorder.times_ns)]
    states = ([*places, MASK, SWEEP_MASK, tag, ALL_LOOKS, mode] for mode in (FRESH, INTO))
    return [make_builtin(arrays, np.array(state, np.int64)) for state in states]


def _goes_on(comm: Communicator, lanes: Sequence[CompiledLane], tag: int, at: int, arrays: Sequence[Any]) -> bool:
    """Bring a call that stands at `at`, on these arrays, to its end; False if it does not fit and nothing was done."""
    if at == MISFIT:
        comm.refusal = None
        return False
    if at == DONE_AND_SWEEP:
        comm.recorder.sweep()
        return True
    lane = lanes[lanes[0].compiled.shared.epoch & 1]
    lane.stand_at(at, arrays)
    comm.waiting.for_call(UnderWay(lane, tag, comm.recorder.calls))
    return True
