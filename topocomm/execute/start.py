"""Functions that start communicators: `init` under a launcher, `run_local` on threads; and `discover`."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from topocomm.errors import PlanError, RankFailedError, TopocommError
from topocomm.execute.communicator import Communicator
from topocomm.execute.session import Session
from topocomm.execute.setup.bootstrap import places_of, session_of_job
from topocomm.execute.setup.job_topology import discover_job, hosts_of_ranks
from topocomm.execute.transports.threads import World
from topocomm.execute.transports.transport import GATHER_TAG
from topocomm.topology.discovery.local_host import discover as discover_host
from topocomm.topology.model import Topology

if TYPE_CHECKING:
    from mpi4py import MPI

Result = TypeVar("Result")
LOCAL_RANKS_LIMIT = 1024
"""Most ranks of `run_local`: each is a thread."""

_last: list[Communicator] = []
"""Communicator of the last `init`, if any."""


def init(topology: Topology | None = None) -> Communicator:
    """Return the communicator of all ranks of this job; collective.

    What counts, in this order: an MPI with several ranks or a torch.distributed that the program has set up itself;
    torchrun; mpirun or mpiexec; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; srun; else this process is alone
    and the communicator has one rank. Under torchrun the default process group is initialised with gloo where the
    program has not done it. A process that a rank started as a helper is alone.

    A second call returns the same communicator, or, if that one is closed, a new one.

    Args:
        topology: The machine; None discovers every host of the job. The same on all ranks.

    Raises:
        MissingExtraError: The launcher needs mpi4py or torch, which is missing.
        DeadlineError: Not all ranks came in time (TOPOCOMM_TIMEOUT_S).
        TopocommError: MPI does not see the launcher's ranks, or the default process group cannot be used.
    """
    if _last and _last[0].session.open:
        known = _last[0].topology
        if topology is not None and (topology.digest, topology.launch_us) != (known.digest, known.launch_us):
            raise TopocommError("topocomm.init was called before with another topology; close that communicator first")
        return _last[0]
    _last[:] = [Communicator(session_of_job(topology))]
    return _last[0]


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
    places = places_of(topology, ranks)
    outcomes: list[Any] = [None] * ranks
    failures: list[BaseException | None] = [None] * ranks

    def work(rank: int, comm: Communicator) -> None:
        try:
            outcomes[rank] = fn(comm)
        except BaseException as error:  # noqa: BLE001 - handed to the caller below
            failures[rank] = error
            comm.session.fail(error)
        finally:
            world.leave(rank)

    threads = []
    world = World(ranks)
    for rank, transport in enumerate(world.transports()):
        comm = Communicator(Session(transport, topology, places))
        run = contextvars.copy_context().run
        threads.append(threading.Thread(target=run, args=(work, rank, comm), name=f"rank{rank}", daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raised = [(rank, error) for rank, error in enumerate(failures) if error is not None]
    if raised:
        causes = [pair for pair in raised if not isinstance(pair[1], RankFailedError)]
        rank, error = (causes or raised)[0]  # the cause rather than its consequences on other ranks
        error.add_note(f"raised by rank {rank} of {ranks}")
        raise error
    return outcomes


def discover(comm: Communicator | MPI.Comm | None = None) -> Topology:
    """Return the topology of this host; with `comm`, of all hosts of its ranks, the same on every rank.

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
        with Communicator.from_mpi(comm) as whole_job:
            return whole_job.topology
    session = comm.session
    with session.call(GATHER_TAG):
        return discover_job(session.waiting, hosts_of_ranks(session.waiting))
