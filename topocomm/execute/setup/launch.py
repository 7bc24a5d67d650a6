"""`topocomm.init`: the communicator of all ranks that a launcher started, whichever launcher it was."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from topocomm.errors import DeadlineError, TopocommError
from topocomm.execute.bootstrap import from_mpi, from_torch, on_one_thread
from topocomm.execute.communicator import Communicator
from topocomm.execute.launchers import Launch, check_world, launched
from topocomm.execute.settings import Settings
from topocomm.execute.transports.mpi import load_mpi
from topocomm.execute.transports.torch_group import load_torch
from topocomm.topology.model import Topology

_made: list[Communicator] = []
"""The communicator of the last `init`, or nothing."""


def init(topology: Topology | None = None) -> Communicator:
    """The communicator of all ranks of this job; collective.

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
    if _made and _made[0].open:
        known = _made[0].topology
        if topology is not None and (topology.digest, topology.launch_us) != (known.digest, known.launch_us):
            raise TopocommError("topocomm.init was called before with another topology; close that communicator first")
        return _made[0]
    _made[:] = [_make(topology)]
    return _made[0]


def _make(topology: Topology | None) -> Communicator:
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
    _start_torch(launch)
    return from_torch(None, topology)


def _start_mpi() -> Any:
    """mpi4py.MPI, initialised; but not before it is known to be the launcher's."""
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


def _start_torch(launch: Launch) -> None:
    dist = load_torch().distributed
    limit_s = Settings.from_environment().timeout_s
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=limit_s))
    except dist.DistError as error:
        raise DeadlineError(
            f"rank {launch.rank}: {launch.by.name} started {launch.size} ranks, which do not meet at MASTER_ADDR and "
            f"MASTER_PORT within {limit_s:g} s (limit: TOPOCOMM_TIMEOUT_S): {str(error).splitlines()[0]}"
        ) from error
