"""An all-reduce as one elementwise SUM of the library's, where the operator has such a form and ranks a reference.

What is added holds counts, by which all ranks see alike whether the sums are precise enough; where they are not, all
repeat the reduction by the planned way. It holds a digest of the reference too: with another one on some rank the
result would be wrong, and is an error on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from topocomm.errors import MismatchError, OperatorError
from topocomm.execute.calls.binding import agree
from topocomm.execute.calls.call_plans import Request
from topocomm.execute.calls.prepared_call import PreparedCall
from topocomm.execute.calls.structure import Structure, shapes_of, take
from topocomm.execute.device.device_staging import StagedCall
from topocomm.execute.dynamo import skipped_by_dynamo
from topocomm.execute.host.staged_engine import aligned_buffer
from topocomm.execute.liveness.pollable import AwaitedMessages
from topocomm.execute.liveness.waiting import UnderWay
from topocomm.execute.session import Session
from topocomm.execute.transports.library_sums import library_sum
from topocomm.execute.transports.transport import AGREEMENT_TAG, Batch
from topocomm.operators.builtin import SUM
from topocomm.operators.operator import Operator, as_operator
from topocomm.operators.sum_lowering import DIGEST_ITEMS, MOST_RANKS, SumLowering, sum_layout
from topocomm.operators.tensors import device_views

if TYPE_CHECKING:
    from topocomm.operators.layout import Layout

_DIGITS = np.array([[b >> 4, b & 15, (b >> 4) ** 2, (b & 15) ** 2] for b in range(256)], np.float64)
Prepare = Callable[[Request], PreparedCall]


class _Sum:
    """A library's sum under way, as ranks wait for it."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def advance(self, timeout_s: float) -> bool:
        return self.batch.wait(timeout_s)

    def awaited(self) -> AwaitedMessages:
        return AwaitedMessages(None, *self.batch.pending())


class _Arrays(NamedTuple):
    """The arrays of the last call, which are not fitted again in one with the same.

    Attributes:
        parts: The arrays of x and of out.
        given: Those of out, NumPy's or tensors; None where there is none.
        value: Those of x by rows.
        target: `given`, where the result can be made there; `result` is the same by rows.
    """

    x: Any
    out: Any
    parts: tuple[Any, Any]
    fields: Any
    given: Any
    value: dict[str, Any]
    target: Any
    result: Any

    def holds(self, structure: Structure) -> bool:
        """Whether x and out still have these arrays."""
        ours, theirs = self.parts
        same = all(map(is_, ours, structure.parts(self.x)))
        return same and (theirs is None or all(map(is_, theirs, structure.parts(self.out))))


