"""How a communicator comes to be: from MPI, from a torch process group, or on threads of this process."""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from topocomm.errors import DeadlineError, MismatchError, PlanError, RankFailedError, TopocommError, TopologyError
from topocomm.execute.communicator import Communicator
from topocomm.execute.groups import process_group
from topocomm.execute.job_topology import discover_job, hosts_of_ranks, spread
from topocomm.execute.launchers import check_world
from topocomm.execute.recorder import Recorder
from topocomm.execute.settings import Settings
from topocomm.execute.transports.mpi import MpiTransport, load_mpi
from topocomm.execute.transports.threads import World
from topocomm.execute.transports.torch_group import TorchGroupTransport
from topocomm.execute.transports.transport import FAILURE_TAG, GATHER_TAG, Transport
from topocomm.execute.uncaught import end_on_uncaught
from topocomm.execute.waiting import Waiting, failure_note
from topocomm.planning.planner import place_ranks
from topocomm.topology.discover import discover as discover_host
from topocomm.topology.model import Topology

if TYPE_CHECKING:
    from mpi4py import MPI

Result = TypeVar("Result")
LOCAL_RANKS_LIMIT = 1024
LAST_WORDS_S = 1.0

_over_torch: WeakSet[Communicator] = WeakSet()
"""Communicators whose ranks no launcher ends together."""


def from_mpi(comm: MPI.Comm, topology: Topology | None) -> Communicator:
    """The body of `Communicator.from_mpi`."""
    mpi = load_mpi()
    if not isinstance(comm, mpi.Intracomm):
        raise TopocommError(
            f"Communicator.from_mpi: expected an mpi4py intracommunicator, such as MPI.COMM_WORLD, "
            f"got {type(comm).__name__}"
        )
    if comm.size == 1 and mpi.Comm.Compare(comm, mpi.COMM_WORLD) == mpi.IDENT:
        check_world(mpi)
    if comm.size > 1:
        end_on_uncaught(mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size, _abort)
    _await_all(comm)
    return _assemble(MpiTransport(comm), topology)


def from_torch(group: Any, topology: Topology | None) -> Communicator:
    """The body of `Communicator.from_torch`."""
    group = process_group(group)
    if group.size() == 1:
        return _assemble(World(1).transports()[0], topology)
    transport = TorchGroupTransport.of_group(group, Settings.from_environment().timeout_s)
    made = _assemble(transport, topology)
    _over_torch.add(made)
    end_on_uncaught(transport.rank, transport.size, _fail)
    return made


def on_one_thread(topology: Topology | None) -> Communicator:
    """A communicator of one rank."""
    return _assemble(World(1).transports()[0], topology)


def discover(comm: Communicator | MPI.Comm | None = None) -> Topology:
    """The topology of this host; with `comm` that of all hosts of its ranks, the same on every rank.

    Args:
        comm: A communicator, or an mpi4py one: then collective over its ranks, and `ranks` says where each sits.
            None: this host alone.

    Raises:
        TopocommError: `comm` is no communicator.
        DeadlineError, RankFailedError: As for any call.
    """
    if comm is None:
        return discover_host()
    if not isinstance(comm, Communicator):
        with from_mpi(comm, None) as made:
            return made.topology
    comm.enter()
    comm.recorder.begin(GATHER_TAG)
    try:
        return discover_job(comm.waiting, hosts_of_ranks(comm.waiting))
    except BaseException as error:
        comm.fail_with(error)
        raise
    finally:
        comm.leave()


def _assemble(transport: Transport, topology: Topology | None) -> Communicator:
    """A communicator on a transport, with the topology of the whole job; collective."""
    try:
        if topology is not None:
            if not isinstance(topology, Topology):
                raise TopologyError(
                    f"topology: expected a topocomm.Topology, got {type(topology).__name__}; topocomm.load(path) "
                    "and topocomm.catalog(name) make one"
                )
            return Communicator(transport, topology, _places(topology, transport.size))
        return Communicator(transport, *_find_places(transport), _find_places)
    except BaseException as error:
        for peer in range(transport.size):
            if peer != transport.rank:
                transport.post(peer, FAILURE_TAG, failure_note(transport.rank, error))
        raise


