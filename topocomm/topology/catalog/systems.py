"""Reference systems by name, and clusters of them.

Rails join several hosts: NIC k of every host is on switch `rail<k>`, and a spine joins the rails, tapered where the
system's name says so. GPU to GPU over one rail takes 5.0 us (NCCL's network hop), over the spine 6.0 us. A rack of one
NVLink domain is several hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, groupby, product

from topocomm.errors import TopologyError
from topocomm.topology.catalog import reference_hosts as reference
from topocomm.topology.catalog.reference_hosts import Host
from topocomm.topology.inference.cpu_lists import core_facts, cpus_of
from topocomm.topology.links import FABRIC_HOP_US, both_ways
from topocomm.topology.merge.cluster import NETWORK, prefixed
from topocomm.topology.model import Device, Link, Topology


def catalog(name: str, *, hosts: int = 1) -> Topology:
    """Return a reference system with nominal rates (`links.KINDS`).

    With one host, ids are plain (`GPU0`); with more they are `h0/GPU0`, and rails and a spine join the NICs. A rack
    (`gb200-nvl72`) is 18 hosts, `h0` to `h17`, which NVSwitches join; `hosts` counts racks then.

    Raises:
        TopologyError: No such system (the message lists them), or hosts < 1.
    """
    host = reference_host(name)
    if hosts < 1:
        raise TopologyError(f"system {name}: hosts must be at least 1, got {hosts}")
    links = host.links if hosts == 1 else (*host.links, *host.uplinks)
    cores = groupby((d for d in host.devices if d.kind == "cpu"), key=lambda core: core.numa)
    packages = [[cpus_of(core.cpu_affinity) for core in own] for _, own in cores]
    single = Topology(
        name, "catalogue", host.devices, links, host.pairs, facts=core_facts(packages) if packages else {}
    )
    if hosts == host.trays == 1:
        return single
    racks = [
        [prefixed(single, f"h{rack * host.trays + tray}", f"nvswitch{rack}") for tray in range(host.trays)]
        for rack in range(hosts)
    ]
    parts = [part for rack in racks for part in rack]
    rails, rail_links = _rails(parts, host) if hosts > 1 else ([], [])
    between = [  # GPU pairs between trays of a rack, equal to those inside a tray
        first.pairs[0]._replace(a=a, b=b)
        for rack in racks
        for first, second in combinations(rack, 2)
        for a, b in product(first.endpoints, second.endpoints)
    ]
    own = [d for part in parts for d in part.devices if d.host != NETWORK.host]
    shared = dict.fromkeys(d for part in parts for d in part.devices if d.host == NETWORK.host)
    return Topology(
        name=f"{name} x {hosts}" if hosts > 1 else name,
        source="catalogue",
        devices=(*own, *shared, *rails),
        links=(*(link for part in parts for link in part.links), *rail_links),
        pairs=(*(pair for part in parts for pair in part.pairs), *between),
        facts={part.name: dict(part.facts) for part in parts if part.facts},
    )


def reference_host(name: str) -> Host:
    """Return one host of a reference system; a TopologyError lists them where there is no such system."""
    if name not in SYSTEMS:
        raise TopologyError(f"system {name!r} is not in the catalogue; it has {', '.join(SYSTEMS)}")
    return SYSTEMS[name]()


def _rails(parts: Sequence[Topology], host: Host) -> tuple[list[Device], list[Link]]:
    """A switch for every NIC of a host, a spine above several of them, and their links."""
    nics = [d.id for d in host.devices if d.kind == "nic"]
    rails = [Device(f"rail{i}", "switch", NETWORK.host, "rail switch") for i in range(len(nics))]
    spine = [Device("spine", "switch", NETWORK.host, "spine switch")] if len(rails) > 1 else []
    up = -(-len(parts) // host.taper)
    links: list[Link] = []
    port = both_ways("", "", host.port)[0][2:]
    for rail, nic in zip(rails, nics, strict=True):
        for part in parts:
            end = f"{part.name}/{nic}"
            links += Link(end, rail.id, *port), Link(rail.id, end, *port)
        for top in spine:
            links += both_ways(rail.id, top.id, host.port, lanes=up, latency_us=FABRIC_HOP_US)
    return [*rails, *spine], links


def _dgx_h100() -> Host:
    return reference.switched("nvlink4", 18, "network-400", "pcie5", "nvls")


SYSTEMS: dict[str, Callable[[], Host]] = {
    "dgx-1-v100": lambda: reference.dgx_1("nvlink2"),
    "dgx-1-p100": lambda: reference.dgx_1("nvlink1"),
    "dgx-2": reference.dgx_2,
    "v100-4": lambda: reference.full_mesh(4, "nvlink2", "NV#", "network-100", "pcie3", lanes=2, nics=2),
    "p3dn": lambda: reference.dgx_1("nvlink2", nics=1),
    "hgx-a100-4": lambda: reference.full_mesh(4, "nvlink3", "NV#", "network-200", "pcie4", lanes=4),
    "dgx-a100": lambda: reference.switched("nvlink3", 12, "network-200", "pcie4"),
    "p4d": lambda: reference.switched("nvlink3", 12, "network-100", "pcie4", nics=4),
    "a100-pcie-2": lambda: reference.a100_pcie(2),
    "a100-pcie-4": lambda: reference.a100_pcie(4),
    "dgx-h100": _dgx_h100,
    "dgx-h100-taper2": lambda: _dgx_h100()._replace(taper=2),
    "dgx-h200": _dgx_h100,
    "dgx-b200": lambda: reference.switched("nvlink5", 18, "network-400", "pcie5", "nvls"),
    "gb200-nvl72": reference.gb200_tray,
    "mi100-8": reference.mi100_8,
    "mi250x": reference.mi250x,
    "mi300x-8": lambda: reference.full_mesh(8, "xgmi-mi300", "XGMI", "network-400", "pcie5"),
    "mi325x-8": lambda: reference.full_mesh(8, "xgmi-mi300", "XGMI", "network-400", "pcie5"),
    "rtx3090-pair": reference.rtx3090_pair,
    "rtx4090-pcie-4": lambda: reference.rtx4090_pcie(4, 1),
    "rtx4090-pcie-4-2-socket": lambda: reference.rtx4090_pcie(4),
    "rtx4090-pcie-8": lambda: reference.rtx4090_pcie(8),
    "rtx4090-pcie-8-1-socket": lambda: reference.rtx4090_pcie(8, 1),
    "cpu-1-socket": lambda: reference.cpu_host_of(1, 8, 1, "pcie3", "network-10"),
    "cpu-2-socket": lambda: reference.cpu_host_of(2, 8, 1, "pcie4", "network-100"),
    "cpu-2-socket-64": lambda: reference.cpu_host_of(2, 32, 2, "pcie4", "network-200"),
}
"""Builders by catalogue name."""
