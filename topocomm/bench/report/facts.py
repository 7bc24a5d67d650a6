"""What a measurement was made with: machine, ranks, wires, versions; gathered before anything is timed."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from topocomm.bench.report.ways import pairs_by_way
from topocomm.execute.communicator import Communicator
from topocomm.execute.transports.mpi import library_name
from topocomm.operators.layout import Layout
from topocomm.operators.operator import Operator

PACKAGES = ("topocomm", "numpy", "numba", "mpi4py", "torch", "ml_dtypes")


@dataclass(frozen=True)
class Facts:
    """Facts of one run.

    Attributes:
        ranks: How many.
        hosts: Names of the hosts.
        cores: Cores that the ranks of rank 0's host have together.
        local_ranks: Ranks on rank 0's host.
        pairs: Pairs of ranks by what joins them.
        transport: The transport's name.
        library: The MPI library, if one is loaded.
        versions: Packages and Python.
        processor: The processor's name, if the system tells.
    """

    ranks: int
    hosts: tuple[str, ...]
    cores: int
    local_ranks: int
    pairs: dict[str, int]
    transport: str
    library: str | None
    versions: dict[str, str]
    processor: str | None


def gather_facts(comm: Communicator) -> Facts:
    """The facts, as this rank sees them."""
    transport = comm.session.transport
    hosts = [comm.topology.by_id[place].host for place in comm.places]
    own = hosts[transport.rank]
    in_process = transport.in_process or transport.size == 1
    return Facts(
        ranks=comm.size,
        hosts=tuple(dict.fromkeys(hosts)),
        cores=len(os.sched_getaffinity(0)) if in_process else transport.cores,
        local_ranks=hosts.count(own),
        pairs=pairs_by_way(transport),
        transport=transport.name,
        library=mpi_library(),
        versions=versions(),
        processor=processor(),
    )


def kernel_words(operator: Operator, layout: Layout) -> str:
    """The fold that runs and the laws that plans rely on."""
    compiled = ", compiled" if operator.compiled_fold(layout) is not None else ""
    order = "commutative" if operator.commutative else "operands kept in rank order"
    return f"kernel {operator.fold_version(layout)}{compiled}; {order}"


def mpi_library() -> str | None:
    """Name and version of the MPI library that is loaded."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    return None if mpi is None else library_name(mpi)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def processor() -> str | None:
    """The processor's name by /proc/cpuinfo."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
    except OSError:
        return None
