"""The fast path of calls in shared memory: a fifth of a microsecond of Python around a call in C.

Each is a function of a value and where its result goes, or None for new memory. It gives the result where both fit, or
NOTHING on ranks that get none; None, and nothing done, elsewhere. The check is part of the call in C.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from topocomm.execute.calls.result_memory import LEAST_BYTES
from topocomm.execute.host.call_engine import NOTHING
from topocomm.execute.host.compiled_engine import CompiledEngine
from topocomm.execute.liveness.recorder import SWEEP_MASK
from topocomm.execute.liveness.waiting import UnderWay
from topocomm.execute.session import BUSY, Session
from topocomm.native import _native
from topocomm.operators.tensors import BFLOAT16, as_array, as_tensor

FastPath = Callable[[Any, Any], Any]
Shapes = Sequence[tuple[str, tuple[int, ...], np.dtype[Any]]]


class Arrays(NamedTuple):
    """What a call takes and gives on this rank.

    Attributes:
        value: (name, shape, dtype) of every field of the value.
        result: The same of the result.
        gives: Whether this rank gets a result.
    """

    value: Shapes
    result: Shapes
    gives: bool


def bind_arrays(
    session: Session, engines: Sequence[CompiledEngine], arrays: Arrays, tag: int, *, bare: bool
) -> FastPath:
    """For dicts of NumPy arrays, or for bare ones."""
    make, call = _maker(session, arrays, bare=bare), _native_call(session, engines, arrays, tag, bare=bare)

    def fast_path(x: Any, out: Any) -> Any:
        if session.refusal is not None:
            return None
        try:
            session.refusal = BUSY
            if make is not None and out is None:
                out = make()
            result = call(x, out)
            if type(result) is tuple:
                state, result = result
                _go_on(session, engines, tag, state)
            session.refusal = None
        except BaseException as error:  # an interrupt comes after the compiled code
            session.fail_with(error)
            raise
        return result

    return fast_path


def bind_tensors(fast_path: FastPath, dtypes: Collection[np.dtype[Any]], *, bare: bool) -> FastPath:
    """For torch tensors in the place of the arrays that `fast_path` takes."""
    import torch

    half = BFLOAT16 in dtypes
    to_array: Callable[[Any], Any] = as_array if half else torch.Tensor.numpy
    to_tensor: Callable[[Any], Any] = as_tensor if half else torch.from_numpy

    def arrays(x: Any) -> Any:
        return to_array(x) if bare else {name: to_array(part) for name, part in x.items()}

    def tensors(x: Any, out: Any) -> Any:
        try:
            value, target = arrays(x), None if out is None else arrays(out)
        except (AttributeError, RuntimeError, TypeError):  # no tensors, or such as NumPy cannot have
            return None
        result = fast_path(value, target)
        if result is None or result is NOTHING:
            return result
        if out is not None:
            return out
        return to_tensor(result) if bare else {name: to_tensor(part) for name, part in result.items()}

    return tensors


def _maker(session: Session, arrays: Arrays, *, bare: bool) -> Callable[[], Any] | None:
    """What makes large results; None where C makes them."""
    if not arrays.gives or sum(prod(shape) * dtype.itemsize for _, shape, dtype in arrays.result) < LEAST_BYTES:
        return None
    empty, shapes = session.results.empty, arrays.result
    if bare:
        ((_, shape, dtype),) = shapes
        return lambda: empty(shape, dtype)
    return lambda: {name: empty(shape, dtype) for name, shape, dtype in shapes}


def _native_call(
    session: Session, engines: Sequence[CompiledEngine], arrays: Arrays, tag: int, *, bare: bool
) -> Callable[[Any, Any], Any]:
    """What makes a whole call."""
    first, second = engines
    recorder = session.recorder
    return _native.Call(
        engines=(first.native, second.native),
        names=tuple([name for name, _, _ in arrays.value]),
        bare=bare,
        gives=arrays.gives,
        nothing=NOTHING,
        tag=tag,
        count=recorder.count,
        tags=recorder.tags,
        times_ns=recorder.times_ns,
        sweep_mask=SWEEP_MASK,
    ).run


def _go_on(session: Session, engines: Sequence[CompiledEngine], tag: int, state: int) -> None:
    """Bring a call to its end; or sweep, if it is through."""
    if state not in (_native.WAITING, _native.TO_FOLD):
        session.recorder.sweep()
        return
    engine = engines[engines[0].shared.epoch & 1]
    session.waiting.for_call(UnderWay(engine, tag, session.recorder.calls))
