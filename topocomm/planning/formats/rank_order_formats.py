"""An order of ranks in the forms that launchers and torch take; docs/guide/planning.md says what they mean.

`mpirun --map-by rankfile:file=FILE` of Open MPI 5 gives a rankfile to PRRTE, which reads `slot=PACKAGE:CORE` by hwloc's
logical numbers (`package_core_to_cpu_set` in PRRTE's src/hwloc/hwloc_base_util.c). Up to PRRTE 3.0.14 it multiplies the
package by the cores of that package, so where packages differ only `slot=CORE` is right. Linux's CPU numbers are none
of these, so a host whose cores no source numbers (`cpu_lists.py`) gets no slots.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from topocomm.errors import PlanError
from topocomm.planning.report.rank_order import Order, host_by_host
from topocomm.topology.inference.cpu_lists import Core, cpus_of, read_cores
from topocomm.topology.model import Topology

_PLACEHOLDER_HOST = re.compile(r"h(ost)?[0-9]+")
"""Names that readers and the catalogue give to hosts of unknown name."""
_UNNUMBERED = (
    "its ranks are bound to no core, as no source numbers its cores as mpirun does; give what `lstopo topo.xml` writes "
    "there beside the other files: --input FILE topo.xml"
)


def map_by(order: Order, topology: Topology) -> str:
    """Return the options of mpirun that give the same order.

    Raises:
        PlanError: Only a rankfile can say it.
    """
    by_host = host_by_host(order.ranks, topology)
    counts = {len(own) for own in by_host.values()}
    place = {end: index for index, end in enumerate(topology.endpoints)}
    straight = all(own == sorted(own, key=place.__getitem__) for own in by_host.values())
    if len(counts) != 1 or not straight:
        why = "hosts have different numbers of ranks" if len(counts) != 1 else "the order within a host is another"
        raise PlanError(f"map-by: {why} than --map-by can say; only a rankfile can, use --format rankfile")
    (count,) = counts
    if order.ranks == tuple(end for own in by_host.values() for end in own):
        return f"--map-by ppr:{count}:node --rank-by slot\n"
    if order.ranks == tuple(own[index] for index in range(count) for own in by_host.values()):
        return f"--map-by ppr:{count}:node --rank-by node\n"
    raise PlanError(
        "map-by: hosts alternate in a way that --map-by cannot say; only a rankfile can, use --format rankfile"
    )


def devicemesh(order: Order, topology: Topology) -> str:
    """Return a list for torch's DeviceMesh: the present rank of every new rank."""
    present = {end: rank for rank, end in enumerate(order.given)}
    return f"{[present[end] for end in order.ranks]}\n"


def rankfile(order: Order, topology: Topology, names: Sequence[str] | None = None) -> str:
    """Return the rankfile of an order: every rank on its host, on a core of its own near its endpoint.

    Comments name the GPUs of a host's local ranks where these are not 0, 1, 2, ..., ranks that are bound to no core,
    and names of hosts that mpirun cannot know. `names` are mpirun's of the hosts of the topology, in their order, where
    they are not the same.

    Raises:
        PlanError: There are more or fewer names than hosts.
    """
    if names is not None and len(names) != len(topology.hosts):
        raise PlanError(f"rankfile: {len(names)} names for {len(topology.hosts)} hosts; expected one for each")
    called = dict(zip(topology.hosts, names or topology.hosts, strict=True))
    by_host, places = (host_by_host(ends, topology) for ends in (order.ranks, topology.endpoints))
    unknown = [host for host in by_host if names is None and _PLACEHOLDER_HOST.fullmatch(host)]
    notes = []
    if unknown:
        shown = ", ".join(unknown[:4]) + (", ..." if len(unknown) > 4 else "")
        notes = [f"# {shown}: names of the topology, not of machines; give theirs by --hosts FILE, one a line"]
    for host, own in by_host.items():
        gpus = [places[host].index(end) for end in own if topology.by_id[end].kind == "gpu"]
        if gpus != sorted(gpus):
            notes.append(f"# {called[host]}: CUDA_VISIBLE_DEVICES={','.join(map(str, gpus))}")
    slots: dict[int, str] = {}
    for host in by_host:
        ranks = {rank: end for rank, end in enumerate(order.ranks) if topology.by_id[end].host == host}
        numbers = _numbered(read_cores(topology.facts if len(topology.hosts) == 1 else topology.facts.get(host, {})))
        reason = "" if numbers else _UNNUMBERED
        for rank, end in ranks.items():
            near = cpus_of(_near_cpus(end, topology))
            core = next((core for core in numbers if core & near), None)
            if core is not None:
                slots[rank] = numbers.pop(core)
        unbound = ", ".join(str(rank) for rank in ranks if rank not in slots)
        if unbound:
            reason = reason or f"bound to no core, as none near their endpoints is known and free: ranks {unbound}"
            notes.append(f"# {called[host]}: {reason}")
    lines = [
        f"rank {rank}={called[topology.by_id[end].host]}" + (f" slot={slots[rank]}" if rank in slots else "")
        for rank, end in enumerate(order.ranks)
    ]
    return "\n".join([*notes, *lines]) + "\n"


def _numbered(packages: list[list[Core]]) -> dict[Core, str]:
    """The cores of a host in order, each with its slot; none where no source numbers them as mpirun does."""
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
