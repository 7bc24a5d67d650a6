"""Bootstrap of sessions: from MPI, from a torch process group, on one thread, or from this process's launcher."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from topocomm.errors import DeadlineError, TopocommError, TopologyError
from topocomm.execute.liveness.exception_hook import LAST_WORDS_S, end_on_uncaught, show_on, tell_shown
from topocomm.execute.liveness.recorder import Recorder
from topocomm.execute.liveness.waiting import Waiting, failure_note
from topocomm.execute.session import Session
from topocomm.execute.setup.job_topology import discover_job, hosts_of_ranks
from topocomm.execute.setup.launchers import check_world, launched
from topocomm.execute.setup.rank_placement import spread
from topocomm.execute.setup.settings import Settings
from topocomm.execute.transports.mpi import MpiTransport, completes, load_mpi
from topocomm.execute.transports.threads import World
from topocomm.execute.transports.torch_group import TorchGroupTransport, load_torch, process_group
from topocomm.execute.transports.transport import FAILURE_TAG, Transport
from topocomm.planning.request import place_ranks
from topocomm.topology.model import Topology

if TYPE_CHECKING:
    from mpi4py import MPI

_over_torch: WeakSet[Session] = WeakSet()
"""Sessions whose ranks no launcher ends together."""


def from_mpi(comm: MPI.Comm, topology: Topology | None) -> Session:
    """Make the session of `Communicator.from_mpi`."""
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
    limit_s = Settings.from_environment().timeout_s
    if not completes(comm.Ibarrier(), time.monotonic() + limit_s):  # the next step blocks in MPI
        raise DeadlineError(
            f"rank {comm.rank}: Communicator.from_mpi is collective, and not all of {comm.size} ranks have called "
            f"it within {limit_s:g} s (limit: TOPOCOMM_TIMEOUT_S)"
        )
    session = _assemble(MpiTransport(comm), topology)
    if comm.size == mpi.COMM_WORLD.size > 1:
        end_on_uncaught(comm.rank, comm.size, _abort, partial(_open_transport, ref(session)))
    return session


def from_torch(group: Any, topology: Topology | None) -> Session:
    """Make the session of `Communicator.from_torch`."""
    group = process_group(group)
    if group.size() == 1:
        return on_one_thread(topology)
    transport = TorchGroupTransport.of_group(group, Settings.from_environment().timeout_s)
    end_on_uncaught(transport.rank, transport.size, _fail)
    session = _assemble(transport, topology)
    _over_torch.add(session)
    end_on_uncaught(transport.rank, transport.size, _fail, partial(_open_transport, ref(session)))
    return session


def from_store(
    store: Any, rank: int, size: int, settings: Settings, machine: tuple[Topology, tuple[str, ...]] | None = None
) -> Session:
    """Make the session of ranks that meet in a torch key-value store, of which no other traffic uses the keys.

    Args:
        store: A torch.distributed.Store, the same on all ranks.
        rank: This rank's number.
        size: The number of ranks.
        settings: Settings of the session.
        machine: The topology and every rank's endpoint where they are known, on all ranks or on none; None
            discovers them.

    Raises:
        TopocommError: The ranks cannot be connected.
        DeadlineError, RankFailedError: Not all ranks come in time, or one fails.
    """
    if size == 1:
        transport: Transport = World(1).transports()[0]
    else:
        transport = TorchGroupTransport(store, rank, size, settings.timeout_s)
    find = partial(find_places, settings=settings)
    with _telling_others(transport):
        session = Session(transport, *(machine or find(transport)), find, settings)
    if size > 1:
        _over_torch.add(session)
        end_on_uncaught(rank, size, _fail)
    return session


def on_one_thread(topology: Topology | None) -> Session:
    """Make the session of one rank alone."""
    return _assemble(World(1).transports()[0], topology)


@contextmanager
def _telling_others(transport: Transport) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        show_on(error, transport, transport.rank)
        for peer in {*range(transport.size)} - {transport.rank}:
            transport.post(peer, FAILURE_TAG, failure_note(transport.rank, error))
        raise


def _assemble(transport: Transport, topology: Topology | None) -> Session:
    with _telling_others(transport):
        if topology is not None:
            if not isinstance(topology, Topology):
                raise TopologyError(
                    f"topology: expected a topocomm.Topology, got {type(topology).__name__}; topocomm.load(path) "
                    "and topocomm.catalog(name) make one"
                )
            return Session(transport, topology, places_of(topology, transport.size))
        return Session(transport, *find_places(transport), find_places)


def find_places(transport: Transport, settings: Settings | None = None) -> tuple[Topology, tuple[str, ...]]:
    """Return the topology of the whole job and every rank's endpoint; collective."""
    settings = settings or Settings.from_environment()
    waiting = Waiting(transport, settings.timeout_s, lambda tag: f"call {tag}", Recorder(), limit=settings.limit)
    topology = discover_job(waiting, hosts_of_ranks(waiting))
    return topology, places_of(topology, transport.size)


def _open_transport(session: ref[Session]) -> Transport | None:
    """The transport of a session that is open."""
    found = session()
    return found.transport if found is not None and found.open else None


def _abort(error: BaseException) -> None:
    """End the whole job; if other ranks notice a failure on their own, after their reports."""
    tell_shown(error)
    mpi = load_mpi()
    until_s = time.monotonic() + LAST_WORDS_S
    while isinstance(error, Exception) and time.monotonic() < until_s:
        with suppress(mpi.Exception):  # ranks are gone, and this MPI says so
            mpi.COMM_WORLD.Iprobe()  # many an MPI sends only inside its calls
        time.sleep(0.001)
    if not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(1)


def _fail(error: BaseException) -> None:
    for session in list(_over_torch):
        session.fail(error)
    tell_shown(error)


def places_of(topology: Topology, size: int) -> tuple[str, ...]:
    """Return every rank's endpoint: by the topology, else spread over the endpoints in order."""
    if len(topology.ranks) == size:
        ordered = sorted(topology.ranks, key=lambda place: place.rank)
        return place_ranks(topology, [place.device for place in ordered])
    return tuple(spread(place_ranks(topology, None), size))


def session_of_job(topology: Topology | None) -> Session:
    """Make the session of this process in its job, found as `topocomm.init` says; collective."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.size > 1:
        return from_mpi(mpi.COMM_WORLD, topology)
    dist: Any = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return from_torch(None, topology)
    launch = launched()
    if launch is None:
        return on_one_thread(topology)
    if launch.by.kind == "mpi":
        return from_mpi(_start_mpi().COMM_WORLD, topology)
    dist = load_torch().distributed
    limit_s = Settings.from_environment().timeout_s
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=limit_s))
    except dist.DistError as error:
        raise DeadlineError(
            f"rank {launch.rank}: {launch.by.name} started {launch.size} ranks, which do not meet at MASTER_ADDR and "
            f"MASTER_PORT within {limit_s:g} s (limit: TOPOCOMM_TIMEOUT_S): {str(error).splitlines()[0]}"
        ) from error
    return from_torch(None, topology)


def _start_mpi() -> Any:
    """Return mpi4py.MPI, initialised after a check that it fits the launcher."""
    try:
        import mpi4py
    except ModuleNotFoundError:
        return load_mpi()  # raises, and says what to install
    before = mpi4py.rc.initialize, mpi4py.rc.finalize
    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    try:
        mpi = load_mpi()
    finally:
        mpi4py.rc.initialize, mpi4py.rc.finalize = before
    check_world(mpi)
    if not mpi.Is_initialized():
        mpi.Init_thread()
    check_world(mpi)
    return mpi
