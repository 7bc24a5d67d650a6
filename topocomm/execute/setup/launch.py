"""The session of a job, whichever launcher started its ranks."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from topocomm.errors import DeadlineError
from topocomm.execute.session import Session
from topocomm.execute.setup.bootstrap import from_mpi, from_torch, on_one_thread
from topocomm.execute.setup.launchers import Launch, check_world, launched
from topocomm.execute.setup.settings import Settings
from topocomm.execute.transports.mpi import load_mpi
from topocomm.execute.transports.torch_group import load_torch
from topocomm.topology.model import Topology


def session_of_job(topology: Topology | None) -> Session:
    """The session of this process in its job; `topocomm.init` says how the job is found. Collective."""
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
