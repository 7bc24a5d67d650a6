"""Collectives over a group of ranks, with any operator, on plans that were proved first."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np

from topocomm.errors import TopocommError
from topocomm.execute.calls.agreement import gather_notes
from topocomm.execute.calls.binding import explained
from topocomm.execute.calls.call_plans import Request
from topocomm.execute.calls.prepared_call import PreparedCall
from topocomm.execute.calls.ranges import gather_shards, rows_of, split_members, split_record
from topocomm.execute.calls.shift import Shift, prepare_shift
from topocomm.execute.calls.structure import AnyValue, Value
from topocomm.execute.calls.sum_call import SumCall, prepare_sum
from topocomm.execute.collective_calls import CollectiveCalls
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

OnAllRanks = Literal["allreduce", "broadcast", "reduce_scatter", "allgather", "scatter", "alltoall", "scan", "exscan"]
"""Collectives that give every rank a result; of the others the result is None on all ranks but the root."""


@skipped_by_dynamo
class Communicator(CollectiveCalls):
    """A group of ranks on a machine. Made by `init`, `from_mpi`, `from_torch` or, on threads, by `run_local`.

    Calls are collective: every rank makes the same calls in the same order, one at a time. The first use of each
    call is agreed between all ranks before data moves. After an error the communicator is closed: every later call
    raises at once.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.attributes: dict[Any, Any] = {}
        """For libraries: what they keep with this communicator, each under a key of its own, as MPI has keyvals."""
        self.parent_ranks = tuple(range(session.size))
        """Of a communicator made by `split` or `shrink`, the numbers that its ranks had before."""

    def __repr__(self) -> str:
        state = "" if self.session.open else f", {self.session.refusal}"
        return (
            f"<Communicator rank {self.rank} of {self.size} on {self.places[self.rank]} of {self.topology.name}{state}>"
        )

    def _repr_html_(self) -> str:
        """The communicator in a notebook: its machine."""
        return f"<p>{escape(repr(self)[1:-1])}</p>{self.topology._repr_html_()}"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name != "session"]

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

    @overload
    def prepare(
        self,
        collective: OnAllRanks,
        *,
        like: Value,
        operator: Operator | None = None,
        root: int = 0,
        rows: Sequence[int] | None = None,
        plan: Plan | None = None,
        order: str = "any",
        shards: tuple[int, int] | None = None,
    ) -> PreparedCall[Value, Value]: ...
    @overload
    def prepare(
        self,
        collective: str,
        *,
        like: Value,
        operator: Operator | None = None,
        root: int = 0,
        rows: Sequence[int] | None = None,
        plan: Plan | None = None,
        order: str = "any",
        shards: tuple[int, int] | None = None,
    ) -> PreparedCall[Value, Value | None]: ...
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
        ranges = gather_shards(self._calls, self.session, shards, collective, order) if in_order else None
        request = Request(collective, like, operator, root, parts, order, ranges, plan)
        return self._calls.prepare(request, self.session.arenas[0])

    def prepare_sum(
        self, *, like: Value, operator: Operator, collective: str = "allreduce", rows: Sequence[int] | None = None
    ) -> SumCall[Value]:
        """An allreduce or reduce_scatter by the library's own SUM, for operators with this form; else as `prepare`."""
        prepare = partial(self._calls.prepare, arena=self.session.arenas[0])
        call: SumCall[Value] = prepare_sum(
            self.session, prepare, like, operator, collective, None if rows is None else tuple(rows)
        )
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
        like: AnyValue,
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
            number = session.recorder.users_number(session.waiting.under_way[0].number)
            raise TopocommError(f"rank {self.rank}: call {number} is under way; wait for its handle before close()")
        self.synchronize()
        session.refusal = "it was closed"
        for kept in (self._calls, session.results, *session.arenas):
            kept.close()
        if session.device_path is not None:
            session.device_path.leave()
        number = session.recorder.begin(CLOSING_TAG)
        with session.closing_on_error():
            session.waiting.for_close(UnderWay(None, CLOSING_TAG, number))
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
        subset = Communicator(Session(transport, self.topology, places, self.session.find_places))
        subset.parent_ranks = tuple(members)
        return subset
