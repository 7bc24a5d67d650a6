"""The topology of a measured table, from the words of its source about the machine."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from topocomm import TopocommError
from topocomm.calibration.measured_table import MeasuredTable
from topocomm.topology.catalog.systems import catalog, reference_host
from topocomm.topology.model import Topology

SYSTEMS: tuple[tuple[str, str], ...] = (
    (r"ABCI.*node V|\b4x V100.*all-to-all", "v100-4"),
    (r"p3dn", "p3dn"),
    (r"GB[23]00|NVL72", "gb200-nvl72"),
    (r"B[23]00", "dgx-b200"),
    (r"(H100|H200).?(PCIe|NVL\b)|PCIe.*H100|V100.?PCIe", "rtx4090-pcie-8"),
    (r"H200", "dgx-h200"),
    (r"H100|p5\b|H800|H20\b", "dgx-h100"),
    (r"p4de?\b", "p4d"),
    (r"A100.?(PCIe|-PCIE)|PCIe.*A100", "a100-pcie-4"),
    (r"\b4x A100|A100.*\b4 GPUs", "hgx-a100-4"),
    (r"A100|A800", "dgx-a100"),
    (r"DGX-2|\b16x V100", "dgx-2"),
    (r"V100", "dgx-1-v100"),
    (r"MI325X", "mi325x-8"),
    (r"MI300X", "mi300x-8"),
    (r"MI250X?", "mi250x"),
    (r"MI100", "mi100-8"),
    (r"(PCIe|PCIE|4090|5090|L40S?|L4\b|A6000|6000 Ada|A40|A10G?\b|3090|RTX)", "rtx4090-pcie-8"),
)
"""Patterns of words, in this order, and the catalogue system that has such hosts."""
_PCIE = ((r"Gen ?5|PCIe ?5|5090|PRO 6000|H100.?PCIe|H200.?NVL\b", 2.0), (r"Gen ?3|PCIe ?3|V100.?PCIe|\bT4\b", 0.5))
"""Patterns of words about hosts without a fabric, and the rate of their PCIe over that of PCIe 4."""
_NVLINKS = ((r"H800", 8 / 18), (r"A800", 8 / 12))
"""Patterns of words about GPUs with fewer NVLinks than those of the catalogue system, and the share that they have."""
_GENERATIONS = {"EDR": 100, "HDR100": 100, "HDR": 200, "NDR200": 200, "NDR": 400, "XDR": 800}
"""Gb/s of an InfiniBand port."""
_RATES = (10, 25, 40, 50, 100, 200, 400, 800, 1600, 3200)
"""Gb/s of ports, and of all EFA of a host together."""
_PORTS = re.compile(
    r"(?:(?P<times>\d+)\s*x\s*)?(?:(?P<count>\d+)\s*x\s*)?(?P<words>(?:IB|InfiniBand|RoCE|EFA|Ethernet|ConnectX-\d|CX-?\d|BF3|Thor\d?)\W+)?"
    r"(?P<rate>\d{2,4})\s*(?-i:G\b|Gb|gb)",  # GB are bytes
    re.IGNORECASE,
)
_NAMED = re.compile(r"(?:(\d+)\s*x\s*)?(?:IB|InfiniBand)?\s*(EDR|HDR100|HDR|NDR200|NDR|XDR)\b")


class Place(NamedTuple):
    """Where a table's ranks were.

    Attributes:
        family: Name of the catalogue system.
        topology: Its hosts, with the ports that the source names.
        ranks: Endpoint of every rank.
        notes: What was assumed.
    """

    family: str
    topology: Topology
    ranks: tuple[str, ...]
    notes: str


def place_of(table: MeasuredTable) -> Place:
    """Return where a table's ranks were.

    Raises:
        TopocommError: No catalogue system has such hosts, or fewer ranks.
    """
    system = next((name for words, name in SYSTEMS if re.search(words, table.machine, re.IGNORECASE)), None)
    if system is None or table.ranks is None:
        raise TopocommError(f"{table.name}: no catalogue system for {table.machine!r}; add a pattern to machines.py")
    hosts = table.hosts or 1
    per_host = table.ranks // hosts
    if system == "gb200-nvl72":
        return _in_racks(table, table.ranks)
    if system == "rtx4090-pcie-8" and per_host <= 4:
        system = "rtx4090-pcie-4"  # one socket
    if system == "a100-pcie-4" and per_host <= 2:
        system = "a100-pcie-2"
    if system == "a100-pcie-4" and per_host > 4:
        system = "rtx4090-pcie-8"  # as many slots of PCIe 4
    topology = catalog(system, hosts=hosts)
    factor = next((factor for words, factor in _PCIE if re.search(words, table.machine, re.IGNORECASE)), 1.0)
    if "pcie" in system:
        topology = _scaled(topology, "pcie", factor)
    fewer = next((share for words, share in _NVLINKS if re.search(words, table.machine, re.IGNORECASE)), 1.0)
    topology = _scaled(topology, "nvlink", fewer)
    if per_host * hosts != table.ranks:
        raise TopocommError(f"{table.name}: {table.ranks} ranks on {hosts} hosts: expected as many on each")
    ends: dict[str, list[str]] = {}
    for end in topology.endpoints:
        ends.setdefault(topology.by_id[end].host, []).append(end)
    if any(len(own) < per_host for own in ends.values()):
        raise TopocommError(f"{table.name}: {per_host} ranks a host; {system} has {len(next(iter(ends.values())))}")
    ranks = tuple(end for own in ends.values() for end in own[:per_host])
    ports = ports_named(table.machine) if hosts > 1 else None
    if ports is None:
        return Place(system, topology, ranks, "nominal figures of the catalogue")
    nics = sum(device.kind == "nic" for device in topology.devices) // hosts
    rate = (ports[0] or nics) * ports[1]
    return Place(system, with_network(topology, rate), ranks, f"{rate:g} GB/s out of a host, as the source says")


def ports_named(words: str) -> tuple[int | None, float] | None:
    """Return (number of ports of a host, GB/s of one) that the words name; no number where they name none."""
    if match := _NAMED.search(words):
        return int(match[1]) if match[1] else None, _GENERATIONS[match[2]] / 8
    best = None
    for match in _PORTS.finditer(words):
        rate = int(match["rate"])
        number = int(match["times"] or 1) * int(match["count"] or 1) if match["times"] or match["count"] else None
        if rate in _RATES and (match["words"] or number or rate >= 100):
            count = 1 if rate >= 1600 else number
            best = count, rate / 8
    return best


def with_network(topology: Topology, gb_per_s: float) -> Topology:
    """Return the topology with ports that have this many GB/s together in each host."""
    out = [link for link in topology.links if topology.by_id[link.src].kind == "nic" and _leads_out(topology, link.dst)]
    first = topology.by_id[out[0].src].host
    now = sum(link.gb_per_s or 0.0 for link in out if topology.by_id[link.src].host == first)
    return _scaled(topology, "network", gb_per_s / now)


def _scaled(topology: Topology, kind: str, factor: float) -> Topology:
    """The topology with links of a kind at another rate, as the source says."""
    if factor == 1.0:
        return topology
    links = [
        link._replace(gb_per_s=link.gb_per_s * factor, gb_per_s_source="read")
        if link.kind == kind and link.gb_per_s is not None
        else link
        for link in topology.links
    ]
    return replace(topology, links=tuple(links))


def _leads_out(topology: Topology, device: str) -> bool:
    return topology.by_id[device].kind == "switch" and topology.by_id[device].host not in topology.hosts


def _in_racks(table: MeasuredTable, ranks: int) -> Place:
    """Ranks on racks of one NVLink domain, equally many on each."""
    size = reference_host("gb200-nvl72").trays * 4
    racks = -(-ranks // size)
    if ranks % racks:
        raise TopocommError(f"{table.name}: {ranks} ranks on {racks} racks: expected as many on each")
    topology = catalog("gb200-nvl72", hosts=racks)
    per_rack = ranks // racks
    ends = topology.endpoints
    chosen = tuple(end for rack in range(racks) for end in ends[rack * size : rack * size + per_rack])
    return Place("gb200-nvl72", topology, chosen, "one NVLink domain a rack; nominal figures of the catalogue")
