"""The shortest ways through calls in shared memory: a fifth of a microsecond of Python around the compiled call.

Each is a function of a value and where its result goes, or None for new memory. It gives the result where both fit, or
NOTHING on ranks that get none; None, and nothing done, elsewhere. The check is part of the compiled call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from topocomm.execute.calls.result_memory import LEAST_BYTES
from topocomm.execute.host.call_engine import NOTHING
from topocomm.execute.host.compiled_engine import CompiledEngine
from topocomm.execute.host.compiled_run import ALL_LOOKS
from topocomm.execute.host.kernels.builtin_function import DONE_AND_SWEEP, make_builtin, result_words
from topocomm.execute.liveness.recorder import MASK, SWEEP_MASK
from topocomm.execute.liveness.waiting import UnderWay
from topocomm.execute.session import BUSY, Session
from topocomm.operators.tensors import BFLOAT16, as_array, as_tensor

Quick = Callable[[Any, Any], Any]


class Results(NamedTuple):
    """What a call gives this rank.

    Attributes:
        shapes: (name, shape, dtype) of every field.
        given: Whether it gives anything.
    """

    shapes: Sequence[tuple[str, tuple[int, ...], np.dtype[Any]]]
    given: bool


def quick_arrays(
    session: Session, engines: Sequence[CompiledEngine], results: Results, tag: int, *, bare: bool
) -> Quick:
    """For dicts of NumPy arrays, or for bare ones."""
    make, call = _maker(session, results, bare=bare), _builtin(session, engines, results, tag, bare=bare)

    def quick(x: Any, out: Any) -> Any:
        if session.refusal is not None:
            return None
        try:
            session.refusal = BUSY
            if make is not None and out is None:
                out = make()
            made = call(x, out)
            if type(made) is tuple:
                made = _goes_on(session, engines, tag, *made)
            session.refusal = None
        except BaseException as error:  # an interrupt comes after the compiled code
            session.fail_with(error)
            raise
        return made

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


def _maker(session: Session, results: Results, *, bare: bool) -> Callable[[], Any] | None:
    """What makes large results; None where the compiled code makes them."""
    if not results.given or sum(prod(shape) * dtype.itemsize for _, shape, dtype in results.shapes) < LEAST_BYTES:
        return None
    empty, shapes = session.results.empty, results.shapes
    if bare:
        ((_, shape, dtype),) = shapes
        return lambda: empty(shape, dtype)
    return lambda: {name: empty(shape, dtype) for name, shape, dtype in shapes}


def _builtin(
    session: Session, engines: Sequence[CompiledEngine], results: Results, tag: int, *, bare: bool
) -> Callable[[Any, Any], Any]:
    """What makes a whole call."""
    words, shared, recorder = (
        [engine.compiled.words for engine in engines],
        engines[0].compiled.shared,
        session.recorder,
    )
    places = [*(one.ctypes.data for one in words), words[0].size]
    places += [one.buffer_info()[0] for one in (shared.calls, recorder.count, recorder.tags, recorder.times_ns)]
    told = result_words(results.shapes, NOTHING, bare=bare, gives=results.given)
    return make_builtin(np.array([*places, MASK, SWEEP_MASK, tag, ALL_LOOKS, *told], np.int64), results)


def _goes_on(session: Session, engines: Sequence[CompiledEngine], tag: int, at: int, result: Any, *arrays: Any) -> Any:
    """The result of a call that stands at `at`, brought to its end."""
    if at == DONE_AND_SWEEP:
        session.recorder.sweep()
        return result
    engine = engines[engines[0].compiled.shared.epoch & 1]
    engine.stand_at(at, arrays)
    session.waiting.for_call(UnderWay(engine, tag, session.recorder.calls))
    return result
