"""How a communicator comes to be: from MPI, or on threads of this process."""

from __future__ import annotations

import contextvars
import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from topocomm.errors import DeadlineError, PlanError, RankFailedError
from topocomm.execute.communicator import Communicator
from topocomm.execute.settings import Settings
from topocomm.execute.transports.mpi import MpiTransport, load_mpi
from topocomm.execute.transports.threads import World
from topocomm.planning.planner import place_ranks
from topocomm.topology.discover import discover, merge_hosts
from topocomm.topology.model import RankPlace, Topology
from topocomm.topology.readers.topology_json import from_document, to_document

if TYPE_CHECKING:
    from mpi4py import MPI

Result = TypeVar("Result")
LOCAL_RANKS_LIMIT = 1024


def from_mpi(comm: MPI.Comm, topology: Topology | None) -> Communicator:
    """The body of `Communicator.from_mpi`."""
    mpi = load_mpi()
    if comm.size > 1:
        abort_on_uncaught(mpi.COMM_WORLD)
    _await_all(comm)
    transport = MpiTransport(comm)
    if topology is not None:
        return Communicator(transport, topology, _places(topology, transport.size))
    return Communicator(transport, *_find_places(transport), _find_places)


def _find_places(transport: Any) -> tuple[Topology, tuple[str, ...]]:
    topology = discover_job(transport.comm)
    return topology, _places(topology, transport.size)


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


def discover_job(comm: MPI.Comm) -> Topology:
    """The topology of all hosts of an MPI communicator, the same on every rank; collective.

    The first rank of every host discovers it. `ranks` says where each rank sits: ranks of one host are spread
    over its endpoints in order.
    """
    mpi = load_mpi()
    local = comm.Split_type(mpi.COMM_TYPE_SHARED)
    head = np.array([comm.rank], np.int64)
    local.Bcast(head)
    local_rank, local_size = local.rank, local.size
    local.Free()
    leader = local_rank == 0
    document = to_document(discover()) if leader else None
    claim = {"leader": int(head[0]), "local_rank": local_rank, "local_size": local_size, "topology": document}
    claims = [json.loads(text) for text in _allgather(comm, json.dumps(claim).encode())]
    leaders = [rank for rank, other in enumerate(claims) if other["topology"] is not None]
    hosts = [from_document(claims[rank]["topology"]) for rank in leaders]
    merged = merge_hosts(hosts)
    edges = np.cumsum([0, *(len(host.endpoints) for host in hosts)]).tolist()
    places = []
    for rank, other in enumerate(claims):
        index = leaders.index(other["leader"])
        ends = merged.endpoints[edges[index] : edges[index + 1]]  # merge_hosts keeps the order of hosts and devices
        device = spread(ends, other["local_size"])[other["local_rank"]]
        places.append(RankPlace(rank, merged.by_id[device].host, device))
    return dataclasses.replace(merged, ranks=tuple(places))


def _allgather(comm: MPI.Comm, data: bytes) -> list[bytes]:
    """Byte strings of any length from all ranks; set-up only."""
    mpi = load_mpi()
    sizes = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([len(data)], np.int64), sizes)
    joined = np.empty(int(sizes.sum()), np.uint8)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    comm.Allgatherv([np.frombuffer(data, np.uint8), mpi.BYTE], [joined, sizes, starts, mpi.BYTE])
    return [joined[start : start + size].tobytes() for start, size in zip(starts, sizes, strict=True)]


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
    topology = topology or discover()
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


def abort_on_uncaught(world: MPI.Comm) -> None:
    """Make an uncaught exception of this process end the whole MPI job, its traceback shown with the rank.

    Without it the other ranks would wait for ever: a rank that leaves on an exception blocks in MPI_Finalize.
    """
    if getattr(sys.excepthook, "aborts_mpi", False):
        return
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stderr.write(f"rank {world.rank} of {world.size} failed:\n")
        before(kind, error, trace)
        sys.stderr.flush()
        sys.stdout.flush()
        if not load_mpi().Is_finalized():
            world.Abort(1)

    hook.aborts_mpi = True  # type: ignore[attr-defined]
    sys.excepthook = hook


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


def spread(ends: Sequence[str], size: int) -> list[str]:
    """`size` ranks on endpoints in order, neighbours near each other."""
    if size <= len(ends):
        return list(ends[:size])
    return [ends[rank * len(ends) // size] for rank in range(size)]
