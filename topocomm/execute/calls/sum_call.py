"""An all-reduce or reduce-scatter as one elementwise SUM of the library's, where the operator has such a form.

What is added holds counts, by which all ranks see alike whether the sums are precise enough; where they are not, all
repeat the reduction by the planned way. It holds a digest of the reference too: with another one on some rank the
result would be wrong, and is an error on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import numpy as np

from topocomm.errors import MismatchError, OperatorError, TopocommError
from topocomm.execute.calls.binding import agree
from topocomm.execute.calls.call_plans import Request
from topocomm.execute.calls.prepared_call import PreparedCall
from topocomm.execute.calls.structure import Structure, Value, shapes_of, take
from topocomm.execute.calls.sum_items import SumItems
from topocomm.execute.device.device_staging import StagedCall
from topocomm.execute.dynamo import skipped_by_dynamo
from topocomm.execute.liveness.pollable import BatchWait
from topocomm.execute.liveness.waiting import SPIN_S, UnderWay
from topocomm.execute.session import Session
from topocomm.execute.transports.library_sums import LibrarySum, library_sum
from topocomm.execute.transports.transport import AGREEMENT_TAG
from topocomm.operators.builtin import SUM
from topocomm.operators.operator import Operator, as_operator
from topocomm.operators.sum_lowering import MOST_RANKS, SumLowering, bound_shares, sum_layout

if TYPE_CHECKING:
    from topocomm.operators.layout import Layout

DONE, IMPRECISE, MISMATCH = 1, 2, 3
"""What became of sums, numbered as in C: the result is written; it is not; ranks have different references."""
COLLECTIVES = ("allreduce", "reduce_scatter")
"""What has a form as one SUM."""
_FLOAT64 = np.dtype(np.float64)
Prepare = Callable[[Request], PreparedCall]
Send = Callable[[Any], Any]
SumPath = Callable[[Any, Any, Any], int | None]


class _Arrays(NamedTuple):
    """The arrays of the last call, which are not fitted again in one with the same.

    Attributes:
        parts: The arrays of x and of out.
        value: Those of x by field; `given` those of out, NumPy's or tensors; None where there is none.
        target: `given`, where the result can be made there; else None: every call makes it in fresh memory.
        sends: For every block what writes its share.
        receive: What reads the sums into `target`; None where there is none.
        fast_path: As `fast_path.bind_sum`; None where there is none.
        storage: Of tensors address and shape, which may change while a tensor stays the same object; else ().
    """

    x: Any
    out: Any
    parts: tuple[tuple[Any, ...], tuple[Any, ...]]
    value: Any
    given: Any
    target: Any
    sends: tuple[Send, ...]
    receive: Callable[[Any], Any] | None
    fast_path: SumPath | None
    storage: tuple[Any, ...]

    def holds(self, structure: Structure, x: Any, out: Any) -> bool:
        """Whether x and out are those, and still have these arrays."""
        if x is not self.x or out is not self.out:
            return False
        ours, theirs = self.parts
        if self.storage != _storage((*ours, *theirs)):
            return False
        return _has(structure, x, ours) and (out is None or out is x or _has(structure, out, theirs))


def _storage(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([(part.data_ptr(), part.shape) for part in parts]) if hasattr(parts[0], "data_ptr") else ()


def _has(structure: Structure, value: Any, parts: tuple[Any, ...]) -> bool:
    if structure.bare:
        return True
    if type(value) is dict and len(value) == len(parts):
        return all(map(is_, parts, map(value.get, structure.names)))
    return all(map(is_, parts, structure.parts(value)))


@skipped_by_dynamo
class SumCall(Generic[Value]):
    """An all-reduce or reduce-scatter by one SUM, for values of one structure; made by `Communicator.prepare_sum`.

    Attributes:
        planned: The same reduction on a proved plan: what repeats a call whose sums are not precise.
        repeated: Calls so far that were repeated; the same on all ranks.
        moved_by: "mpi" or "torch" where the library's own collective adds up; "plan" where a plan for SUM does (between
            threads, and on devices, where that is NCCL's own wherever it is predicted to be faster); "" where values
            of a device are staged in host memory: then every call takes the planned way.
    """

    def __init__(self, session: Session, prepare: Prepare, request: Request) -> None:
        like, operator = request.like, request.operator
        assert operator is not None, "checked by prepare_sum"
        self._session = session
        self.planned = prepare(request)
        self.repeated, self._freed = 0, False
        structure = self.planned.structure
        layout = operator.layout(shapes_of(like, structure.names))
        self._lowering = _agreed(session, operator, layout)
        own = sum_layout(operator.name, self._lowering, layout)
        self._layout = layout
        parts = self.planned.plan.collective.parts if request.collective == "reduce_scatter" else None
        self._items = SumItems(own, parts, session.rank, session.size, structure.device)
        self._last: _Arrays | None = None
        self.moved_by, self._sum = "", None
        self._tag = session.next_tag(f"sum for {operator.name}, {layout}")
        if not isinstance(self.planned, StagedCall):
            self.moved_by, self._sum = self._added_by(prepare, request.collective)
        session.waiting.in_step.add(self._tag)

    def __call__(self, x: Value, *, reference: Any = None, out: Value | None = None) -> Value:
        """Reduce; collective. On a device the host waits for the sums, to see whether they are precise.

        Args:
            x: This rank's value: the structure, shapes and dtypes that the call was prepared for.
            reference: One number for each row, of the shape that all fields share, or what broadcasts to it; float64,
                or what converts. The same on all ranks. None for operators that take none.
            out: Where to write the result, the same structure; may be x in an all-reduce.

        Returns:
            The result in x's structure, the caller's own; `out` where it is given. Its bits depend on the library, and
            may differ between ranks.

        Raises:
            OperatorError: x, reference or out does not fit.
            MismatchError: Ranks have different references, or another rank makes another call.
            DeadlineError, RankFailedError: As for any call.
        """
        result: Any = out
        call = self._last
        if call is not None and call.fast_path is not None:
            state = call.fast_path(x, reference, out)
            if state is not None:
                return result if state == DONE else self._undone(state, x, out)
        if not self.moved_by:
            return self.planned(x, out=out)
        if call is None or not call.holds(self.planned.structure, x, out):
            call = self._last = self._bind(x, out)
        session = self._session
        try:
            base = self._base(reference)
        except OperatorError as error:
            session.refuse(self._tag, error)
            raise
        with session.closing_on_error():
            self._send(call.sends, base)
            self._add()
            if not self._items.agrees():
                self._undone(MISMATCH, x, out)
            target, receive = call.target, call.receive
            if receive is None:
                target = self.planned.target(call.value, call.given)
                receive = self._receiver(call.value, target)
            if self._receive(receive, base):
                return result if target is call.given else self.planned.finish(target, call.given, out)
        return self._undone(IMPRECISE, x, out)

    def free(self) -> None:
        """Give back the requests; the call takes no more values."""
        self.planned.free()
        self._freed, self._last = True, None  # the fast path would give MPI requests that are gone
        if self._sum is not None:
            self._sum.free()

    def _added_by(self, prepare: Prepare, collective: str) -> tuple[str, LibrarySum | PreparedCall]:
        """What adds up: the library where it moves the ranks' messages, else a plan for SUM; collective."""
        items = self._items
        if isinstance(items.sent, np.ndarray):
            batch = library_sum(self._session.transport, items.sent, items.received, items.counts, self._tag)
            if batch is not None:
                return self._session.transport.name, batch
        return "plan", prepare(Request(collective, items.sent, SUM, rows=items.counts))

    def _bind(self, x: Any, out: Any) -> _Arrays:
        """Fit the arrays of a call."""
        if self._freed:
            raise TopocommError("this prepared sum was freed; prepare another one")
        structure = self.planned.structure
        value, given = self.planned.fit(x, out)
        if value is None:  # the send buffer of the planned way
            value = take(x, structure.names)
        target = None if given is None else self.planned.target(value, given)
        if target is not given:  # fresh memory in every call
            target = None
        parts = structure.parts(x), () if out is None else structure.parts(out)
        rows, ranks, scattered = self._by_rows(value), self._session.size, self._items.counts is not None
        sends = []
        for block in self._items.blocks:
            own = {name: array[block.rows] for name, array in rows.items()} if scattered else rows
            sends.append(bound_shares(self._lowering, own, ranks, block.sums, None, judged=scattered).send)
        receive = None if target is None else self._receiver(value, target)
        storage = _storage((*parts[0], *parts[1]))
        call = _Arrays(x, out, parts, value, given, target, tuple(sends), receive, None, storage)
        return call if receive is None else call._replace(fast_path=self._fast_path(call, receive))

    def _fast_path(self, call: _Arrays, receive: Callable[[Any], Any]) -> SumPath | None:
        """The shortest way, for persistent requests of MPI."""
        batch, structure = self._sum, self.planned.structure
        plain = structure.bare or (type(call.x) is dict and type(call.out) is dict)
        if not isinstance(batch, LibrarySum) or batch.calls is None or not plain or call.storage:
            return None
        if not self._lowering.takes_reference:
            return None
        try:
            from topocomm.execute.calls.fast_path import SumSteps, bind_sum
        except ImportError:  # the compiled part is optional
            return None
        arrays, leading = (*call.parts[0], *call.parts[1]), self._layout.leading
        steps = SumSteps(arrays, structure.names, leading, call.sends, receive, batch, self._items, self._tag)
        return bind_sum(self._session, call.x, call.out, steps)

    def _receiver(self, value: Any, target: Any) -> Callable[[Any], Any]:
        """What reads this rank's sums into a target."""
        own = self._items.own
        rows = {name: array[own.rows] for name, array in self._by_rows(value).items()}
        result = self._by_rows(target, own.rows.stop - own.rows.start)
        return bound_shares(self._lowering, rows, self._session.size, own.sums, result).receive

    def _by_rows(self, fields: Any, rows: int | None = None) -> dict[str, Any]:
        rows = self._layout.rows if rows is None else rows
        return {f.name: fields[f.name].reshape(rows, *f.row_shape) for f in self._layout.fields}

    def _send(self, sends: tuple[Send, ...], base: Any) -> None:
        """Write what this rank adds."""
        items = self._items
        if items.counts is None:
            sends[0](base)
        else:
            blocks = items.blocks
            parts = [None if base is None else base[block.rows] for block in blocks]
            imprecise = sum([send(part) == 0 for send, part in zip(sends, parts, strict=True)])
            for block in blocks:
                block.imprecise[:] = imprecise > 0
        if type(base) is np.ndarray:
            items.stamp(base)

    def _receive(self, receive: Callable[[Any], Any], base: Any) -> bool:
        """Write the result; whether the sums are precise, the same on all ranks."""
        own = self._items.own
        if own.imprecise is None:
            return bool(receive(base))
        if own.imprecise[0] > 0:
            return False
        if not receive(None if base is None else base[own.rows]):
            raise OperatorError(
                f"operator {self.planned.plan.operator!r}: lower_to_sum: exact holds for every rank's share and not "
                "for their sum; expected that it holds for sums of such shares"
            )
        return True

    def _add(self) -> None:
        """Add up all ranks' items."""
        session, adding = self._session, self._sum
        if isinstance(adding, PreparedCall):
            adding(self._items.sent, out=self._items.received)
            return
        assert adding is not None, "bound where values are not staged"
        session.enter()
        try:
            number = session.recorder.begin(self._tag)
            adding.start()
            if not adding.wait(0.0 if session.waiting.under_way else SPIN_S):
                session.waiting.for_call(UnderWay(BatchWait(adding), self._tag, number))
        finally:
            session.leave()

    def _base(self, reference: Any) -> Any:
        """The reference as float64 [rows]; None where the operator takes none."""
        leading = self._layout.leading
        in_host = isinstance(self._items.sent, np.ndarray)
        is_fit = type(reference) is np.ndarray and reference.dtype is _FLOAT64 and reference.shape == leading
        if is_fit and in_host and self._lowering.takes_reference:  # the shortest way
            return reference.ravel()
        if not self._lowering.takes_reference:
            if reference is not None:
                raise OperatorError(f"reference: operator {self.planned.plan.operator!r} takes none; leave it out")
            return None
        if reference is None:
            raise OperatorError("reference is missing: give one number for each row, the same on all ranks")
        try:
            if in_host:
                return np.ascontiguousarray(np.broadcast_to(np.asarray(reference, np.float64), leading)).reshape(-1)
            import torch

            base = torch.as_tensor(reference, dtype=torch.float64, device=self._items.sent.device)
            return base.expand(leading).contiguous().view(-1)
        except (ValueError, TypeError, RuntimeError) as error:
            raise OperatorError(
                f"reference: expected numbers of shape {list(leading)}, or what broadcasts to it, got "
                f"{type(reference).__name__} {list(getattr(reference, 'shape', ()))} ({str(error).splitlines()[0]})"
            ) from None

    def _undone(self, state: int, x: Any, out: Any) -> Any:
        """Do what follows sums that cannot be read, on all ranks: raise where references differ, else repeat."""
        if state != MISMATCH:
            self.repeated += 1
            return self.planned(x, out=out)
        session = self._session
        mismatch = MismatchError(
            f"rank {session.rank}: the reference of {session.describe_tag(self._tag)} differs between ranks; "
            "compute it from what all ranks have, or broadcast it"
        )
        session.fail(mismatch, tell=False)
        raise mismatch


