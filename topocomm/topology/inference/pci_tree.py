"""Pair codes and a graph of switches, host bridges and NUMA nodes, from the places of devices in a PCI tree.

Codes follow NCCL's rules. A PCIe switch is an upstream bridge with downstream bridges below, so devices that meet at a
bridge with at most one more bridge on each side share a switch (PIX); further bridges are PXB, the host bridge is PHB,
another host bridge of the same NUMA node NODE, another NUMA node SYS.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from topocomm.errors import TopologyError
from topocomm.topology.links import PATH_LATENCY_US, both_ways
from topocomm.topology.merge.cluster import NETWORK
from topocomm.topology.model import Device, DeviceKind, Link, Pair

MAX_GPUS, MAX_NICS, MAX_BRIDGES, MAX_NUMA = 256, 512, 32, 256
"""Limits of one host (`MAX_BRIDGES`: above one another); more is a damaged text."""

PIX_US, PHB_US, NODE_US, SYS_US = (PATH_LATENCY_US[code] / 2 for code in ("PIX", "PHB", "NODE", "SYS"))
_STEP_US = (PATH_LATENCY_US["PXB"] - PATH_LATENCY_US["PIX"]) / 2
_BUS_ID = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")


@dataclass(eq=False, slots=True)
class Bridge:
    """A PCI bridge or, first in a path, a host bridge, with GB/s of its link upwards."""

    bus_id: str | None = None
    gb_per_s: float | None = None


class Leaf(NamedTuple):
    """A GPU or NIC and the bridges above it, the host bridge first; none where they are unknown."""

    device: Device
    path: tuple[Bridge, ...] = ()
    gb_per_s: float | None = None
    """GB/s of the device's own link."""
    places: frozenset[int] = frozenset()
    """Indices of the NUMA nodes near it; empty where unknown."""


def bus_key(bus_id: str | None) -> tuple[int, ...]:
    """Return the sort key of an address: domain, bus, device, function; unknown addresses are last."""
    match = _BUS_ID.fullmatch(bus_id or "")
    return tuple(int(part or "0", 16) for part in match.groups()) if match else (1 << 32,)


def natural(name: str) -> list[tuple[bool, int, str, str]]:
    """Return a key that sorts `mlx5_2` before `mlx5_10`."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    values = [part.lstrip("0") if part[0] in "0123456789" else None for part in parts]
    return [(v is not None, len(v or ""), v or "", part) for v, part in zip(values, parts, strict=True)]


def with_domain(bus_id: str) -> str:
    """Return the address with its domain, which tools leave out where it is zero."""
    match = _BUS_ID.fullmatch(bus_id)
    return f"0000:{bus_id}" if match and match.group(1) is None else bus_id


def address(bus_id: str) -> str | None:
    """Return a PCI address from NCCL's number: `26000` is 0000:26:00.0; None for other numbers."""
    number = int(bus_id, 16)
    if number >= 1 << 52:
        return None
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"


def path_code(a: Leaf, b: Leaf) -> str | None:
    """Return NCCL's code for the PCIe path of two devices; None where it depends on unknown NUMA nodes."""
    shared = 0
    for one, other in zip(a.path, b.path, strict=False):
        if one is not other:
            break
        shared += 1
    if shared > 1:
        return "PIX" if max(len(a.path), len(b.path)) - shared <= 1 else "PXB"
    if shared == 1:
        return "PHB"
    if a.places and b.places and not a.places & b.places:
        return "SYS"
    return "NODE" if a.path and b.path and a.places == b.places and len(a.places) == 1 else None


def check_size(name: str, gpus: int, nics: int, numas: int = 0) -> None:
    """Raise TopologyError for more than MAX_GPUS, MAX_NICS or MAX_NUMA, which no host has."""
    for count, most, what in ((gpus, MAX_GPUS, "GPUs"), (nics, MAX_NICS, "NICs"), (numas, MAX_NUMA, "NUMA nodes")):
        if count > most:
            raise TopologyError(f"{name}: {count} {what} in one host; expected at most {most}; is this one machine?")


def pci_pairs(gpus: Sequence[Leaf], nics: Sequence[Leaf], known: Mapping[tuple[str, str], Pair]) -> tuple[Pair, ...]:
    """Return every GPU-GPU and GPU-NIC pair; `known` has those with a better path than PCIe."""
    ends = [*combinations(gpus, 2), *((gpu, nic) for gpu in gpus for nic in nics)]
    named = (((a.device.id, b.device.id), path_code(a, b)) for a, b in ends)
    return tuple(known.get(pair) or coded_pair(pair, code) for pair, code in named)


def coded_pair(pair: tuple[str, str], code: str | None) -> Pair:
    """Return the pair with the latency that plans assume for its PCIe code."""
    latency_us = PATH_LATENCY_US.get(code or "")
    return Pair(*pair, code, None, latency_us, None, None if latency_us is None else "assumed")


