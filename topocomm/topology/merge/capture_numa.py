"""NUMA nodes for a PCIe tree whose source shows none (`lspci -tv`), from the GPUs' numbers in other captures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from topocomm.topology.inference.pci_tree import NODE_US, SYS_US
from topocomm.topology.links import both_ways
from topocomm.topology.model import Device, Link

Tree = tuple[tuple[Device, ...], list[Link]]
"""Forwarding devices and links, each connection in both directions."""


def with_numa_nodes(devices: Sequence[Device], links: Sequence[Link], ends: Mapping[str, Device]) -> Tree:
    """Return the tree with a NUMA node above every part whose GPUs have one number.

    A host bridge above GPUs of several nodes is taken apart, as NCCL does: virtual machines show all devices on one.
    Parts without GPUs stay where they are. The tree is unaltered where it has NUMA nodes, where the number of a GPU is
    unknown, or where GPUs of several nodes are below one switch.
    """
    same = tuple(devices), list(links)
    gpus = [end for end in ends.values() if end.kind == "gpu"]
    if any(d.kind == "numa" for d in devices) or not all(isinstance(gpu.numa, int) for gpu in gpus) or not links:
        return same
    tree = _NumaTree(devices, links, ends)
    return tree.build() if all(len(tree.numas(name)) <= 1 for _, name in tree.parts) else same


class _NumaTree:
    def __init__(self, devices: Sequence[Device], links: Sequence[Link], ends: Mapping[str, Device]) -> None:
        self.devices = {device.id: device for device in devices}
        self.ends = ends
        self.host = next((end.host for end in ends.values()), "host0")
        self.links = list(links)
        self.down: dict[str, list[Link]] = defaultdict(list)
        for link in links:  # readers write the link upwards first
            if (link.dst, link.src) not in {(x.src, x.dst) for x in self.down[link.src]}:
                self.down[link.dst].append(link)
        below = {link.src for links_down in self.down.values() for link in links_down}
        self.roots = [name for name in self.down if name not in below]
        self.parts: list[tuple[Link | None, str]] = []
        for root in self.roots:
            self._part(None, root)

    def numas(self, name: str) -> set[int]:
        """Return NUMA numbers of the GPUs at and below a device."""
        ends = [self.ends[inner] for inner in self._inside(name) if inner in self.ends]
        return {end.numa for end in ends if end.kind == "gpu" and isinstance(end.numa, int)}

    def _part(self, up: Link | None, name: str) -> None:
        """Add a device as a part; take the host, and host bridges above several nodes, apart."""
        device = self.devices.get(name)
        bridge = device is not None and "host bridge" in (device.name or "")
        if (device is not None and device.kind == "host") or (bridge and len(self.numas(name)) > 1):
            for link in self.down[name]:
                self._part(link, link.src)
        else:
            self.parts.append((up, name))

    def build(self) -> Tree:
        """Return parts below their nodes, nodes and other parts below the host, where there are several."""
        numbers = sorted({numa for _, name in self.parts for numa in self.numas(name)})
        nodes = {numa: Device(f"numa{numa}", "numa", self.host, numa=numa) for numa in numbers}
        loose = [(up, name) for up, name in self.parts if not self.numas(name)]
        inner = {name for _, part in self.parts for name in self._inside(part)}
        links = [link for link in self.links if link.src in inner and link.dst in inner]
        for up, name in self.parts:
            if numas := self.numas(name):
                links += self._join(up, name, nodes[numas.pop()].id, NODE_US)
        kept = [device for device in self.devices.values() if device.id in inner]
        if len(nodes) + len(loose) > 1:
            host = next((d for d in self.devices.values() if d.kind == "host"), Device("host0", "host", self.host))
            for node in nodes.values():
                links += both_ways(node.id, host.id, "smp", latency_us=round(SYS_US - NODE_US, 6))
            for up, name in loose:
                links += self._join(up, name, host.id, SYS_US)
            kept.append(host)
        return (*nodes.values(), *kept), links

    def _inside(self, name: str) -> set[str]:
        return {name}.union(*(self._inside(link.src) for link in self.down[name]))

    def _join(self, up: Link | None, name: str, above: str, height_us: float) -> tuple[Link, Link]:
        """The part's link upwards with its figures; its latency is the height of the parent less that of the part."""
        own_us = 0.0 if name in self.ends else max((link.latency_us or 0.0 for link in self.down[name]), default=0.0)
        rate, source = (up.gb_per_s, up.gb_per_s_source) if up is not None else (None, None)
        link, _ = both_ways(name, above, "pcie", latency_us=round(max(height_us - own_us, 0.1), 6))
        link = link._replace(gb_per_s=rate, gb_per_s_source=source)
        return link, link._replace(src=above, dst=name)
