"""The launcher of this process by its environment, and whether MPI agrees."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from topocomm.errors import TopocommError
from topocomm.execute.transports.mpi import library_name

ANCESTORS_LIMIT = 64
"""Limit of parent processes that are examined."""


class Launcher(NamedTuple):
    """Environment variables of a launcher."""

    name: str
    kind: Literal["mpi", "torch"]
    rank: str
    """Variable of the rank."""
    size: str
    """Variable of the number of ranks."""
    also: tuple[str, ...] = ()
    """Variables that must be set as well."""


OPEN_MPI = Launcher("Open MPI's mpirun", "mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
SRUN = Launcher("srun", "mpi", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
LAUNCHERS = (
    Launcher("torchrun", "torch", "RANK", "WORLD_SIZE", ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")),
    OPEN_MPI,
    Launcher("mpiexec", "mpi", "PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI and their relatives
    Launcher("RANK and MASTER_ADDR", "torch", "RANK", "WORLD_SIZE", ("MASTER_ADDR", "MASTER_PORT")),
    SRUN,
)
"""In the order in which they are believed: torchrun runs inside steps of the others, never around them; variables
that a script sets for torch say more than those that srun sets for every program."""
OTHER_KINDS = ("MPICH", "MVAPICH", "Intel")
"""Names of MPI libraries that Open MPI's mpirun cannot start."""


class Launch(NamedTuple):
    """This process as a rank of a launcher."""

    by: Launcher
    rank: int
    size: int


def launched(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """Return how this process was launched as one of several ranks; None if it runs alone.

    A process that a rank starts as a helper has the same variables. It is told by its parents: if one of them has
    the same rank and has loaded MPI (or torch), that one is the rank, and this process runs alone.
    """
    for by in LAUNCHERS:
        if not all(name in environment for name in by.also):
            continue
        rank, size = environment.get(by.rank, ""), environment.get(by.size, "")
        if rank.isdecimal() and size.isdecimal() and int(size) > 1:
            return None if _parent_is_rank(by, rank) else Launch(by, int(rank), int(size))
    return None


def check_world(mpi: Any) -> None:
    """Check that MPI, initialised or at least loaded, has found the ranks of its launcher.

    Raises:
        TopocommError: MPI sees one rank where the launcher started several: N jobs of one rank each.
    """
    launch = launched()
    if launch is None or launch.by.kind != "mpi":
        return
    if mpi.Is_initialized():
        if mpi.COMM_WORLD.size == 1:
            raise TopocommError(_two_mpis(launch, mpi, "sees 1 rank"))
    elif launch.by is OPEN_MPI and any(kind in library_name(mpi) for kind in OTHER_KINDS):
        raise TopocommError(_two_mpis(launch, mpi, "is another one"))  # it would end the process in its set-up


def _two_mpis(launch: Launch, mpi: Any, finding: str) -> str:
    by = launch.by
    remedy = (
        "start with `srun --mpi=TYPE` (`srun --mpi=list` shows the types), or torchrun once per node under srun"
        if by is SRUN
        else "put the launcher of that library first on PATH, or load the launcher's own (`module load`, or "
        "MPI4PY_LIBMPI=/path/to/libmpi.so.N)"
    )
    return (
        f"rank {launch.rank}: {by.name} started {launch.size} ranks ({by.size}={launch.size}), but the MPI library "
        f"that mpi4py loaded {finding}: {library_name(mpi)}; {remedy}. To run alone on purpose, unset {by.size}"
    )


def _parent_is_rank(by: Launcher, rank: str) -> bool:
    mark = f"{by.rank}={rank}".encode()
    also = {name.encode() for name in by.also}
    library = "libmpi" if by.kind == "mpi" else "libtorch"
    pid = os.getppid()
    try:
        for _ in range(ANCESTORS_LIMIT):
            process = Path("/proc") / str(pid)
            theirs = (process / "environ").read_bytes().split(b"\0")
            if mark not in theirs or not also <= {name.partition(b"=")[0] for name in theirs}:
                return False
            if f"/{library}" in (process / "maps").read_text(errors="replace"):
                return True
            pid = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):  # another user's process, or a system without /proc
        pass
    return False
