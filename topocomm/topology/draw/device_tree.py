"""The PCIe and NUMA tree of one host: what hangs on what, from hosts and NUMA nodes down to GPUs, cores and NICs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from topocomm.topology.model import ENDPOINT_KINDS, Device, Link

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