@skipped_by_dynamo
class SumCall:
    """An all-reduce by one SUM, for values of one structure; made by `Communicator.prepare_sum`.

    Attributes:
        planned: The same reduction on a proved plan: what repeats a call whose sums are not precise.
        repeated: Calls so far that were repeated; the same on all ranks.
        moved_by: "mpi" or "torch" where the library's own all-reduce adds up; "plan" where a plan for SUM does (between
            threads, and on devices, where that is NCCL's own wherever it is predicted to be faster); "" where values
            of a device are staged in host memory: then every call takes the planned way.
    """

    def __init__(self, session: Session, prepare: Prepare, like: Any, operator: Operator) -> None:
        self._session = session
        self.planned = prepare(Request("allreduce", like, operator))
        self.repeated = 0
        structure = self.planned.structure
        layout = operator.layout(shapes_of(like, structure.names))
        self._lowering = _agreed(session, operator, layout)
        own = sum_layout(operator.name, self._lowering, layout)
        self._layout, self._rows = layout, layout.rows
        dtype = own.fields[0].dtype
        items = own.packed_bytes(own.rows) // dtype.itemsize
        self._sum: Batch | PreparedCall | None
        if structure.device is None:
            memory = aligned_buffer((items + DIGEST_ITEMS) * dtype.itemsize)
            memory[:] = 0
            self._views: Any = own.views(memory, 0, own.rows)
            self._items: Any = memory.view(dtype)
            self._sum = library_sum(session.transport, self._items)
        else:
            import torch

            device_memory = torch.zeros(
                (items + DIGEST_ITEMS) * dtype.itemsize, dtype=torch.uint8, device=structure.device.place
            )
            self._views = device_views(own, device_memory, 0, own.rows)
            self._items, self._sum = device_memory.view(getattr(torch, str(dtype))), None
        self._digest, self._digits = self._items[items:].reshape(4, 4), _DIGITS.astype(dtype)
        self._last: _Arrays | None = None
        if isinstance(self.planned, StagedCall):
            self.moved_by = ""
            return
        self.moved_by = "plan" if self._sum is None else session.transport.name
        if self._sum is None:
            self._sum = prepare(Request("allreduce", self._items, SUM))
        self._tag = session.next_tag(f"sum for {operator.name}, {layout}")

    def __call__(self, x: Any, *, reference: Any = None, out: Any = None) -> Any:
        """Reduce; collective. On a device the host waits for the sums, to see whether they are precise.

        Args:
            x: This rank's value: the structure, shapes and dtypes that the call was prepared for.
            reference: One number for each row, of the shape that all fields share, or what broadcasts to it; float64,
                or what converts. The same on all ranks. None for operators that take none.
            out: Where to write the result, the same structure; may be x.

        Returns:
            The result in x's structure, the caller's own; `out` where it is given. Its bits depend on the library, and
            may differ between ranks.

        Raises:
            OperatorError: x, reference or out does not fit.
            MismatchError: Ranks have different references, or another rank makes another call.
            DeadlineError, RankFailedError: As for any call.
        """
        if not self.moved_by:
            return self.planned(x, out=out)
        call = self._last
        if call is None or call.x is not x or call.out is not out or not call.holds(self.planned.structure):
            call = self._last = self._bind(x, out)
        session = self._session
        try:
            base = self._base(reference)
        except OperatorError as error:
            session.refuse(self._tag, error)
            raise
        with session.closing_on_error():
            if self._reduce(call.value, base):
                target, result = call.target, call.result
                if target is None:
                    target = self.planned.target(call.fields, call.given)
                    result = self._by_rows(target)
                self._lowering.decode(self._views, base, result)
                return self.planned.finish(target, call.given, out)
        self.repeated += 1
        return self.planned(x, out=out)

    def free(self) -> None:
        """Give back the requests; the call takes no more values."""
        self.planned.free()
        if self._sum is not None:
            self._sum.free()

    def _bind(self, x: Any, out: Any) -> _Arrays:
        """Fit the arrays of a call."""
        structure = self.planned.structure
        fields, given = self.planned.fit(x, out)
        if fields is None:  # the send buffer of the planned way
            fields = take(x, structure.names)
        target = None if given is None else self.planned.target(fields, given)
        if target is not given:  # fresh memory in every call
            target = None
        parts = structure.parts(x), None if out is None else structure.parts(out)
        result = None if target is None else self._by_rows(target)
        return _Arrays(x, out, parts, fields, given, self._by_rows(fields), target, result)

    def _by_rows(self, fields: Any) -> dict[str, Any]:
        return {f.name: fields[f.name].reshape(self._rows, *f.row_shape) for f in self._layout.fields}

    def _reduce(self, value: Any, base: Any) -> bool:
        """Add up what the ranks have; whether the sums are precise, the same on all ranks."""
        self._lowering.encode(value, base, self._session.size, self._views)
        in_host = isinstance(base, np.ndarray)
        if in_host:
            digest = np.frombuffer(crc32(base).to_bytes(4, "little"), np.uint8)
            self._digits.take(digest, axis=0, out=self._digest, mode="clip")
        self._add()
        if in_host:
            self._check()
        return bool(self._lowering.exact(self._views))

    def _add(self) -> None:
        """Add up all ranks' items."""
        session = self._session
        if isinstance(self._sum, PreparedCall):
            self._sum(self._items, out=self._items)
            return
        assert self._sum is not None, "bound where values are not staged"
        session.enter()
        try:
            number = session.recorder.begin(self._tag)
            self._sum.start()
            if not self._sum.wait(0.0):
                session.waiting.for_call(UnderWay(_Sum(self._sum), self._tag, number))
        finally:
            session.leave()

    def _base(self, reference: Any) -> Any:
        """The reference as float64 [rows]; None where the operator takes none."""
        if not self._lowering.takes_reference:
            if reference is not None:
                raise OperatorError(f"reference: operator {self.planned.plan.operator!r} takes none; leave it out")
            return None
        if reference is None:
            raise OperatorError("reference is missing: give one number for each row, the same on all ranks")
        leading = self._layout.leading
        in_host = isinstance(self._items, np.ndarray)
        is_array = in_host and type(reference) is np.ndarray
        if is_array and reference.dtype == np.float64 and reference.shape == leading:  # the shortest way
            return np.ascontiguousarray(reference).reshape(-1)
        try:
            if in_host:
                return np.ascontiguousarray(np.broadcast_to(np.asarray(reference, np.float64), leading)).reshape(-1)
            import torch

            base = torch.as_tensor(reference, dtype=torch.float64, device=self._items.device)
            return base.expand(leading).contiguous().view(-1)
        except (ValueError, TypeError, RuntimeError) as error:
            raise OperatorError(
                f"reference: expected numbers of shape {list(leading)}, or what broadcasts to it, got "
                f"{type(reference).__name__} {list(getattr(reference, 'shape', ()))} ({str(error).splitlines()[0]})"
            ) from None

    def _check(self) -> None:
        """Raise on all ranks where references differ.

        By Cauchy and Schwarz, n sums of squares equal the square of the sum only where all n digits are equal. All are
        whole and below 2^24, so every rank has the same ones.
        """
        size, session = self._session.size, self._session
        for high, low, high_squared, low_squared in self._digest.tolist():
            if size * high_squared != high * high or size * low_squared != low * low:
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


def prepare_sum(session: Session, prepare: Prepare, like: Any, operator: Any) -> SumCall:
    """As `Communicator.prepare_sum`."""
    return SumCall(session, prepare, like, as_operator(operator))
