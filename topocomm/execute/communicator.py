"""Collectives over a group of ranks, with any operator, on plans that were proved first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import numpy as np

from topocomm.errors import MismatchError, OperatorError, TopocommError
from topocomm.execute.agreement import gather_notes
from topocomm.execute.departure import note_close, note_failure, watch_departure
from topocomm.execute.device_way import own_gpu
from topocomm.execute.executor import PreparedCall
from topocomm.execute.failing import gone_with, write_record
from topocomm.execute.lanes import BUSY, NOTHING
from topocomm.execute.log import say, show
from topocomm.execute.meeting import meet
from topocomm.execute.preparing import Request, agree, explained, prepare
from topocomm.execute.ranges import NO_COLOR, rows_of, shard_edges, shards_record, split_record
from topocomm.execute.recorder import Recorder
from topocomm.execute.result_memory import ResultMemory
from topocomm.execute.settings import Settings
from topocomm.execute.shift import Shift
from topocomm.execute.shrinking import ending_after, survivors
from topocomm.execute.structure import signature
from topocomm.execute.transports.transport import (
    AGREEMENT_TAG,
    CLOSING_TAG,
    FAILURE_TAG,
    FIRST_CALL_TAG,
    GATHER_TAG,
    REFUSED_TAG,
    Transport,
)
from topocomm.execute.waiting import UnderWay, Waiting, failure_note, rank_failed, refusal_note
from topocomm.operators.builtin import MAX
from topocomm.operators.operator import Buffer, Operator
from topocomm.planning.plan import Plan
from topocomm.topology.model import Topology

if TYPE_CHECKING:
    from mpi4py import MPI

    from topocomm.execute.device_way import Way

FindPlaces = Callable[[Transport], tuple[Topology, tuple[str, ...]]]
"""Discovers the machine of a transport's ranks, and the endpoint of each; collective."""
NO_NEWS = np.zeros(1, np.uint8)
"""What ranks exchange in a barrier."""
TAGS_A_CALL = 2
"""A call's messages and its credits."""
NOTES = {AGREEMENT_TAG: "the first use of a call", GATHER_TAG: "an exchange of records", CLOSING_TAG: "close"}


