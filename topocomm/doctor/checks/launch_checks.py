"""Checks of how ranks were launched, and of their cores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from topocomm.doctor.finding import Environment, Finding
from topocomm.execute.setup.launchers import OTHER_KINDS
from topocomm.topology.draw.names import plural

YIELD = "OMPI_MCA_mpi_yield_when_idle"


class Placed(NamedTuple):
    """One rank of a host and the cores it may run on."""

    rank: int
    cores: frozenset[int]


def check_launcher(
    launched: tuple[str, int, int] | None, library: str | None, environment: Environment = os.environ
) -> Finding:
    """Check the launcher of this process, and that mpi4py's library fits it, before MPI is initialised."""
    if launched is None:
        return Finding("info", "launcher", "none: this process is alone", "mpirun -n 2 topocomm doctor")
    name, rank, size = launched
    mpich = any(kind in (library or "") for kind in OTHER_KINDS)
    open_mpi = library is not None and library.startswith("Open MPI")
    slurm = "SLURM_PROCID" in environment
    if name == "mpirun" and mpich:
        return Finding("FAIL", "launcher", f"Open MPI's mpirun started rank {rank} of {size} on {library}", TWO_MPIS)
    if name == "mpiexec" and open_mpi and not slurm and not _has(environment, "PMIX_"):
        text = f"mpiexec of MPICH or Intel MPI (PMI_RANK) started rank {rank} of {size} on {library}"
        return Finding("FAIL", "launcher", text, TWO_MPIS)
    if name == "srun" and size > 1 and not _has(environment, "PMI_", "PMI2_", "PMIX_", "PALS_"):
        text = f"srun started rank {rank} of {size} without PMI or PMIx: {library or 'MPI'} makes {size} jobs of them"
        return Finding("FAIL" if open_mpi else "warn", "launcher", text, SRUN_TYPES)
    if name == "srun" and size > 1 and open_mpi and not _has(environment, "PMIX_"):
        text = f"srun started rank {rank} of {size} without PMIx, which {library} may need"
        return Finding("warn", "launcher", text, SRUN_TYPES)
    return Finding("ok", "launcher", f"{name} started {plural(size, 'rank')}")


def _has(environment: Environment, *prefixes: str) -> bool:
    return any(name.startswith(prefixes) for name in environment)


def check_world(launched: tuple[str, int, int], world_size: int) -> Finding:
    """Check that the ranks of the launcher see each other."""
    name, _, size = launched
    if world_size == size:
        return Finding("ok", "world", f"{world_size} of {size} ranks see each other")
    text = f"{name} started {size} ranks, MPI sees {world_size}: launcher and library are of two MPI installations"
    return Finding("FAIL", "world", text, TWO_MPIS)


SRUN_TYPES = "srun --mpi=pmix ... (`srun --mpi=list` shows the types), or torchrun once per node under srun"
TWO_MPIS = (
    "start with the launcher of that library (`which -a mpirun`), or load the launcher's: "
    "export MPI4PY_LIBMPI=/path/to/libmpi.so"
)


def check_cores(placed: Sequence[Placed], library: str | None, environment: Environment = os.environ) -> list[Finding]:
    """Compare cores with ranks of one host: how ranks that share cores wait, and which are bound together."""
    cores = frozenset[int]().union(*(one.cores for one in placed))
    on = f"{plural(len(placed), 'rank')} on {plural(len(cores), 'core')}"
    if len(placed) <= len(cores):
        for one in placed:
            bound = [str(other.rank) for other in placed if other.cores <= one.cores]
            if len(bound) > len(one.cores):
                text = f"{on}, yet ranks {', '.join(bound)} are bound to fewer cores than they are"
                return [Finding("warn", "cores", text, "mpirun --bind-to none ..., or --map-by core --bind-to core")]
        return [Finding("ok", "cores", on)]
    text = f"{on}: they take turns, and latencies are those of the scheduler"
    findings = [Finding("warn", "cores", text, f"mpirun -n {len(cores)} ..., or more hosts")]
    if library is not None and library.startswith("Open MPI") and environment.get(YIELD) not in ("1", "true"):
        text = "ranks that wait in Open MPI keep their core from those that work"
        findings.append(Finding("warn", "yield", text, f"export {YIELD}=1"))
    return findings


def check_faults(library: str | None, tells: bool) -> Finding:
    """Check whether ranks learn which others failed, if the transport `tells`, so that they can continue."""
    if tells:
        return Finding("ok", "faults", "the ranks that are left learn which have failed, and go on with comm.shrink()")
    if library is not None and not library.startswith("Open MPI"):
        return Finding("info", "faults", f"{library} does not tell which ranks have failed: a failure ends the job")
    remedy = "mpirun --with-ft ulfm --mca pml ob1 --mca btl tcp,self ..."
    return Finding("info", "faults", "not asked to survive failures: a rank that dies ends the job", remedy)
