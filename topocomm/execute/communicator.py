"""Collectives over a group of ranks, with any operator, on plans that were proved first."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from topocomm.errors import TopocommError
from topocomm.execute.calls.agreement import gather_notes
from topocomm.execute.calls.all_gather import AllGather
from topocomm.execute.calls.binding import explained
from topocomm.execute.calls.call_cache import CallCache
from topocomm.execute.calls.call_plans import Request
from topocomm.execute.calls.prepared_call import PreparedCall
from topocomm.execute.calls.ranges import gather_shards, rows_of, split_members, split_record
from topocomm.execute.calls.row_counts import ASKED, SAME, RowCounts
from topocomm.execute.calls.shift import Shift, prepare_shift
from topocomm.execute.calls.sum_call import SumCall, prepare_sum
from topocomm.execute.device.path_choice import own_gpu
from topocomm.execute.dynamo import skipped_by_dynamo
from topocomm.execute.liveness.shrinking import ending_after, survivors
from topocomm.execute.liveness.shutdown import note_close, note_failure
from topocomm.execute.liveness.waiting import UnderWay
from topocomm.execute.measure.traced_calls import traced
from topocomm.execute.session import Session
from topocomm.execute.setup.bootstrap import from_mpi, from_torch
from topocomm.execute.transports.transport import CLOSING_TAG, GATHER_TAG, Transport
from topocomm.operators.layout import Buffer
from topocomm.operators.operator import Operator
from topocomm.planning.collectives import IN_PAIRS, PARTS_GIVEN
from topocomm.planning.plan import Plan
from topocomm.topology.model import Topology

if TYPE_CHECKING:
    from mpi4py import MPI


@skipped_by_dynamo
class Communicator:
    """A group of ranks on a machine. Made by `init`, `from_mpi`, `from_torch` or, on threads, by `run_local`.

    Calls are collective: every rank makes the same calls in the same order, one at a time. The first use of each
    call is agreed between all ranks before data moves. After an error the communicator is closed: every later call
    raises at once.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        """What the ranks share; for tools and tests, not part of the interface that programs rely on."""
        self.attributes: dict[Any, Any] = {}
        """For libraries: what they keep with this communicator, each under a key of its own, as MPI has keyvals."""
        self.parent_ranks = tuple(range(session.size))
        """Of a communicator made by `shrink`, the numbers that its ranks had before."""
        self._calls = CallCache(session)
        self._all_gather = AllGather(self._calls, session)
        self._rows = RowCounts(self._calls, session)

    @classmethod
    def from_mpi(cls, comm: MPI.Comm, topology: Topology | None = None) -> Communicator:
        """A communicator over the ranks of an MPI communicator; collective.

        Traffic runs on a duplicate of `comm`. An exception that a rank does not catch ends the whole job, with
        its traceback shown, instead of leaving the other ranks waiting.

        Args:
            comm: An mpi4py intracommunicator.
            topology: The machine; None discovers every host of the job. The same on all ranks.

        Raises:
            MissingExtraError: mpi4py is missing.
            PlanError: The topology has no endpoint.
        """
        return cls(from_mpi(comm, topology))

    @classmethod
    def from_torch(cls, group: Any = None, topology: Topology | None = None) -> Communicator:
        """A communicator over the ranks of a torch process group; collective over its members.

        Traffic runs over gloo connections of its own; the group itself is used for nothing but to set them up.
        Ranks of one host share memory for small values. An exception that a rank does not catch ends the others'
        waiting with RankFailedError, and so does a rank that dies.

        Args:
            group: A torch.distributed.ProcessGroup, a 1-D DeviceMesh, or None for the default group. Its backend
                must serve host memory (gloo).
            topology: The machine; None discovers every host of the job. The same on all ranks.

        Raises:
            MissingExtraError: torch is missing.
            TopocommError: torch.distributed is not initialised, this process is not a member of the group, or the
                group cannot be used.
            DeadlineError: Not all members made the call in time.
        """
        return cls(from_torch(group, topology))

    @property
    def topology(self) -> Topology:
        """The machine."""
        return self.session.topology

    @property
    def places(self) -> tuple[str, ...]:
        """Endpoint of every rank."""
        return self.session.places

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self.session.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.session.size

    @property
    def in_process(self) -> bool:
        """Whether all ranks are threads of this process."""
        return self.session.transport.in_process

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
            ranges = gather_shards(self._calls, self.session, shards)
            return self._calls.run(("allreduce", op, 0, None, order, ranges), x, out)
        return self._calls.run(op, x, out)

    def reduce(self, x: Any, op: Operator, *, root: int = 0, out: Any = None) -> Any:
        """The fold of all ranks' values on `root`, None elsewhere; operands as in `allreduce`."""
        return self._calls.run(("reduce", op, root), x, out)

    def broadcast(self, x: Any, *, root: int = 0, out: Any = None) -> Any:
        """The root's value on every rank.

        Args:
            x: On the root the value; elsewhere anything of the same structure, shapes and dtypes.
            root: Whose value.
            out: Where to write the result (may be x).
        """
        return self._calls.run(("broadcast", None, root), x, out)

    def reduce_scatter(self, x: Any, op: Operator, *, rows: Sequence[int] | None = None, out: Any = None) -> Any:
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

    def allgather(self, x: Any, *, out: Any = None) -> Any:
        """All ranks' values joined along their first axis, in rank order, on every rank.

        Ranks may give different numbers of rows, and different ones from call to call. Short values take one collective
        where all ranks have as many rows as the time before; else rows are exchanged first. A call made by `prepare`
        keeps those it was prepared with.
        """
        return self._all_gather.run(x, out)

    def gather(self, x: Any, *, root: int = 0, out: Any = None) -> Any:
        """All ranks' values joined along their first axis, in rank order, on `root`, None elsewhere.

        Ranks may give different numbers of rows, exchanged where they are not as the time before, which ranks ask each
        other in every call not made by `prepare`.
        """
        return self._calls.run(("gather", None, root, self._rows.of_gather(x)), x, out)

    def scatter(self, x: Any, *, root: int = 0, rows: Sequence[int] | None = None, out: Any = None) -> Any:
        """This rank's rows of the root's value.

        Args:
            x: On the root the value, cut along its first axis; elsewhere anything of its structure, shapes and dtypes.
            root: Whose value.
            rows: How many entries of the first axis each rank gets, as in `reduce_scatter`.
            out: Where to write the result.
        """
        return self._calls.run(("scatter", None, root, None if rows is None else tuple(rows)), x, out)

    def alltoall(self, x: Any, *, rows: Sequence[int] | None = None, out: Any = None) -> Any:
        """The rows that all ranks have for this one, joined along their first axis, in rank order.

        Args:
            x: This rank's value: along its first axis the rows for rank 0, those for rank 1, and so on.
            rows: How many entries of the first axis go to each rank, given by all ranks or by none, and exchanged as
                those of a `gather`. None: as equal as can be, of values with as many rows on all ranks.
            out: Where to write the result (may be x, where it has the result's shape).
        """
        return self._calls.run(("alltoall", None, 0, self._rows.of_alltoall(x, rows)), x, out)

    def sendrecv(self, x: Any, dest: int, *, out: Any = None) -> Any:
        """The rows that ranks send to this one, joined in rank order; collective, an `alltoall` with `rows`.

        x has this rank's rows for `dest`, as many as it likes. If all send to different ranks, each gets those of one.
        """
        rows = [rows_of(x) if rank == dest else 0 for rank in range(self.size)]
        return self.alltoall(x, rows=rows if dest in range(self.size) else (), out=out)

    def scan(self, x: Any, op: Operator, *, out: Any = None) -> Any:
        """On rank r the fold of the values of ranks 0 to r, in rank order."""
        return self._calls.run(("scan", op), x, out)

    def exscan(self, x: Any, op: Operator, *, out: Any = None) -> Any:
        """On rank r the fold of the values of the ranks before it, in rank order; on rank 0 the identity of `op`."""
        return self._calls.run(("exscan", op), x, out)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self._calls.run(ASKED, SAME, None)

    def synchronize(self) -> None:
        """Return when this rank's device is through with all calls made so far; at once where they are in host memory.

        Raises:
            DeadlineError, MismatchError, RankFailedError: As for any call: a call on a device has returned before.
        """
        self.session.synchronize()

    @property
    def gpu(self) -> int | None:
        """The number by which torch in this process knows the GPU that the topology has this rank on, by PCI address.

        None where the rank is on no GPU, or does not see it. For `torch.cuda.set_device`.
        """
        return own_gpu(self.topology, self.places[self.rank])

    def allgather_bytes(self, record: Buffer) -> list[Buffer]:
        """Every rank's record, in rank order: a small exchange of uint8 arrays of equal length, for set-up."""
        with self.session.call(GATHER_TAG):
            notes = gather_notes(self.session.waiting, record.tobytes(), tag=GATHER_TAG, what="an exchange of records")
        return [np.frombuffer(note, np.uint8) for note in notes]

    def prepare(
        self,
        collective: str,
        *,
        like: Any,
        operator: Operator | None = None,
        root: int = 0,
        rows: Sequence[int] | None = None,
        plan: Plan | None = None,
        order: str = "any",
        shards: tuple[int, int] | None = None,
    ) -> PreparedCall:
        """A call made ready for values like `like`; collective.

        Args:
            collective: Any of these but barrier and sendrecv, by name.
            like: A value with the structure, shapes and dtypes to come; its contents do not matter.
            operator: The operator; those that combine nothing have none.
            root: Root of reduce, broadcast, gather and scatter.
            rows: Of reduce_scatter, scatter and alltoall, as there.
            plan: The plan to execute; None takes the planner's best for this machine and payload.
            order: Of allreduce, as there.
            shards: Of allreduce, as there.

        Raises:
            MismatchError: Ranks prepare different calls.
            PlanError: The plan is for other ranks, another collective, operator, size or topology.
        """
        parts = self._rows.of_prepared(collective, like, rows)
        in_order = order != "any" or shards is not None
        ranges = gather_shards(self._calls, self.session, shards) if in_order else None
        request = Request(collective, like, operator, root, parts, order, ranges, plan)
        return self._calls.prepare(request, self.session.arenas[0])

    def prepare_sum(
        self, *, like: Any, operator: Operator, collective: str = "allreduce", rows: Sequence[int] | None = None
    ) -> SumCall:
        """An allreduce or reduce_scatter by the library's own SUM, for operators with this form; else as `prepare`."""
        prepare = partial(self._calls.prepare, arena=self.session.arenas[0])
        call = prepare_sum(self.session, prepare, like, operator, collective, None if rows is None else tuple(rows))
        self._calls.prepared.add(call)
        return call

    def prepare_shift(self, messages: int = 1) -> Shift:
        """An exchange of so many messages with both neighbours, to rank + 1 and from rank - 1; collective."""
        shift = prepare_shift(self.session, messages)
        self._calls.prepared.add(shift)
        return shift

    def explain(
        self,
        collective: str,
        *,
        like: Any,
        operator: Operator | None = None,
        root: int = 0,
        rows: Sequence[int] | None = None,
    ) -> Plan:
        """The plan that a call with such values would execute; local. Other ranks give as many rows as this one."""
        parts = None if rows is None else tuple(rows) * (self.size if collective in IN_PAIRS else 1)
        if collective in PARTS_GIVEN and collective not in IN_PAIRS:
            parts = (rows_of(like),) * self.size
        return explained(self.session, Request(collective, like, operator, root=root, rows=parts))

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """A communicator of the ranks that give the same color, ordered by key, then rank; collective over all.

        Args:
            color: Which group; None joins none and gets None.
            key: Order within the group.

        Raises:
            TopocommError: A color or key of some rank is no whole number; on all ranks.
        """
        records = self.allgather_bytes(split_record(color, key).view(np.uint8))
        members = split_members(self.rank, [record.view(np.int64).tolist() for record in records], color)
        transport = self.session.transport.subset(members, self.session.next_subset())
        return None if transport is None else self._subset(transport, members)

    def shrink(self) -> Communicator:
        """A new communicator of the ranks that are left, after a RankFailedError; collective over them.

        They keep their order; `parent_ranks` of the new communicator has their old numbers. The machine is discovered
        and plans are made anew. Under MPI this needs one that survives failures: `mpirun --with-ft ulfm`.

        Raises:
            TopocommError: This communicator has not failed.
            DeadlineError: A rank that is not known to be gone does not call it.
        """
        members = survivors(self.session)
        note_failure(self.session.transport, gone=True)
        number = self.session.next_subset()
        with ending_after(self.session.transport, self.session.settings.timeout_s, members):
            transport = self.session.transport.shrink(members, number)
        find_places = self.session.find_places
        if find_places is None:
            smaller = self._subset(transport, members)
        else:
            smaller = Communicator(Session(transport, *find_places(transport), find_places))
        smaller.parent_ranks = tuple(members)
        return smaller

    def trace(self, path: str | Path) -> AbstractContextManager[None]:
        """Calls made inside `with` go to a file for ui.perfetto.dev, round by round: `traced_calls.traced`."""
        return traced(self.session, self._calls, path)

    def close(self) -> None:
        """Give back all requests; collective. Later calls raise.

        Raises:
            TopocommError: A call is under way.
            DeadlineError, MismatchError: Not all ranks close it.
        """
        session = self.session
        if session.refusal is not None:
            return
        if session.waiting.under_way:
            number = session.waiting.under_way[0].number
            raise TopocommError(f"rank {self.rank}: call {number} is under way; wait for its handle before close()")
        self.synchronize()
        session.refusal = "it was closed"
        for kept in (self._calls, session.results, *session.arenas):
            kept.close()
        if session.device_path is not None:
            session.device_path.leave()
        number = session.recorder.begin(CLOSING_TAG)
        with session.closing_on_error():
            session.waiting.for_close(UnderWay(None, CLOSING_TAG, number, f"call {number} (close)"))
        if session.device_path is not None:
            session.device_path.close()
        note_close(session.transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.session.fail(error)
        self.close()

    def _subset(self, transport: Transport, members: Sequence[int]) -> Communicator:
        places = tuple(self.places[rank] for rank in members)
        return Communicator(Session(transport, self.topology, places, self.session.find_places))
