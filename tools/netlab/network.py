"""The network of a topology as cables between hosts and switches, and topologies of racks for the lab."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from topocomm.errors import TopologyError
from topocomm.topology.links import both_ways
from topocomm.topology.merge.cluster import NETWORK
from topocomm.topology.model import Device, Link, Topology

GB_PER_S_PER_MBIT = 1e6 / 8 / 1e9
"""GB/s of one Mbit/s."""
_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


class Host(NamedTuple):
    """A host and the number of ranks that it takes."""

    name: str
    slots: int


class Cable(NamedTuple):
    """A connection of a host or switch with a switch, with the figures of each direction; None is not limited."""

    lower: str
    """Name of the host, or id of the switch farther from the root."""
    upper: str
    """Id of a switch."""
    up_gb_per_s: float | None
    down_gb_per_s: float | None
    delay_us: float
    """Latency of one direction that a source gave, the larger of both; 0 where it was assumed or measured."""


class Network(NamedTuple):
    """Hosts, switches, and the cables that join them to one tree."""

    hosts: tuple[Host, ...]
    switches: tuple[str, ...]
    cables: tuple[Cable, ...]

    def cable(self, lower: str, upper: str | None = None) -> int:
        """Return the number of the cable of a host, or of a switch to the switch `upper`.

        Raises:
            TopologyError: There is none.
        """
        for number, cable in enumerate(self.cables):
            if cable.lower == lower and upper in (None, cable.upper):
                return number
        names = ", ".join(f"{cable.lower}-{cable.upper}" for cable in self.cables)
        raise TopologyError(f"no cable {lower}{'' if upper is None else f'-{upper}'}: the lab has {names}")


def network_of(topology: Topology) -> Network:
    """Return the network of a topology: each host with one link to a switch, switches that form a tree.

    A host takes as many ranks as the topology places on it, or as it has endpoints.

    Raises:
        TopologyError: There are not two hosts, a host has another number of links to switches, a name is no host
            name, a link has no reverse, or the switches form no tree.
    """
    kinds = {device.id: device.kind for device in topology.devices}
    places = {device.id: device.host for device in topology.devices}
    switches = [d.id for d in topology.devices if d.host == NETWORK.host]
    hosts = tuple(Host(name, _slots(topology, name)) for name in topology.hosts)
    if len(hosts) < 2:
        raise TopologyError(f"topology {topology.name!r} has {len(hosts)} host; the lab needs two or more")
    for host in hosts:
        if not _HOST_NAME.fullmatch(host.name):
            raise TopologyError(f"host {host.name!r}: expected up to 32 lower-case letters, digits and dashes")
    for name in switches:
        if kinds[name] != "switch":
            raise TopologyError(f"{name!r} is a {kinds[name]} of the host {NETWORK.host!r}: expected a switch")
    nodes: dict[tuple[str, str], Link] = {}
    for link in topology.links:
        ends = tuple(name if name in switches else places[name] for name in (link.src, link.dst))
        if ends[0] != ends[1]:
            if (ends[0], ends[1]) in nodes:
                raise TopologyError(f"several links {ends[0]} -> {ends[1]}: the lab joins two devices by one")
            nodes[ends[0], ends[1]] = link
    for src, dst in nodes:
        if (dst, src) not in nodes:
            raise TopologyError(f"link {src} -> {dst} has no reverse: the lab's links have both directions")
        if src not in switches and dst not in switches:
            raise TopologyError(f"link {src} -> {dst} joins two hosts: the lab joins hosts by switches")
    return Network(hosts, tuple(switches), tuple(_cables(nodes, hosts, switches)))


def _slots(topology: Topology, host: str) -> int:
    placed = sum(1 for place in topology.ranks if place.host == host)
    return placed or sum(1 for end in topology.endpoints if topology.by_id[end].host == host)


def _cables(nodes: dict[tuple[str, str], Link], hosts: tuple[Host, ...], switches: list[str]) -> Iterator[Cable]:
    """Yield the cables of hosts, then those of switches, walking down from the switch that comes last."""
    for host in hosts:
        uppers = [dst for src, dst in nodes if src == host.name]
        if len(uppers) != 1:
            raise TopologyError(f"host {host.name} has {len(uppers)} links to switches; the lab gives each host one")
        yield _cable(nodes, host.name, uppers[0])
    seen, below = set(switches[-1:]), list(switches[-1:])
    while below:
        upper = below.pop()
        for lower in [src for src, dst in nodes if dst == upper and src in switches and src not in seen]:
            seen.add(lower)
            below.append(lower)
            yield _cable(nodes, lower, upper)
    pairs = sum(1 for src, dst in nodes if src in switches and dst in switches) // 2
    if seen != set(switches) or pairs != len(switches) - 1:
        raise TopologyError(
            f"{len(switches)} switches with {pairs} links between them form no tree: "
            "bridges would pass packets in circles"
        )


def _cable(nodes: dict[tuple[str, str], Link], lower: str, upper: str) -> Cable:
    up, down = nodes[lower, upper], nodes[upper, lower]
    given = [link.latency_us or 0.0 for link in (up, down) if link.latency_us_source in ("read", None)]
    return Cable(lower, upper, up.gb_per_s, down.gb_per_s, max(given, default=0.0))


def racks(
    hosts: int, ranks: int, mbit_per_s: float, n_racks: int = 1, uplink_mbit_per_s: float | None = None
) -> Topology:
    """Return the topology of hosts in racks: a leaf switch a rack, and a spine above them where there are several.

    Args:
        hosts: Hosts in all; rack i has the hosts that follow those of rack i - 1.
        ranks: Endpoints of each host, which share its memory and one NIC.
        mbit_per_s: Rate of a host's link, in each direction.
        n_racks: Leaf switches.
        uplink_mbit_per_s: Rate between a leaf and the spine; None: as the hosts of a rack together.

    Raises:
        TopologyError: A number is not positive, or there are more racks than hosts.
    """
    if min(hosts, ranks, n_racks, mbit_per_s) <= 0 or n_racks > hosts or (uplink_mbit_per_s or 1) <= 0:
        raise TopologyError(
            f"{hosts} hosts x {ranks} ranks in {n_racks} racks at {mbit_per_s:g} Mbit/s: "
            "expected positive numbers, and a host or more a rack"
        )
    rate = mbit_per_s * GB_PER_S_PER_MBIT
    devices: list[Device] = []
    links: list[Link] = []
    for number in range(hosts):
        name = f"host{number}"
        memory, nic = f"{name}/numa0", f"{name}/nic0"
        for rank in range(ranks):
            devices.append(Device(f"{name}/CPU{rank}", "cpu", name, numa=0))
            links += both_ways(f"{name}/CPU{rank}", memory, "shared-memory")
        devices += [Device(memory, "numa", name, numa=0), Device(nic, "nic", name, "lab0", numa=0)]
        links += both_ways(memory, nic, "pcie")
        links += both_ways(nic, f"leaf{number * n_racks // hosts}", "network", gb_per_s=rate)
    for rack in range(n_racks):
        devices.append(Device(f"leaf{rack}", "switch", NETWORK.host))
        if n_racks > 1:
            in_rack = sum(1 for number in range(hosts) if number * n_racks // hosts == rack)
            uplink = in_rack * rate if uplink_mbit_per_s is None else uplink_mbit_per_s * GB_PER_S_PER_MBIT
            links += both_ways(f"leaf{rack}", "spine", "network", gb_per_s=uplink)
    if n_racks > 1:
        devices.append(Device("spine", "switch", NETWORK.host))
    name = f"lab of {hosts} x {ranks} in {n_racks} rack{'s' * (n_racks > 1)}"
    return Topology(name, "tools.netlab", tuple(devices), tuple(links))
