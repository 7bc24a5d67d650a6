"""All checks in order: those of a machine, by its topology alone; those of one process; then those of all ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from topocomm.bench.facts import installed
from topocomm.doctor.checks.gpu_checks import check_pci_gpus
from topocomm.doctor.checks.job_checks import Started, check_local_ranks
from topocomm.doctor.checks.launch_checks import Placed, check_cores, check_faults, check_launcher, check_world
from topocomm.doctor.checks.library_checks import (
    ask_mpi_library,
    check_kernels,
    check_mpi4py,
    check_native,
    check_numba,
    check_numpy,
    check_optional,
    check_python,
    check_triton,
)
from topocomm.doctor.checks.machine_checks import check_parts
from topocomm.doctor.checks.pcie_checks import check_slots
from topocomm.doctor.checks.system_checks import (
    check_clock,
    check_cuda,
    check_dev_shm,
    check_peer_memory,
    check_process_watch,
    check_settings,
    check_shared_memory,
    check_topology,
    check_visible_gpus,
)
from topocomm.doctor.checks.transport_checks import (
    check_peer_memory_of,
    check_transport,
    check_transport_alone,
    ways_by_size,
    ways_text,
)
from topocomm.doctor.finding import Environment, Finding, gather_json, union, usable_cores
from topocomm.errors import TopocommError
from topocomm.execute.communicator import Communicator
from topocomm.execute.transports.shared_memory import kernels_available
from topocomm.topology.model import Topology

Launched = tuple[str, int, int] | None
MPI_LAUNCHERS = ("mpirun", "mpiexec", "srun")
mpi_library = cache(ask_mpi_library)
FAULT_TOLERANT = "OMPI_MCA_mpi_ft_enable"
"""Variable that `mpirun --with-ft ulfm` sets: MPI then reports failed ranks."""
LOCAL_RANKS = {
    "torchrun": "LOCAL_RANK",
    "mpirun": "OMPI_COMM_WORLD_LOCAL_RANK",
    "mpiexec": "MPI_LOCALRANKID",
    "srun": "SLURM_LOCALID",
}
"""Variable of a rank's number on its host, by launcher."""


def check_machine(topology: Topology) -> list[Finding]:
    """Check a given topology: a dump, a catalogue system, or a whole job."""
    return [*check_topology(topology), *check_parts(topology)]


def library_name() -> str | None:
    """Return the MPI library that mpi4py loads; None without one."""
    return mpi_library().name if installed("mpi4py") else None


class Examined(NamedTuple):
    """Findings, and the transport of each payload size."""

    findings: Sequence[Finding]
    ways: Sequence[str] = ()


def check_process(
    topology: Topology | TopocommError, launched: Launched, environment: Environment = os.environ
) -> list[Finding]:
    """Check this process, given the machine, or the error of reading it."""
    by_mpi = launched[0] if launched is not None and launched[0] in MPI_LAUNCHERS else None
    native = check_native()
    kernels, peer_memory = check_kernels(kernels_available, native), check_peer_memory()
    return [
        check_python(),
        check_numpy(),
        native,
        check_numba(environment),
        *([] if kernels is None else [kernels]),
        check_mpi4py(by_mpi, library=mpi_library),
        check_launcher(launched, library_name() if by_mpi else None, environment),
        *check_optional(),
        check_triton(environment=environment),
        check_shared_memory(),
        *([] if peer_memory is None else [peer_memory]),
        check_process_watch(),
        check_dev_shm(),
        *check_topology(topology),
        *([] if isinstance(topology, TopocommError) else [*check_pci_gpus(topology), *check_slots(topology)]),
        *check_visible_gpus(environment),
        *check_cuda(environment),
        check_clock(),
        *check_settings(environment),
    ]


def can_join(findings: Sequence[Finding]) -> bool:
    """Return whether this process can join the other ranks: mpi4py and the launcher work."""
    return not any(finding.level == "FAIL" and finding.check in ("mpi4py", "launcher") for finding in findings)


def check_ranks(comm: Communicator, own: Sequence[Finding], launched: tuple[str, int, int]) -> Examined:
    """Check all ranks and merge their findings; collective."""
    by_rank = [[Finding(*finding) for finding in rank] for rank in gather_json(comm, [list(f) for f in own])]
    own_host = comm.topology.by_id[comm.places[comm.rank]].host
    places = gather_json(comm, [own_host, sorted(usable_cores()), _local_rank(launched[0])])
    placed: dict[str, list[Placed]] = {}
    for rank, (name, cores, _) in enumerate(places):
        placed.setdefault(name, []).append(Placed(rank, frozenset(cores)))
    everything = union(by_rank)
    everything += check_parts(comm.topology)
    everything.append(check_world(launched, comm.size))
    everything += check_local_ranks([Started(name, local) for name, _, local in places])
    by_mpi = comm.session.transport.name == "mpi"
    library = library_name() if by_mpi else None
    for name, ranks in placed.items():
        host = f"{name}: " if len(placed) > 1 else ""
        everything += [finding._replace(text=host + finding.text) for finding in check_cores(ranks, library)]
    survives = os.environ.get(FAULT_TOLERANT) in ("1", "true")
    everything.append(check_faults(library, survives or not by_mpi))
    kernels, shared_memory = (all(_fine(one, check) for one in by_rank) for check in ("kernels", "shared memory"))
    everything.append(check_transport(comm, kernels=kernels, shared_memory=shared_memory))
    everything += check_peer_memory_of(comm)
    try:
        return Examined(everything, ways_text(ways_by_size(comm)))
    except TopocommError as error:
        remedy = "install the same on all ranks: the findings above name those that differ"
        return Examined([*everything, Finding("FAIL", "calls", str(error), remedy)])


def check_alone(own: Sequence[Finding], topology: Topology | None) -> Examined:
    """Complete the findings of `check_process` without a launcher; `topology` is None if it cannot be read."""
    transport = check_transport_alone(kernels=_fine(own, "kernels"), shared_memory=_fine(own, "shared memory"))
    return Examined([*own, *([] if topology is None else check_parts(topology)), transport])


def _local_rank(launcher: str, environment: Environment = os.environ) -> int | None:
    number = environment.get(LOCAL_RANKS.get(launcher, ""), "")
    return int(number) if number.isdecimal() else None


def _fine(findings: Sequence[Finding], check: str) -> bool:
    return {finding.level for finding in findings if finding.check == check} == {"ok"}