def pci_graph(leaves: Sequence[Leaf], numas: Sequence[Device]) -> tuple[tuple[Device, ...], tuple[Link, ...]]:
    """Return the forwarding devices and the links of one host.

    Bridges with one device below become part of its link, at the GB/s of the slowest. The host joins several NUMA
    nodes, and devices without a node. Places of leaves index the NUMA nodes, which are linked, but not returned.
    """
    tree = _Tree(numas, leaves)
    return tuple(tree.devices), tuple(tree.links)


@dataclass(eq=False, slots=True)
class _Node:
    """A NUMA node or a bridge with its children, or a leaf; `is_host` marks a host bridge."""

    numa: Device | None = None
    bridge: Bridge | None = None
    leaf: Leaf | None = None
    is_host: bool = False
    children: dict[int, _Node] = field(default_factory=dict)


class _Added(NamedTuple):
    id: str
    height_us: float
    gb_per_s: float | None


class _Tree:
    def __init__(self, numas: Sequence[Device], leaves: Sequence[Leaf]) -> None:
        self.devices: list[Device] = []
        self.links: list[Link] = []
        self.used = Counter[str]()
        tops = [_Node(numa) for numa in numas]
        unplaced = _Node()
        for leaf in leaves:
            node = tops[next(iter(leaf.places))] if len(leaf.places) == 1 else unplaced
            for depth, bridge in enumerate(leaf.path):
                node = node.children.setdefault(id(bridge), _Node(bridge=bridge, is_host=depth == 0))
            node.children[id(leaf)] = _Node(leaf=leaf)
        self.host = next((leaf.device.host for leaf in leaves), numas[0].host if numas else "host0")
        added = [self._add(top) for top in tops]
        loose = [self._add(child) for child in unplaced.children.values()]
        if len(added) + len(loose) > 1 or (loose and not added):
            root = self._new("host", "host", None)
            height_us = max(SYS_US, *(top.height_us + _STEP_US for top in (*added, *loose)))
            for top in added:
                self._join(top, root, height_us, "smp")
            for top in loose:
                self._join(top, root, height_us, "pcie")

    def _add(self, node: _Node) -> _Added:
        """Add the device of a node: its id, its height above the leaves, GB/s of its link upwards."""
        if node.leaf is not None:
            return _Added(node.leaf.device.id, 0.0, node.leaf.gb_per_s)
        own = node.bridge.gb_per_s if node.bridge else None
        added = [self._add(child) for child in node.children.values()]
        if len(added) == 1 and node.numa is None:
            rates = [rate for rate in (added[0].gb_per_s, own) if rate is not None]
            return added[0]._replace(gb_per_s=min(rates, default=None))
        prefix, name = ("bridge", "PCIe host bridge") if node.is_host else ("pcie", "PCIe switch")
        least_us = PHB_US if node.is_host else PIX_US
        if node.numa is not None:
            new, least_us = node.numa.id, NODE_US
        else:
            new = self._new(prefix, "switch", name, node.bridge.bus_id if node.bridge else None)
        height_us = max([least_us, *(below.height_us + _STEP_US for below in added if below.height_us)])
        for below in added:
            self._join(below, new, height_us, "pcie")
        return _Added(new, height_us, own)

    def _join(self, below: _Added, above: str, height_us: float, kind: str) -> None:
        latency_us = round(height_us - below.height_us, 6)
        self.links += both_ways(below.id, above, kind, gb_per_s=below.gb_per_s, latency_us=latency_us)

    def _new(self, prefix: str, kind: DeviceKind, name: str | None, bus_id: str | None = None) -> str:
        self.devices.append(Device(f"{prefix}{self.used[prefix]}", kind, self.host, name, bus_id=bus_id))
        self.used[prefix] += 1
        return self.devices[-1].id


def core_graph(
    homes: Iterable[int], numas: Sequence[Device], nics: Sequence[Leaf], ports: Mapping[str, float | None]
) -> tuple[list[Device], tuple[Link, ...]]:
    """Return the links of a host whose endpoints are cores, and the device between its nodes for NICs without one.

    `homes` has the index of the NUMA node of `cpu0`, `cpu1` and so on, `ports` GB/s to the network by NIC.
    """
    links: list[Link] = []
    for core, home in enumerate(homes):
        links += both_ways(f"cpu{core}", numas[home].id, "shared-memory")
    for a, b in combinations(numas, 2):
        links += both_ways(a.id, b.id, "smp")
    hub = numas[0]
    if len(numas) > 1 and any(len(nic.places) != 1 for nic in nics):
        hub = Device("host", "host", hub.host, name="place of NICs without a NUMA node")
        for numa in numas:
            links += both_ways(numa.id, hub.id, "smp")
    for nic in nics:
        parent = numas[min(nic.places)] if len(nic.places) == 1 else hub
        links += both_ways(parent.id, nic.device.id, "pcie", gb_per_s=nic.gb_per_s)
        links += both_ways(nic.device.id, NETWORK.id, "network", gb_per_s=ports.get(nic.device.id))
    return [hub] if hub.kind == "host" else [], tuple(links)