def _find_places(transport: Transport) -> tuple[Topology, tuple[str, ...]]:
    """The topology of the whole job and every rank's endpoint; collective."""
    waiting = Waiting(transport, Settings.from_environment().timeout_s, lambda tag: f"call {tag}", Recorder())
    topology = discover_job(waiting, hosts_of_ranks(waiting))
    return topology, _places(topology, transport.size)


def _abort(error: BaseException) -> None:
    """End the whole job; where the other ranks find out on their own, not before they have said what they know."""
    if isinstance(error, (DeadlineError, MismatchError, RankFailedError)):
        time.sleep(LAST_WORDS_S)
    mpi = load_mpi()
    if not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(1)


def _fail(error: BaseException) -> None:
    for comm in list(_over_torch):
        comm.fail(error)


def _await_all(comm: MPI.Comm) -> None:
    """Return when all ranks have come: what follows blocks in MPI, but on ranks that are there."""
    limit_s = Settings.from_environment().timeout_s
    request = comm.Ibarrier()
    until_s = time.monotonic() + limit_s
    while not request.Test():
        if time.monotonic() > until_s:
            raise DeadlineError(
                f"rank {comm.rank}: Communicator.from_mpi is collective, and not all of {comm.size} ranks have called "
                f"it within {limit_s:g} s (limit: TOPOCOMM_TIMEOUT_S)"
            )
        os.sched_yield()


def run_local(fn: Callable[[Communicator], Result], *, ranks: int, topology: Topology | None = None) -> list[Result]:
    """Run `fn(comm)` on `ranks` threads of this process and return the results in rank order.

    The threads see the caller's context variables. An exception in one rank ends the others (they raise
    RankFailedError at their next call) and is raised here, with its rank in a note.

    Args:
        fn: What each rank does.
        ranks: How many, 1 to 1024.
        topology: The machine; None discovers this one.
    """
    if not 1 <= ranks <= LOCAL_RANKS_LIMIT:
        raise PlanError(f"ranks {ranks}: expected 1 to {LOCAL_RANKS_LIMIT}")
    topology = topology or discover_host()
    places = _places(topology, ranks)
    outcomes: list[Any] = [None] * ranks
    failures: list[BaseException | None] = [None] * ranks

    def work(rank: int, comm: Communicator) -> None:
        try:
            outcomes[rank] = fn(comm)
        except BaseException as error:  # noqa: BLE001 - handed to the caller below
            failures[rank] = error
            comm.fail(error)
        finally:
            world.leave(rank)

    threads = []
    world = World(ranks)
    for rank, transport in enumerate(world.transports()):
        comm = Communicator(transport, topology, places)
        run = contextvars.copy_context().run
        threads.append(threading.Thread(target=run, args=(work, rank, comm), name=f"rank{rank}", daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _raise_first(failures)
    return outcomes


def _raise_first(failures: Sequence[BaseException | None]) -> None:
    """Raise the cause rather than its consequences on other ranks."""
    raised = [(rank, error) for rank, error in enumerate(failures) if error is not None]
    if raised:
        causes = [pair for pair in raised if not isinstance(pair[1], RankFailedError)]
        rank, error = (causes or raised)[0]
        error.add_note(f"raised by rank {rank} of {len(failures)}")
        raise error


def _places(topology: Topology, size: int) -> tuple[str, ...]:
    """Endpoint of every rank: where the topology says, else spread over the endpoints in order."""
    if len(topology.ranks) == size:
        ordered = sorted(topology.ranks, key=lambda place: place.rank)
        return place_ranks(topology, [place.device for place in ordered])
    ends = place_ranks(topology, None)
    return tuple(spread(ends, size))
