"""A rankfile of Open MPI 5: every rank on its host, on a core of its own near its endpoint.

`mpirun --map-by rankfile:file=FILE` gives it to PRRTE, which reads `slot=PACKAGE:CORE` by hwloc's logical numbers:
packages of the host, cores of the package (`package_core_to_cpu_set` in PRRTE's src/hwloc/hwloc_base_util.c). Up to
PRRTE 3.0.14 it multiplies the package by the cores of that package, so where packages differ only the number of the
core in the whole host is right: `slot=CORE`. A rank without `slot` is bound to nothing. Linux's CPU numbers are none of
these, so a host whose cores no source numbers (`core_order.py`) gets no slots.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from topocomm.errors import PlanError
from topocomm.planning.formats.rank_order_formats import visible_gpus
from topocomm.planning.report.rank_order import Order
from topocomm.topology.inference.cpu_lists import Core, cpus_of, read_cores
from topocomm.topology.model import Topology

_OF_A_CAPTURE = re.compile(r"h(ost)?[0-9]+")
"""Names that readers and the catalogue give hosts of which no name is known."""


def rankfile(order: Order, topology: Topology, names: Sequence[str] | None = None) -> str:
    """The rankfile of an order.

    Comments say which GPUs the local ranks of a host stand for where that is not 0, 1, 2, ..., which ranks are bound
    to no core and why, and which names of hosts mpirun cannot know.

    Args:
        order: The ranks.
        topology: Their machine.
        names: What mpirun calls the hosts of the topology, in their order; None: as the topology does.

    Raises:
        PlanError: There are more or fewer names than hosts.
    """
    if names is not None and len(names) != len(topology.hosts):
        raise PlanError(f"rankfile: {len(names)} names for {len(topology.hosts)} hosts; expected one for each")
    called = dict(zip(topology.hosts, names or topology.hosts, strict=True))
    hosts = list(dict.fromkeys(topology.by_id[end].host for end in order.ranks))
    notes = _note_names(hosts) if names is None else []
    for host, gpus in visible_gpus(order.ranks, topology).items():
        if gpus != sorted(gpus):
            notes.append(f"# {called[host]}: CUDA_VISIBLE_DEVICES={','.join(map(str, gpus))}")
    slots: dict[int, str] = {}
    for host in hosts:
        ranks = {rank: end for rank, end in enumerate(order.ranks) if topology.by_id[end].host == host}
        packages = read_cores(topology.facts if len(topology.hosts) == 1 else topology.facts.get(host, {}))
        found = _slots(ranks, packages, topology)
        slots |= found
        notes += _note_unbound(called[host], ranks.keys() - found.keys(), packages)
    lines = [
        f"rank {rank}={called[topology.by_id[end].host]}" + (f" slot={slots[rank]}" if rank in slots else "")
        for rank, end in enumerate(order.ranks)
    ]
    return "\n".join([*notes, *lines]) + "\n"


def _slots(ranks: dict[int, str], packages: list[list[Core]], topology: Topology) -> dict[int, str]:
    """The slot of every rank that has a free core near its endpoint, the first one."""
    numbers = _numbered(packages)
    found: dict[int, str] = {}
    for rank, end in ranks.items():
        near = cpus_of(_near_cpus(end, topology))
        core = next((core for core in numbers if core & near), None)
        if core is not None:
            found[rank] = numbers.pop(core)
    return found


def _numbered(packages: list[list[Core]]) -> dict[Core, str]:
    """The cores of a host in order, each with its slot."""
    cores = [core for package in packages for core in package]
    if len({len(package) for package in packages}) <= 1:
        return {core: f"{p}:{c}" for p, package in enumerate(packages) for c, core in enumerate(package)}
    if len(cores[0]) == 1 < max(map(len, cores)):  # PRRTE takes the first core for all, and counts CPUs
        return {}
    return {core: str(number) for number, core in enumerate(cores)}


def _near_cpus(end: str, topology: Topology) -> str | None:
    """The CPU list of an endpoint, else that of its NUMA node."""
    device = topology.by_id[end]
    if device.cpu_affinity is not None or device.numa is None:
        return device.cpu_affinity
    nodes = [d for d in topology.devices if d.kind == "numa" and (d.host, d.numa) == (device.host, device.numa)]
    return nodes[0].cpu_affinity if len(nodes) == 1 else None


def _note_names(hosts: Sequence[str]) -> list[str]:
    unknown = [host for host in hosts if _OF_A_CAPTURE.fullmatch(host)]
    if not unknown:
        return []
    shown = ", ".join(unknown[:4]) + (", ..." if len(unknown) > 4 else "")
    return [f"# {shown}: names of the topology, not of machines; give theirs by --hosts FILE, one a line"]


def _note_unbound(host: str, ranks: set[int], packages: list[list[Core]]) -> list[str]:
    """Why ranks of a host have no slot."""
    if not ranks:
        return []
    if not _numbered(packages):
        return [
            f"# {host}: its ranks are bound to no core, as no source numbers its cores as mpirun does; give what "
            "`lstopo topo.xml` writes there beside the other files: --input FILE topo.xml"
        ]
    shown = ", ".join(map(str, sorted(ranks)))
    return [f"# {host}: bound to no core, as none near their endpoints is known and free: ranks {shown}"]
