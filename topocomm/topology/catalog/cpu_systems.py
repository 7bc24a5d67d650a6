"""The catalogue's machines without GPUs: their cores hold the ranks. Reference shapes, not particular products."""

from __future__ import annotations

from topocomm.topology.catalog.system_parts import Host, nics_on_sockets
from topocomm.topology.links import PATH_LATENCY_US, both_ways
from topocomm.topology.model import Device, Link


def cpu_host_of(sockets: int, cores: int, nics: int, pcie: str, port: str) -> Host:
    """Sockets of some cores, each one NUMA node, and NICs on the first ones.

    Args:
        sockets: How many.
        cores: Of each.
        nics: How many, at most one per socket.
        pcie: Row of `links.KINDS` for the NICs' slots.
        port: Row for their ports.
    """
    ends = [Device(f"cpu{i}", "cpu", numa=i // cores, cpu_affinity=str(i)) for i in range(sockets * cores)]
    numas = [Device(f"numa{i}", "numa", numa=i) for i in range(sockets)]
    ports = nics_on_sockets(nics, min(nics, sockets))
    links: list[Link] = []
    for end in ends:
        links += both_ways(end.id, f"numa{end.numa}", "shared-memory-core")
    for a in range(sockets):
        for b in range(a + 1, sockets):
            links += both_ways(f"numa{a}", f"numa{b}", "smp-amd")
    for nic in ports:
        links += both_ways(f"numa{nic.numa}", nic.id, pcie, latency_us=PATH_LATENCY_US["PIX"])
    return Host((*ends, *numas, *ports), tuple(links), (), port)
