"""Collectives over a group of ranks, with any operator, on plans that were proved first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import numpy as np

from topocomm.errors import MismatchError, OperatorError, PlanError, TopocommError
from topocomm.execute.agreement import disagreement, gather_notes
from topocomm.execute.executor import PreparedCall
from topocomm.execute.lanes import BUSY, Work
from topocomm.execute.settings import Settings
from topocomm.execute.shift import Shift
from topocomm.execute.structure import Structure, describe, signature, take
from topocomm.execute.transports.shared_memory import kernels_available, open_region
from topocomm.execute.transports.transport import AGREEMENT_TAG, FAILURE_TAG, FIRST_CALL_TAG, GATHER_TAG, Transport
from topocomm.execute.waiting import Waiting, failure_note
from topocomm.operators.operator import Buffer, Field, Layout, Operator
from topocomm.planning.collectives import COLLECTIVES, Collective
from topocomm.planning.plan import Plan
from topocomm.planning.planner import make_plan
from topocomm.planning.verify import verify
from topocomm.topology.model import Topology

if TYPE_CHECKING:
    from mpi4py import MPI

CALLS_MASK = 2**31 - 1
"""Call numbers are told modulo 2^31."""

BYTES = Operator("bytes", (Field("value"),), lambda left, right: left, {"value": 0})
"""What broadcast moves: it never combines."""


class Communicator:
    """A group of ranks on a machine. Made by `from_mpi` or, on threads, by `run_local`.

    Calls are collective: every rank makes the same calls in the same order, one at a time. The first use of each
    call is agreed between all ranks before data moves. After an error the communicator is closed: every later call
    raises at once.
    """

    def __init__(self, transport: Transport, topology: Topology, places: tuple[str, ...]) -> None:
        self.transport = transport
        self.topology = topology
        self.settings = Settings.from_environment()
        self.waiting = Waiting(transport, self.settings.timeout_s, self._describe_tag, self._stand)
        self._places = places
        self._calls: dict[Hashable, PreparedCall] = {}
        self._quick: dict[Operator, Callable[[Any], Any]] = {}
        """The shortest way through the allreduce last made with each operator, where there is one."""
        self._plans: dict[Hashable, Plan] = {}
        self._names: dict[int, str] = {}
        self._tag = FIRST_CALL_TAG
        self.refusal: str | None = None
        """Why no call can begin now, or None."""
        self.calls = 0
        """Calls begun so far; agreements on a call and barriers count too. The same on all ranks."""
        self._notes_are_for = GATHER_TAG
        self._prepared: WeakSet[PreparedCall | Shift] = WeakSet()
        self._failed = False

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

    def allreduce(self, x: Any, op: Operator, *, out: Any = None) -> Any:
        """The fold of all ranks' values, in rank order unless `op` commutes; the same bits on every rank.

        Args:
            x: This rank's value: an array, or a dict, NamedTuple or dataclass of arrays; NumPy or torch (CPU).
            op: The operator.
            out: Where to write the result (may be x).

        Returns:
            The result in x's structure, the caller's own.
        """
        quick = self._quick.get(op) if out is None else None
        if quick is not None:
            result = quick(x)
            if result is not None:
                return result
        key = (op, signature(x))
        call = self._calls.get(key)
        if call is None:
            call = self._first_use(key, "allreduce", x, op, 0)
        elif self.settings.check == "always":
            self._notes(AGREEMENT_TAG)
            self._agree({"call": self._describe_tag(call.tag)}, self._describe_tag(call.tag))
        elif (way := call.quick_way()) is not None:
            self._quick[op] = way
        if out is not None:
            return call(x, out=out)
        return call.run(x)

    def reduce(self, x: Any, op: Operator, *, root: int = 0, out: Any = None) -> Any:
        """The fold of all ranks' values on `root`, None elsewhere."""
        return self._call("reduce", x, op, root, out)

    def broadcast(self, x: Any, *, root: int = 0, out: Any = None) -> Any:
        """The root's value on every rank. Each rank passes an array of the same shape and dtype."""
        return self._call("broadcast", x, BYTES, root, out)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self.allgather_bytes(np.zeros(1, np.uint8))

    def allgather_bytes(self, record: Buffer) -> list[Buffer]:
        """Every rank's record, in rank order: a small exchange of uint8 arrays of equal length, for set-up."""
        self.enter()
        self._notes(GATHER_TAG)
        try:
            notes = gather_notes(self.waiting, record.tobytes(), tag=GATHER_TAG, what="an exchange of records")
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self.leave()
        return [np.frombuffer(note, np.uint8) for note in notes]

    def prepare(
        self, collective: str, *, like: Any, operator: Operator, root: int = 0, plan: Plan | None = None
    ) -> PreparedCall:
        """A call made ready for values like `like`; collective.

        Args:
            collective: allreduce, reduce or broadcast.
            like: A value with the structure, shapes and dtypes to come; its contents do not matter.
            operator: The operator.
            root: Root of reduce and broadcast.
            plan: The plan to execute; None takes the planner's best for this machine and payload.

        Raises:
            MismatchError: Ranks prepare different calls.
            PlanError: The plan is for other ranks, another collective, operator, size or topology.
        """
        self.enter()
        try:
            return self._prepare(collective, like, operator, root, plan)
        finally:
            self.leave()

    def prepare_shift(self, send: Buffer | Sequence[Buffer], receive: Buffer | Sequence[Buffer]) -> Shift:
        """A prepared neighbour exchange: `send` goes to rank + 1, `receive` comes from rank - 1; collective.

        Both are uint8 arrays that stay alive, or equally long sequences of them (several messages at once); what a
        neighbour sends must fit into `receive`.
        """
        sends = [send] if isinstance(send, np.ndarray) else list(send)
        receives = [receive] if isinstance(receive, np.ndarray) else list(receive)
        self.enter()
        self._notes(AGREEMENT_TAG)
        try:
            claim = {"call": f"shift {self._tag}, messages {len(sends)} out and {len(receives)} in"}
            self._agree(claim, "the preparation of a shift")
        finally:
            self.leave()
        shift = Shift(self, sends, receives, [self.next_tag("shift to the next rank") for _ in sends])
        self._prepared.add(shift)
        return shift

    def explain(self, collective: str, *, like: Any, operator: Operator, root: int = 0) -> Plan:
        """The plan that a call with such values would execute; local."""
        _, layout = self._bind(operator, like)
        return self._plan(collective, operator, layout, root)

    def close(self) -> None:
        """Give back all requests; collective. Later calls raise."""
        if self.refusal is not None:
            return
        self.refusal = "it was closed"
        for prepared in self._prepared:
            prepared.free()
        self._calls.clear()
        self._quick.clear()
        self.transport.close()

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

    def fail(self, error: BaseException, *, tell: bool = True) -> None:
        """Close after an error and tell the other ranks, so that nobody waits for this one."""
        if self._failed:
            return
        self._failed = True
        self.refusal = f"it was closed by {type(error).__name__}: {error}"
        if not tell:
            return
        note = failure_note(self.rank, error)
        for peer in range(self.size):
            if peer != self.rank:
                self.transport.post(peer, FAILURE_TAG, note)

    def share_standings(self) -> None:
        """Find out whether the ranks share memory, and let them see which call each is in; collective, once."""
        if not self.transport.one_host or self.size == 1:
            return
        able = gather_notes(self.waiting, bytes([kernels_available()]), tag=GATHER_TAG, what="the set-up of ranks")
        self.transport.shares_memory = all(answer == b"\x01" for answer in able)
        if self.transport.shares_memory:
            region = open_region(self.waiting, 8 * self.size)
            self.transport.standings = None if region is None else region.view(np.int64)

    def next_tag(self, name: str = "") -> int:
        """The tag of the next call; the same on all ranks, since they prepare in the same order."""
        tag = self._tag
        if tag > self.transport.most_tag:
            raise TopocommError(f"rank {self.rank}: more than {tag} prepared calls; reuse them")
        self._tag += 1
        if name:
            self._names[tag] = name
        return tag

    def _stand(self, tag: int | None) -> None:
        """Say, while waiting, which call this rank is in, for ranks that wait for it in another."""
        if self.transport.standings is not None:
            number = self.calls & CALLS_MASK
            self.transport.standings[self.rank] = number << 32 | (self._notes_are_for if tag is None else tag)

    def _notes(self, tag: int) -> None:
        """Begin a call by notes."""
        self.calls += 1
        self._notes_are_for = tag

    def _describe_tag(self, tag: int) -> str:
        return f"call {tag - FIRST_CALL_TAG} ({self._names.get(tag, 'not known here')})"

    def _call(self, collective: str, x: Any, op: Operator, root: int, out: Any) -> Any:
        key = (collective, op, root, signature(x))
        call = self._calls.get(key)
        if call is None:
            call = self._first_use(key, collective, x, op, root)
        elif self.settings.check == "always":
            self._notes(AGREEMENT_TAG)
            self._agree({"call": self._describe_tag(call.tag)}, self._describe_tag(call.tag))
        takes_part = collective != "broadcast" or root == self.rank
        return call(x if takes_part else None, out=out)

    def _first_use(self, key: Hashable, collective: str, x: Any, op: Operator, root: int) -> PreparedCall:
        self.enter()
        try:
            call = self._prepare(collective, x, op, root, None)
        finally:
            self.leave()
        self._calls[key] = call
        return call

    def _prepare(self, collective: str, like: Any, operator: Operator, root: int, plan: Plan | None) -> PreparedCall:
        """Bind and plan, agree with all ranks, and only then set up. A local error is agreed upon too."""
        self._notes(AGREEMENT_TAG)
        problem: TopocommError | None = None
        claim = {"collective": collective, "operator": getattr(operator, "name", repr(operator))}
        try:
            structure, layout = self._bind(operator, like)
            claim["arrays"] = str(layout)
            chosen = plan or self._plan(collective, operator, layout, root)
            self._check_plan(chosen, collective, operator, layout, root)
            claim["root"] = str(root)
            claim["plan"] = chosen.digest[:16]
            claim["kernel"] = operator.fold_version(layout)
        except TopocommError as error:
            problem = error
            claim["error"] = str(error)
        name = f"{collective} {claim['operator']}, {claim.get('arrays', 'no arrays')}"
        if self.settings.check != "never":
            self._agree(claim, f"call {self._tag - FIRST_CALL_TAG} ({name}), first use")
        if problem is not None:
            if self.settings.check == "never":
                self.fail(problem)  # the others do not know yet
            raise problem
        try:
            call = PreparedCall(self, Work(chosen, operator, layout, self.next_tag(name)), structure)
        except BaseException as error:
            self.fail(error)
            raise
        self._prepared.add(call)
        return call

    def _agree(self, claim: dict[str, str], what: str) -> None:
        """Close, and raise, where ranks claim different things. Every rank finds out, so nobody has to be told."""
        try:
            differ = disagreement(self.waiting, claim, what=what)
        except BaseException as error:
            self.fail(error)
            raise
        if differ is not None:
            mismatch = MismatchError(f"rank {self.rank}: {differ}")
            self.fail(mismatch, tell=False)
            raise mismatch

    def _bind(self, operator: Operator, like: Any) -> tuple[Structure, Layout]:
        if not isinstance(operator, Operator):
            raise OperatorError(f"expected an Operator such as topocomm.SUM, got {type(operator).__name__}")
        structure = describe(operator, like)
        arrays = take(like, structure.names)
        return structure, operator.layout({name: (a.shape, a.dtype) for name, a in arrays.items()})

    def _plan(self, collective: str, operator: Operator, layout: Layout, root: int) -> Plan:
        if collective not in COLLECTIVES:
            raise PlanError(f"unknown collective {collective!r}; expected one of {', '.join(COLLECTIVES)}")
        key = (collective, operator, layout.rows, layout.row_bytes, layout.splittable, root)
        if key not in self._plans:
            self._plans[key] = make_plan(
                self.topology, collective, operator=operator, layout=layout, ranks=self._places, root=root
            )
        return self._plans[key]

    def _check_plan(self, plan: Plan, collective: str, operator: Operator, layout: Layout, root: int) -> None:
        wanted = Collective(collective, self.size, root)
        if plan.collective != wanted:
            raise PlanError(f"the plan is for {plan.collective}, the call is {wanted}")
        if plan.topology_digest != self.topology.digest:
            raise PlanError(
                f"the plan is for another topology (digest {plan.topology_digest[:12]}, this machine has "
                f"{self.topology.digest[:12]}); plan for this one"
            )
        if plan.payload_bytes != layout.rows * layout.row_bytes or plan.schedule.rows != layout.rows:
            raise PlanError(
                f"the plan is for {plan.payload_bytes} bytes in {plan.schedule.rows} rows, the value has "
                f"{layout.rows * layout.row_bytes} bytes in {layout.rows} rows"
            )
        if plan.operator != operator.name:
            raise PlanError(f"the plan is for operator {plan.operator!r}, the call's is {operator.name!r}")
        if plan.ranks != self._places:
            raise PlanError(
                f"the plan has its ranks on {', '.join(plan.ranks[:8])}, this communicator on "
                f"{', '.join(self._places[:8])}; plan with ranks={list(self._places[:8])}"
            )
        verify(plan.schedule, wanted, endpoints=plan.ranks, keep_order=not operator.commutative)