class Communicator:
    """A group of ranks on a machine. Made by `init`, `from_mpi`, `from_torch` or, on threads, by `run_local`.

    Calls are collective: every rank makes the same calls in the same order, one at a time. The first use of each
    call is agreed between all ranks before data moves. After an error the communicator is closed: every later call
    raises at once.
    """

    def __init__(
        self, transport: Transport, topology: Topology, places: tuple[str, ...], find_places: FindPlaces | None = None
    ) -> None:
        self.transport = transport
        self.topology = topology
        self.settings = Settings.from_environment()
        self.recorder = Recorder()
        self.results = ResultMemory()
        self.waiting = Waiting(transport, self.settings.timeout_s, self.describe_tag, self.recorder)
        self.recorder.sweep = self.waiting.sweep
        self.places = places
        """Endpoint of every rank."""
        self.plans: dict[Hashable, Plan] = {}
        self.refusal: str | None = None
        """Why no call can begin now, or None."""
        self._calls: dict[Hashable, PreparedCall] = {}
        self._quick: dict[Hashable, Callable[[Any, Any], Any]] = {}
        """The shortest way through the call last made of each kind, where it has one; by what tells kinds apart."""
        self._names: dict[int, str] = {}
        self._tag = FIRST_CALL_TAG
        self._subsets = 0
        self._prepared: WeakSet[PreparedCall | Shift] = WeakSet()
        self._failed = False
        self._find_places = find_places
        self.gone: set[int] = set()
        """Ranks known to be gone."""
        self.way: Way | None = None
        """How values on devices travel; None before the first call with such values."""
        self.survivors = tuple(range(self.size))
        """Of a communicator made by `shrink`, the numbers that its ranks had before."""
        meet(self.waiting, [topology.by_id[place].host for place in places], self.settings.check)
        watch_departure(self)
        show(self.settings.log)
        say(self.rank, f"{self.size} ranks by {transport.name} on {topology.name}: {', '.join(places)}")

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
        from topocomm.execute.bootstrap import from_mpi

        return from_mpi(comm, topology)

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
        from topocomm.execute.bootstrap import from_torch

        return from_torch(group, topology)

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self.transport.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.transport.size

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
            ranges = self._gather_shards(shards)
            which = ("allreduce", op, order, ranges)
            return self._call(which, x, out, "allreduce", op, order=order, shards=ranges)
        return self._call(op, x, out, "allreduce", op)

    def reduce(self, x: Any, op: Operator, *, root: int = 0, out: Any = None) -> Any:
        """The fold of all ranks' values on `root`, None elsewhere; operands as in `allreduce`."""
        return self._call(("reduce", op, root), x, out, "reduce", op, root=root)

    def broadcast(self, x: Any, *, root: int = 0, out: Any = None) -> Any:
        """The root's value on every rank.

        Args:
            x: On the root the value; elsewhere anything of the same structure, shapes and dtypes.
            root: Whose value.
            out: Where to write the result (may be x).
        """
        return self._call(("broadcast", root), x, out, "broadcast", None, root=root)

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
        return self._call(("reduce_scatter", op, parts), x, out, "reduce_scatter", op, rows=parts)

    def allgather(self, x: Any, *, out: Any = None) -> Any:
        """All ranks' values joined along their first axis, in rank order, on every rank.

        Ranks may give different numbers of rows, and different ones from call to call: they are exchanged first. A
        call made by `prepare` keeps those it was prepared with.
        """
        parts = self._gather_rows(x)
        return self._call(("allgather", parts), x, out, "allgather", None, rows=parts)

    def scan(self, x: Any, op: Operator, *, out: Any = None) -> Any:
        """On rank r the fold of the values of ranks 0 to r, in rank order."""
        return self._call(("scan", op), x, out, "scan", op)

    def exscan(self, x: Any, op: Operator, *, out: Any = None) -> Any:
        """On rank r the fold of the values of the ranks before it, in rank order; on rank 0 the identity of `op`."""
        return self._call(("exscan", op), x, out, "exscan", op)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self._call("barrier", NO_NEWS, None, "allreduce", MAX)

    def synchronize(self) -> None:
        """Return when this rank's device is through with all calls made so far; at once where they are in host memory.

        Raises:
            DeadlineError, MismatchError, RankFailedError: As for any call: a call on a device has returned before.
        """
        self.enter()
        try:
            if self.way is not None and self.way.flights is not None:
                self.way.flights.wait()
        except BaseException as error:
            self.fail_with(error)
            raise
        finally:
            self.leave()

    @property
    def gpu(self) -> int | None:
        """The number by which torch in this process knows the GPU that the topology has this rank on, by PCI address.

        None where the rank is on no GPU, or does not see it. For `torch.cuda.set_device`.
        """
        return own_gpu(self.topology, self.places[self.rank])

    def allgather_bytes(self, record: Buffer) -> list[Buffer]:
        """Every rank's record, in rank order: a small exchange of uint8 arrays of equal length, for set-up."""
        self.enter()
        self.recorder.begin(GATHER_TAG)
        try:
            notes = gather_notes(self.waiting, record.tobytes(), tag=GATHER_TAG, what="an exchange of records")
        except BaseException as error:
            self.fail_with(error)
            raise
        finally:
            self.leave()
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
            collective: allreduce, reduce, broadcast, reduce_scatter, allgather, scan or exscan.
            like: A value with the structure, shapes and dtypes to come; its contents do not matter.
            operator: The operator; broadcast and allgather have none.
            root: Root of reduce and broadcast.
            rows: Of reduce_scatter, as there.
            plan: The plan to execute; None takes the planner's best for this machine and payload.
            order: Of allreduce, as there.
            shards: Of allreduce, as there.

        Raises:
            MismatchError: Ranks prepare different calls.
            PlanError: The plan is for other ranks, another collective, operator, size or topology.
        """
        parts = None if rows is None else tuple(rows)
        if collective == "allgather":
            parts = self._gather_rows(like)
        ranges = None if order == "any" and shards is None else self._gather_shards(shards)
        return self._make(Request(collective, like, operator, root, parts, order, ranges, plan))

    def prepare_shift(self, messages: int = 1) -> Shift:
        """An exchange of so many messages with both neighbours, to rank + 1 and from rank - 1; collective."""
        self.enter()
        self.recorder.begin(AGREEMENT_TAG)
        try:
            agree(self, {"call": f"shift {self._tag} of {messages} messages"}, "the preparation of a shift")
        finally:
            self.leave()
        shift = Shift(self, [self.next_tag("shift to the next rank") for _ in range(messages)])
        self._prepared.add(shift)
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
        """The plan that a call with such values would execute; local. For allgather all ranks give as many rows."""
        parts = None if rows is None else tuple(rows)
        if collective == "allgather":
            parts = (rows_of(like),) * self.size
        return explained(self, Request(collective, like, operator, root=root, rows=parts))

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """A communicator of the ranks that give the same color, ordered by key, then rank; collective over all.

        Args:
            color: Which group; None joins none and gets None.
            key: Order within the group.

        Raises:
            TopocommError: A color or key of some rank is no whole number; on all ranks.
        """
        record = split_record(color, key)
        told = [note.view(np.int64).tolist() for note in self.allgather_bytes(record.view(np.uint8))]
        wrong = [str(rank) for rank, one in enumerate(told) if one == list(NO_COLOR)]
        if wrong:
            raise TopocommError(
                f"rank {self.rank}: split: expected whole numbers as color and key, or color None to join no group; "
                f"not so on rank {', '.join(wrong)}"
            )
        number, self._subsets = self._subsets, self._subsets + 1
        same = [rank for rank, one in enumerate(told) if one[:2] == [1, color]]
        members = sorted(same, key=lambda rank: (told[rank][2], rank))
        transport = self.transport.subset(members, number)
        return None if transport is None else self._subset(transport, members)

    def shrink(self) -> Communicator:
        """A new communicator of the ranks that are left, after a RankFailedError; collective over them.

        They keep their order; `survivors` of the new communicator has their old numbers. The machine is discovered
        and plans are made anew. Under MPI this needs one that survives failures: `mpirun --with-ft ulfm`.

        Raises:
            TopocommError: This communicator has not failed.
            DeadlineError: A rank that is not known to be gone does not call it.
        """
        members = survivors(self)
        note_failure(self.transport, gone=True)
        number, self._subsets = self._subsets, self._subsets + 1
        with ending_after(self.transport, self.settings.timeout_s, members):
            transport = self.transport.shrink(members, number)
        if self._find_places is None:
            made = self._subset(transport, members)
        else:
            made = Communicator(transport, *self._find_places(transport), self._find_places)
        made.survivors = tuple(members)
        return made

    def close(self) -> None:
        """Give back all requests; collective. Later calls raise.

        Raises:
            TopocommError: A call is under way.
            DeadlineError, MismatchError: Not all ranks close it.
        """
        if self.refusal is not None:
            return
        if self.waiting.under_way:
            number = self.waiting.under_way[0].number
            raise TopocommError(f"rank {self.rank}: call {number} is under way; wait for its handle before close()")
        self.synchronize()
        self.refusal = "it was closed"
        for prepared in self._prepared:
            prepared.free()
        self._calls.clear()
        self._quick.clear()
        self.results.close()
        if self.way is not None:
            self.way.leave()
        number = self.recorder.begin(CLOSING_TAG)
        try:
            self.waiting.for_close(UnderWay(None, CLOSING_TAG, number, f"call {number} (close)"))
        except BaseException as error:
            self.fail_with(error)
            raise
        if self.way is not None:
            self.way.close()
        note_close(self.transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.fail(error)
        self.close()

    # What prepared calls use.

    def enter(self) -> None:
        """Begin a call.

        Raises:
            TopocommError: The communicator is closed, or another call is running.
        """
        if self.refusal is not None:
            raise TopocommError(f"rank {self.rank}: this communicator takes no call now: {self.refusal}")
        self.refusal = BUSY

    def leave(self) -> None:
        """End a call."""
        if self.refusal is BUSY:
            self.refusal = None

    @property
    def failed(self) -> bool:
        """Whether an error has closed it."""
        return self._failed

    @property
    def open(self) -> bool:
        """Whether it was neither closed nor has failed."""
        return self.refusal is None or self.refusal is BUSY

    def fail_with(self, error: BaseException) -> None:
        """`fail`; raises RankFailedError instead if the transport's error means that ranks are gone."""
        if not isinstance(error, TopocommError):
            gone = self.transport.blamed(error)
            if gone:
                failure = rank_failed(self.rank, gone)
                self.fail(failure)
                raise failure from error
        self.fail(error)

    def fail(self, error: BaseException, *, tell: bool = True) -> None:
        """Close after an error, write the record, and tell the other ranks, so that nobody waits for this one."""
        if self._failed:
            return
        self._failed = True
        self.results.close()
        self.gone |= gone_with(self.transport, error)
        note_failure(self.transport, gone=bool(self.gone))
        self.refusal = f"it was closed by {type(error).__name__}: {error}"
        write_record(self, error)
        try:
            if tell:
                self._tell(FAILURE_TAG, failure_note(self.rank, error))
        finally:
            if self.way is not None:  # last, since it may take long: what a device waits for does not come
                self.way.abort()

    def refuse(self, tag: int, error: OperatorError) -> None:
        """Tell the other ranks that this one does not make the call with a tag, which counts as begun all the same."""
        if self.refusal is not None:
            return
        self._tell(REFUSED_TAG, refusal_note(self.recorder.begin(tag), error))

    def next_tag(self, name: str = "") -> int:
        """The tag of the next call; the same on all ranks, since they prepare in the same order."""
        tag = self._tag
        if tag + TAGS_A_CALL > self.transport.most_tag:
            raise TopocommError(f"rank {self.rank}: more than {tag // TAGS_A_CALL} prepared calls; reuse them")
        self._tag += TAGS_A_CALL
        if name:
            self._names[tag] = name
        return tag

    def describe_tag(self, tag: int) -> str:
        """What the call with a tag is, in words."""
        return NOTES.get(tag) or self._names.get(tag, "a call not known here")

    def _tell(self, tag: int, note: bytes) -> None:
        for peer in set(range(self.size)) - self.gone - {self.rank}:
            self.transport.post(peer, tag, note)

    def _subset(self, transport: Transport, members: Sequence[int]) -> Communicator:
        places = tuple(self.places[rank] for rank in members)
        return Communicator(transport, self.topology, places, self._find_places)

    def _call(self, which: Hashable, x: Any, out: Any, collective: str, op: Operator | None, **options: Any) -> Any:
        """Make a call, told as in `Request`; the shortest way if x and out fit the last one with an equal `which`."""
        try:
            quick = self._quick.get(which)
        except TypeError:  # what has no hash is no operator: `prepare` says so, and tells all ranks
            quick = None
        if quick is not None:
            result = quick(x, out)
            if result is not None:
                return None if result is NOTHING else result
        asked = Request(collective, x, op, **options)
        key = self._key(asked)
        call = self._calls.get(key)
        if call is None:
            call = self._first_use(key, asked)
        elif self.settings.check == "always":
            self._agree_again(call)
        elif call.quick is not None:
            self._quick[which] = call.quick
        return call(x, out=out)

    def _key(self, request: Request) -> Hashable:
        """What tells prepared calls apart; a value without a signature is none that was prepared."""
        given: Any = request.operator
        if given is not None and not isinstance(given, Operator):
            return None  # `prepare` says what is wrong with it, and tells all ranks
        try:
            return (*request.which, signature(request.like))
        except (OperatorError, AttributeError):
            return None

    def _first_use(self, key: Hashable, request: Request) -> PreparedCall:
        call = self._make(request)
        if key is not None:
            self._calls[key] = call
        return call

    def _make(self, request: Request) -> PreparedCall:
        self.enter()
        try:
            call = prepare(self, request)
        finally:
            self.leave()
        self._prepared.add(call)
        return call

    def _agree_again(self, call: PreparedCall) -> None:
        self.recorder.begin(AGREEMENT_TAG)
        what = self.describe_tag(call.tag)
        agree(self, {"call": f"prepared call {(call.tag - FIRST_CALL_TAG) // TAGS_A_CALL} ({what})"}, what)

    def _gather_rows(self, x: Any) -> tuple[int, ...]:
        """How many rows every rank gives to an all-gather; -1 from one whose value is no array with rows."""
        mine = np.array([rows_of(x)])
        told = self._call("rows", mine, None, "allgather", None, rows=(1,) * self.size)
        return tuple(told.tolist())

    def _gather_shards(self, shards: tuple[int, int] | None) -> tuple[int, ...] | None:
        """The first virtual shard of every rank and the end of the last; None where no rank says."""
        mine = np.array(shards_record(shards), np.int64)
        told = self._call("shards", mine, None, "allgather", None, rows=(2,) * self.size)
        try:
            return shard_edges([(start, stop) for start, stop in told.reshape(-1, 2).tolist()])
        except MismatchError as error:
            mismatch = MismatchError(f"rank {self.rank}: {error}")
            self.fail(mismatch, tell=False)  # all ranks see the same
            raise mismatch from None
