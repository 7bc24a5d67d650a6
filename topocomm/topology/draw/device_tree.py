"""The PCIe and NUMA tree of one host: what hangs on what, from hosts and NUMA nodes down to GPUs, cores and NICs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from topocomm.topology.model import ENDPOINT_KINDS, Device, Link, Topology

FABRICS = {"nvlink": "NVLink", "xgmi": "xGMI"}
"""Kinds of links that join GPUs directly or by switches of their own, and what people call them."""
MOST_LEVELS = 64
"""Deeper branches are cut in pieces: no machine has them, but a file can."""
_ROOT_KINDS = ("host", "numa", "switch")


class Node(NamedTuple):
    """A device, the link from its parent (None of a root), and what is below it."""

    device: Device
    link: Link | None
    children: list[Node]


def fabric_links(devices: Sequence[Device], links: Sequence[Link]) -> list[Link]:
    """The links of the GPU fabric among the links of one host: between GPUs, and between them and its switches."""
    kinds = {d.id: d.kind for d in devices}
    return [x for x in links if x.kind in FABRICS and {kinds[x.src], kinds[x.dst]} <= {"gpu", "switch"}]


def forest(devices: Sequence[Device], links: Sequence[Link]) -> list[Node]:
    """The spanning forest from hosts, NUMA nodes and switches downwards; endpoints end a branch.

    Args:
        devices: Of one host.
        links: Between them, without those of the GPU fabric.
    """
    by_id = {d.id: d for d in devices}
    out: dict[str, list[Link]] = {}
    for link in links:
        out.setdefault(link.src, []).append(link)
    linked = set(out)
    seen: set[str] = set()
    roots = []
    for kind in _ROOT_KINDS:
        starts = [d for d in devices if d.kind == kind and d.id in linked and d.id not in seen]
        seen.update(d.id for d in starts if kind == "numa")  # neighbours of one rank, not each other's children
        for start in starts:
            if kind != "numa" and start.id in seen:
                continue
            seen.add(start.id)
            root = Node(start, None, [])
            roots.append(root)
            queue = deque([(root, 1)])
            while queue:
                node, level = queue.popleft()
                if node.device.kind in ENDPOINT_KINDS or level == MOST_LEVELS:
                    continue
                for link in out.get(node.device.id, ()):
                    if link.dst not in seen:
                        seen.add(link.dst)
                        child = Node(by_id[link.dst], link, [])
                        node.children.append(child)
                        queue.append((child, level + 1))
    return roots


def loose_nodes(devices: Sequence[Device], links: Sequence[Link], roots: Sequence[Node]) -> list[Node]:
    """GPUs, CPUs and NICs outside the forest; a NIC linked to such a GPU below it, several below their NIC."""
    inside = {node.device.id for node in walk(roots)}
    by_id = {d.id: d for d in devices}
    peers: dict[str, list[Link]] = {}
    for link in links:
        if by_id[link.src].kind == "nic" and by_id[link.dst].kind in ENDPOINT_KINDS and link.src not in inside:
            peers.setdefault(link.src, []).append(link)
    nodes = {d.id: Node(d, None, []) for d in devices if d.kind in ("gpu", "cpu", "nic") and d.id not in inside}
    shared: set[str] = set()
    for nic, ways in peers.items():
        if len(ways) == 1 and ways[0].dst in nodes:
            nodes[ways[0].dst].children.append(nodes.pop(nic)._replace(link=ways[0]))
        else:
            nodes[nic].children.extend(Node(by_id[way.dst], way, []) for way in ways)
            shared.update(way.dst for way in ways)
    return [node for name, node in nodes.items() if name not in shared]


def walk(nodes: Iterable[Node]) -> Iterable[Node]:
    """The nodes and all below them, each before its children."""
    for node in nodes:
        yield node
        yield from walk(node.children)


class Host(NamedTuple):
    """One host: its devices, the links between them, and the links from them to what is outside."""

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    outward: tuple[Link, ...]
    shared: tuple[Device, ...] = ()
    """Switches of the GPU fabric that this host has in common with others."""


def split_hosts(topology: Topology) -> list[Host]:
    """The hosts that have endpoints, in order; every host of the devices where none has any."""
    names = topology.hosts or tuple(dict.fromkeys(d.host for d in topology.devices))
    devices: dict[str, list[Device]] = {name: [] for name in names}
    links: dict[str, list[Link]] = {name: [] for name in names}
    outward: dict[str, list[Link]] = {name: [] for name in names}
    home: dict[str, str] = {}
    for device in topology.devices:
        home[device.id] = device.host
        if device.host in devices:
            devices[device.host].append(device)
    for link in topology.links:
        host = home[link.src]
        if host in links:
            (links if home[link.dst] == host else outward)[host].append(link)
    found = []
    for name in names:
        ways = dict.fromkeys(link.dst for link in outward[name] if link.kind in FABRICS)
        shared = tuple(topology.by_id[end] for end in ways if topology.by_id[end].kind == "switch")
        found.append(Host(name, tuple(devices[name]), tuple(links[name]), tuple(outward[name]), shared))
    return found


def alike(hosts: Sequence[Host]) -> list[list[Host]]:
    """The hosts in groups that have the same devices, figures and ways outside, but for the host's name in the ids."""
    groups: dict[tuple[object, ...], list[Host]] = {}
    for host in hosts:
        groups.setdefault(_shape(host), []).append(host)
    return list(groups.values())


def _shape(host: Host) -> tuple[object, ...]:
    short = {device.id: local(device.id, host.name) for device in host.devices}
    devices = tuple((short[d.id], d.kind, *d[3:6]) for d in host.devices)
    links = tuple((short[link.src], short[link.dst], *link[2:]) for link in host.links)
    outward = tuple((short[link.src], *link[1:]) for link in host.outward)
    return devices, links, outward


def local(name: str, host: str) -> str:
    """A device's id without its host's name before it."""
    return name.removeprefix(f"{host}/")
