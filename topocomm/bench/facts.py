"""Facts of a measurement: machine, ranks, data paths, versions; gathered before anything is timed."""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import combinations
from typing import Any

from topocomm.execute.calls.prepared_call import PreparedCall
from topocomm.execute.communicator import Communicator
from topocomm.execute.host import engine_words
from topocomm.execute.transports.mpi import library_name
from topocomm.execute.transports.transport import Transport
from topocomm.operators.layout import Layout
from topocomm.operators.operator import Operator

PACKAGES = ("topocomm", "numpy", "numba", "mpi4py", "torch", "ml_dtypes")


@dataclass(frozen=True)
class Facts:
    """Facts of one run.

    Attributes:
        cores: Cores that the ranks of rank 0's host have together.
        local_ranks: Ranks on rank 0's host.
        pairs: Number of rank pairs by data path.
        library: Name and version of the MPI library, if one is loaded.
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
    """Return the facts as this rank sees them."""
    transport = comm.session.transport
    hosts = [comm.topology.by_id[place].host for place in comm.places]
    own = hosts[transport.rank]
    in_process = transport.in_process or transport.size == 1
    mpi: Any = sys.modules.get("mpi4py.MPI")
    return Facts(
        ranks=comm.size,
        hosts=tuple(dict.fromkeys(hosts)),
        cores=len(os.sched_getaffinity(0)) if in_process else transport.cores,
        local_ranks=hosts.count(own),
        pairs=pairs_by_way(transport),
        transport=transport.name,
        library=None if mpi is None else library_name(mpi),
        versions=versions(),
        processor=processor(),
    )


def kernel_words(operator: Operator, layout: Layout) -> str:
    """Describe the fold that runs, and whether operands may change places."""
    compiled = ", compiled" if operator.compiled_fold(layout) is not None else ""
    order = "commutative" if operator.commutative else "operands kept in rank order"
    return f"kernel {operator.fold_version(layout)}{compiled}; {order}"


def versions() -> dict[str, str]:
    """Return versions of Python and of installed packages."""
    packages = {package: version for package in PACKAGES if (version := installed(package)) is not None}
    return {"python": platform.python_version(), **packages}


def installed(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor() -> str | None:
    """Return the processor's name from /proc/cpuinfo; None if it names none."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
    except OSError:
        return None


def way_of(call: PreparedCall) -> str:
    """Describe how a call's data moves: "shared memory, compiled", "MPI messages" and the like."""
    return engine_words.way_of(call.engines[0], call.transport)


def pairs_by_way(transport: Transport) -> dict[str, int]:
    """Count the pairs of ranks that share memory and those that exchange messages."""
    between = engine_words.transport_words(transport)
    pairs = combinations(transport.hosts, 2)
    return dict(Counter("shared memory" if a == b else between for a, b in pairs))
