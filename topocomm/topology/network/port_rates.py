"""Rates of the ports by which a host's NICs join the network: what a capture says, or what their slots can carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topocomm.topology.draw.names import plural
from topocomm.topology.links import both_ways
from topocomm.topology.model import Link, Topology

GBIT_PER_S = (10, 25, 40, 50, 100, 200, 400, 800)
"""Rates of ports of Ethernet and InfiniBand; a slot is made for the largest that it can carry."""
MOST_MBPS = 1_600_000
"""Above, a speed is no port's: NCCL prints such numbers for what it does not know."""
PORTS, SPEEDS = "port_gb_per_s", "net_speed_mbps"
"""Facts: GB/s by name of the NIC, of sysfs; Mb/s of all NICs, or by name or id, of NCCL."""


def stated_rates(host: Topology) -> dict[str, float]:
    """Return GB/s of the ports that a capture of a host tells, by id of the NIC."""
    ports, speeds = host.facts.get(PORTS), host.facts.get(SPEEDS)
    rates = {}
    for nic in host.devices:
        if nic.kind != "nic":
            continue
        own = nic.id.removeprefix(f"{nic.host}/")  # facts keep the names that the host alone has
        rate, mbps = (_of(table, nic.name, own) for table in (ports, speeds))
        if rate is None and mbps is not None and mbps <= MOST_MBPS:
            rate = mbps / 8000
        if rate is not None:
            rates[nic.id] = rate
    return rates


def join_network(host: Topology, nics: list[str], network: str) -> tuple[list[Link], list[str]]:
    """Return links of NICs to the network, and in words what is assumed of their rates.

    Where no source tells the port of a NIC, it is as fast as the slowest port that is told; where none is, as the
    largest that the slowest PCIe slot of the NICs can carry. Both are marked as assumed. Without any such figure GB/s
    stays unknown.
    """
    stated = stated_rates(host)
    slots = [
        link.gb_per_s for link in host.links if link.src in nics and link.gb_per_s and link.gb_per_s_source == "read"
    ]
    fitting = [rate / 8 for rate in GBIT_PER_S if slots and rate / 8 <= min(slots)]
    assumed = min(stated.values()) if stated else fitting[-1] if fitting else None
    links: list[Link] = []
    for nic in nics:
        both = both_ways(nic, network, "network", gb_per_s=stated.get(nic, assumed))
        told = nic in stated or assumed is None
        links += both if told else (link._replace(gb_per_s_source="assumed") for link in both)
    unknown = [nic for nic in nics if nic not in stated]
    if not unknown or assumed is None:
        return links, []
    why = "as the slowest port that is told" if stated else "the most that the slowest of the NICs' PCIe slots carries"
    ports = plural(len(unknown), "port")
    return links, [f"network: no source tells the rate of {ports}: {assumed * 8:g} Gb/s assumed, {why}"]


def _of(table: Any, *names: str | None) -> float | None:
    """A positive number of a table by one of these names, or one for all."""
    values = [table.get(name) for name in names] if isinstance(table, Mapping) else [table]
    known = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0]
    return float(known[0]) if known else None
