"""The fast path of calls in shared memory, and of sums by MPI: a fifth of a microsecond of Python around a call in C.

In shared memory each is a function of a value, None on ranks that put none in, and where its result goes, or None for
new memory. It gives the result where both fit, or NOTHING on ranks that get none; None, and nothing done, elsewhere.
The check is part of the call in C. With the memory of flags (`row_flags.py`) as a third argument it tells the other
ranks that this one's rows have not changed; where theirs have, or are not known, it gives the result as `Unsettled`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from topocomm.execute.host.call_engine import NOTHING, Unsettled
from topocomm.execute.host.compiled_engine import CompiledEngine
from topocomm.execute.host.result_memory import LEAST_BYTES
from topocomm.execute.liveness.pollable import BatchWait
from topocomm.execute.liveness.recorder import SWEEP_MASK
from topocomm.execute.liveness.waiting import UnderWay
from topocomm.execute.session import BUSY, Session
from topocomm.native import _native
from topocomm.operators.tensors import BFLOAT16, as_array, as_tensor

if TYPE_CHECKING:
    from topocomm.execute.calls.sum_items import SumBlock, SumItems
    from topocomm.execute.transports.library_sums import LibrarySum

FastPath = Callable[..., Any]
SumPath = Callable[[Any, Any, Any], int | None]
Shapes = Sequence[tuple[str, tuple[int, ...], np.dtype[Any]]]


def bind_arrays(
    session: Session, engines: Sequence[CompiledEngine], value: Shapes, result: Shapes | None, tag: int, *, bare: bool
) -> FastPath:
    """For dicts of NumPy arrays, or for bare ones; `result` is None on ranks that get none."""
    first, second = engines
    recorder = session.recorder
    call = _native.bind_call(
        engines=(first.native, second.native),
        names=tuple([name for name, _, _ in value]),
        bare=bare,
        gives=result is not None,
        nothing=NOTHING,
        tag=tag,
        record=recorder.record,
        sweep_mask=SWEEP_MASK,
    )
    make = None if result is None else _maker(session, result, bare=bare)

    def fast_path(x: Any, out: Any, flags: memoryview | None = None) -> Any:
        if session.refusal is not None:
            return None
        try:
            session.refusal = BUSY
            if make is not None and out is None:
                out = make()
            outcome = call(x, out, flags)
            if type(outcome) is tuple:
                state, outcome = outcome
                if state in (_native.WAITING, _native.TO_FOLD, _native.TO_EXCHANGE):
                    engine = engines[first.shared.epoch & 1]
                    session.waiting.for_call(UnderWay(engine, tag, recorder.calls))
                elif not recorder.calls & SWEEP_MASK:  # it is through, and a sweep is due
                    recorder.sweep()
                outcome = outcome if flags is None else Unsettled(outcome)
            session.refusal = None
        except BaseException as error:  # an interrupt comes after the compiled code
            first.withdraw()
            second.withdraw()
            session.fail_with(error)
            raise
        return outcome

    return fast_path


def bind_tensors(fast_path: FastPath, dtypes: Collection[np.dtype[Any]], *, bare: bool) -> FastPath:
    """For torch tensors in the place of the arrays that `fast_path` takes."""
    import torch

    half = BFLOAT16 in dtypes
    to_tensor: Callable[[Any], Any] = as_tensor if half else torch.from_numpy

    def arrays(x: Any) -> Any:
        return as_array(x) if bare else {name: as_array(part) for name, part in x.items()}

    def back(result: Any) -> Any:
        return to_tensor(result) if bare else {name: to_tensor(part) for name, part in result.items()}

    def tensors(x: Any, out: Any, flags: memoryview | None = None) -> Any:
        try:
            value = None if x is None else arrays(x)
            target = None if out is None else value if out is x else arrays(out)
        except (AttributeError, RuntimeError, TypeError):  # no tensors, or such as NumPy cannot have
            return None
        result = fast_path(value, target, flags)
        if result is None or result is NOTHING:
            return result
        if type(result) is Unsettled:
            return Unsettled(back(result.result) if out is None else out)
        return back(result) if out is None else out

    return tensors


class SumSteps(NamedTuple):
    """What a reduction by a library's SUM does, for arrays that stay.

    Attributes:
        arrays: Those of the value, then those of the result, by field.
        names: Of the fields.
        leading: The shape of a reference.
        sends: For every block what writes what is added; `receive` reads the sums.
        batch: The library's sum, which has `calls`.
        items: Where it adds up.
        tag: Of the call.
    """

    arrays: tuple[Any, ...]
    names: tuple[str, ...]
    leading: tuple[int, ...]
    sends: tuple[Callable[[Any], Any], ...]
    receive: Callable[[Any], Any]
    batch: LibrarySum
    items: SumItems
    tag: int


def bind_sum(session: Session, x: Any, out: Any, steps: SumSteps) -> SumPath:
    """For the value x and the result out, an array or a dict of arrays, with a reference.

    Returns:
        A function of a value, a reference and where the result goes, which gives DONE, IMPRECISE or MISMATCH, the same
        on all ranks; None, and nothing done, where these are not x and out, or the reference does not fit.
    """
    recorder, waiting, items = session.recorder, session.waiting, steps.items
    assert steps.batch.calls is not None, "checked by the caller"
    run, finish = _native.bind_sum(
        x=x,
        out=out,
        names=steps.names,
        arrays=steps.arrays,
        leading=steps.leading,
        sends=steps.sends,
        parts=tuple([_part(block, steps.leading, items) for block in items.blocks]),
        receive=steps.receive,
        hash=crc32,
        own=_part(items.own, steps.leading, items),
        sent=tuple([block.tail for block in items.blocks]),
        received=items.own.tail,
        ranks=session.size,
        tag=steps.tag,
        record=recorder.record,
        sweep_mask=SWEEP_MASK,
        **steps.batch.calls._asdict(),
    )

    def fast_sum(x: Any, reference: Any, out: Any) -> int | None:
        if session.refusal is not None or waiting.under_way:
            return None
        try:
            session.refusal = BUSY
            state = run(x, reference, out)
            if state is not None and state > _native.MISMATCH:
                if state >= _native.SWEEP_DUE:
                    recorder.sweep()
                    state -= _native.SWEEP_DUE
                if state == _native.UNDER_WAY:
                    waiting.for_call(UnderWay(BatchWait(steps.batch), steps.tag, recorder.calls))
                    state = finish(reference)
            session.refusal = None
        except BaseException as error:
            session.fail_with(error)
            raise
        return state

    return fast_sum


def _part(block: SumBlock, leading: tuple[int, ...], items: SumItems) -> slice | None:
    """The entries of axis 0 of a reference that belong to a block; None: all."""
    if items.counts is None:
        return None
    item = max(1, prod(leading[1:]))
    return slice(block.rows.start // item, block.rows.stop // item)


def _maker(session: Session, shapes: Shapes, *, bare: bool) -> Callable[[], Any] | None:
    """What makes large results; None where C makes them."""
    if sum(prod(shape) * dtype.itemsize for _, shape, dtype in shapes) < LEAST_BYTES:
        return None
    makers = {name: session.results.maker(shape, dtype) for name, shape, dtype in shapes}
    if bare:
        return makers.popitem()[1]
    return lambda: {name: make() for name, make in makers.items()}