def _agreed(session: Session, operator: Operator, layout: Layout) -> SumLowering:
    """The operator's lowering, the same on all ranks; collective.

    Raises:
        OperatorError: There is none, or there are too many ranks.
        MismatchError: Ranks have different ones.
    """
    lowering = operator.sum_lowering(layout)
    with session.call(AGREEMENT_TAG):
        what = f"the sum for {operator.name}"
        agree(
            session, {"call": f"{what}: {'none' if lowering is None else lowering.version}"}, f"the first use of {what}"
        )
    if lowering is None:
        raise OperatorError(
            f"operator {operator.name!r} has no form as one SUM for {layout}; take comm.allreduce, or give it "
            "lower_to_sum"
        )
    if session.size > MOST_RANKS:
        raise OperatorError(f"one SUM serves up to {MOST_RANKS} ranks, here are {session.size}; take comm.allreduce")
    return lowering


def prepare_sum(
    session: Session, prepare: Prepare, like: Any, operator: Any, collective: str, rows: tuple[int, ...] | None
) -> SumCall:
    """As `Communicator.prepare_sum`."""
    if collective not in COLLECTIVES:
        raise OperatorError(f"prepare_sum: expected collective {' or '.join(COLLECTIVES)}, got {collective!r}")
    if rows is not None and collective != "reduce_scatter":
        raise OperatorError(f"prepare_sum: rows are of reduce_scatter, and {collective} has none; leave them out")
    return SumCall(session, prepare, Request(collective, like, as_operator(operator), rows=rows))
