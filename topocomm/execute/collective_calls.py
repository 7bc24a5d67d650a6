"""The collectives of a communicator: what each takes and gives; `Communicator` is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from numpy.typing import NDArray

from topocomm.execute.calls.all_gather import AllGather
from topocomm.execute.calls.call_cache import CallCache
from topocomm.execute.calls.ranges import gather_shards
from topocomm.execute.calls.row_counts import ASKED, SAME, AllToAll, RowCounts
from topocomm.execute.calls.structure import Scalar, Value
from topocomm.execute.dynamo import skipped_by_dynamo
from topocomm.execute.session import Session
from topocomm.operators.operator import Operator


@skipped_by_dynamo
class CollectiveCalls:
    """Calls in which all ranks of a session take part: the same ones in the same order, one at a time.

    A value is an array of NumPy, torch or CuPy, or a dict, NamedTuple or dataclass of arrays; the result has its type.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        """What the ranks share; for tools and tests, not part of the interface that programs rely on."""
        self._calls = CallCache(session)
        self._all_gather = AllGather(self._calls, session)
        self._rows = RowCounts(self._calls, session)
        self._all_to_all = AllToAll(self._calls, session, self._rows)

    @overload
    def allreduce(
        self,
        x: Value,
        op: Operator,
        *,
        out: Value | None = None,
        order: str = "any",
        shards: tuple[int, int] | None = None,
    ) -> Value: ...
    @overload
    def allreduce(self, x: Scalar, op: Operator) -> NDArray[Scalar]: ...
    def allreduce(
        self, x: Any, op: Operator, *, out: Any = None, order: str = "any", shards: tuple[int, int] | None = None
    ) -> Any:
        """The fold of all ranks' values, in rank order unless `op` commutes; the same bits on every rank.

        Args:
            x: This rank's value: an array, or a dict, NamedTuple or dataclass of arrays: NumPy, torch or CuPy. On all
                ranks in host memory, or on all on a device; then the call is asynchronous, as torch's operations are.
            op: The operator.
            out: Where to write the result (may be x).
            order: "any", or "canonical": one tree over virtual shards, so that the bits do not depend on how many
                ranks there are, nor on who owns which shards.
            shards: Of canonical order, this rank's virtual shards, from the first to before the second; x has them
                along a first axis of their own. The ranks' ranges follow each other. None: one shard a rank, x
                itself. They are exchanged in every call; a call made by `prepare` keeps them.

        Returns:
            The result in x's structure, the caller's own.
        """
        if order != "any" or shards is not None:
            ranges = gather_shards(self._calls, self.session, shards, "allreduce", order)
            return self._calls.run(("allreduce", op, 0, None, order, ranges), x, out)
        return self._calls.run(op, x, out)

    @overload
    def reduce(self, x: Value, op: Operator, *, root: int = 0, out: Value | None = None) -> Value | None: ...
    @overload
    def reduce(self, x: Scalar, op: Operator, *, root: int = 0) -> NDArray[Scalar] | None: ...
    def reduce(self, x: Any, op: Operator, *, root: int = 0, out: Any = None) -> Any:
        """The fold of all ranks' values on `root`, None elsewhere; operands as in `allreduce`."""
        return self._calls.run(("reduce", op, root), x, out)

    @overload
    def broadcast(self, x: Value, *, root: int = 0, out: Value | None = None) -> Value: ...
    @overload
    def broadcast(self, x: Scalar, *, root: int = 0) -> NDArray[Scalar]: ...
    def broadcast(self, x: Any, *, root: int = 0, out: Any = None) -> Any:
        """The root's value on every rank.

        Args:
            x: On the root the value; elsewhere anything of the same structure, shapes and dtypes.
            root: Whose value.
            out: Where to write the result (may be x).
        """
        return self._calls.run(("broadcast", None, root), x, out)

    def reduce_scatter(
        self, x: Value, op: Operator, *, rows: Sequence[int] | None = None, out: Value | None = None
    ) -> Value:
        """This rank's rows of the fold of all ranks' values; operands as in `allreduce`.

        Args:
            x: This rank's value; its first axis is what is scattered.
            op: The operator; its fields have rows.
            rows: How many entries of the first axis each rank gets, the same on all ranks; None: as equal as can be,
                rank r those from r*n//P to (r+1)*n//P of n.
            out: Where to write the result.
        """
        parts = None if rows is None else tuple(rows)
        return self._calls.run(("reduce_scatter", op, 0, parts), x, out)

    def allgather(self, x: Value, *, out: Value | None = None) -> Value:
        """All ranks' values joined along their first axis, in rank order, on every rank.

        Ranks may give different numbers of rows, and different ones from call to call. Where all ranks have as many
        rows as the time before, it is one collective on one host, and of short values; else rows are exchanged first.
        A call made by `prepare` keeps those it was prepared with.
        """
        return self._all_gather.run(x, out)

    def gather(self, x: Value, *, root: int = 0, out: Value | None = None) -> Value | None:
        """All ranks' values joined along their first axis, in rank order, on `root`, None elsewhere.

        Ranks may give different numbers of rows, exchanged where they are not as the time before, which ranks ask each
        other in every call not made by `prepare`.
        """
        return self._calls.run(("gather", None, root, self._rows.of_gather(x)), x, out)

    def scatter(self, x: Value, *, root: int = 0, rows: Sequence[int] | None = None, out: Value | None = None) -> Value:
        """This rank's rows of the root's value.

        Args:
            x: On the root the value, cut along its first axis; elsewhere anything of its structure, shapes and dtypes.
            root: Whose value.
            rows: How many entries of the first axis each rank gets, as in `reduce_scatter`.
            out: Where to write the result.
        """
        return self._calls.run(("scatter", None, root, None if rows is None else tuple(rows)), x, out)

    def alltoall(self, x: Value, *, rows: Sequence[int] | None = None, out: Value | None = None) -> Value:
        """The rows that all ranks have for this one, joined along their first axis, in rank order.

        Args:
            x: This rank's value: along its first axis the rows for rank 0, those for rank 1, and so on.
            rows: How many entries of the first axis go to each rank, given by all ranks or by none, and exchanged as
                those of a `gather`. None: as equal as can be, of values with as many rows on all ranks.
            out: Where to write the result (may be x, where it has the result's shape).
        """
        return self._all_to_all.run(x, rows, out)

    def sendrecv(self, x: Value, dest: int, *, out: Value | None = None) -> Value:
        """The rows that ranks send to this one, joined in rank order; collective, an `alltoall` with `rows`.

        x has this rank's rows for `dest`, as many as it likes. If all send to different ranks, each gets those of one.
        """
        return self._all_to_all.send(x, dest, out)

    @overload
    def scan(self, x: Value, op: Operator, *, out: Value | None = None) -> Value: ...
    @overload
    def scan(self, x: Scalar, op: Operator) -> NDArray[Scalar]: ...
    def scan(self, x: Any, op: Operator, *, out: Any = None) -> Any:
        """On rank r the fold of the values of ranks 0 to r, in rank order."""
        return self._calls.run(("scan", op), x, out)

    @overload
    def exscan(self, x: Value, op: Operator, *, out: Value | None = None) -> Value: ...
    @overload
    def exscan(self, x: Scalar, op: Operator) -> NDArray[Scalar]: ...
    def exscan(self, x: Any, op: Operator, *, out: Any = None) -> Any:
        """On rank r the fold of the values of the ranks before it, in rank order; on rank 0 the identity of `op`."""
        return self._calls.run(("exscan", op), x, out)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self._calls.run(ASKED, SAME, None)
