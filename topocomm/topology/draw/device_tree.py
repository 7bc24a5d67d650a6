"""The parts of each host of a topology: devices, links, the PCIe and NUMA tree; and which hosts are alike."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from topocomm.topology.inference import nccl_paths
from topocomm.topology.model import ENDPOINT_KINDS, Device, DeviceKind, Link, Pair, Topology

FABRICS = {"nvlink": "NVLink", "xgmi": "xGMI"}
"""Display name of each link kind that joins GPUs, directly or through switches of their own."""
MOST_LEVELS = 64
"""Depth at which branches of the tree are cut; no machine is deeper, but a damaged file can be."""


class Host(NamedTuple):
    """One host: its devices, the links and pairs between them, and the links to devices outside."""

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    outward: tuple[Link, ...]
    shared: tuple[Device, ...] = ()
    """Switches of the GPU fabric that other hosts share."""
    pairs: tuple[Pair, ...] = ()


class Node(NamedTuple):
    """A device in the tree, the link from its parent (None for a root), and its children."""

    device: Device
    link: Link | None
    children: list[Node]


def split_hosts(topology: Topology) -> list[Host]:
    """Return the hosts that have endpoints, in order; all hosts where none has any."""
    names = topology.hosts or tuple(dict.fromkeys(d.host for d in topology.devices))
    devices: dict[str, list[Device]] = defaultdict(list)
    links: dict[str, list[Link]] = defaultdict(list)
    outward: dict[str, list[Link]] = defaultdict(list)
    pairs: dict[str, list[Pair]] = defaultdict(list)
    home = {device.id: device.host for device in topology.devices}
    for device in topology.devices:
        devices[device.host].append(device)
    for link in topology.links:
        (links if home[link.dst] == home[link.src] else outward)[home[link.src]].append(link)
    for pair in topology.pairs:
        host = home.get(pair.a)
        if host is not None and home.get(pair.b) == host:
            pairs[host].append(pair)
    hosts = []
    for name in names:
        ends = [topology.by_id[link.dst] for link in outward[name] if link.kind in FABRICS]
        shared = tuple(dict.fromkeys(end for end in ends if end.kind == "switch"))
        own, inner, outer = devices[name], links[name], outward[name]
        hosts.append(Host(name, tuple(own), tuple(inner), tuple(outer), shared, tuple(pairs[name])))
    return hosts


def alike(hosts: Sequence[Host], *, outward: bool = True) -> list[list[Host]]:
    """Group hosts that have equal devices, figures and links, apart from the host's name in the ids.

    Without `outward` they need not be on the same switches of the network.
    """
    groups: dict[tuple[object, ...], list[Host]] = {}
    for host in hosts:
        short = {device.id: local(device.id, host.name) for device in host.devices}
        devices = tuple((short[d.id], d.kind, *d[3:6]) for d in host.devices)
        links = tuple((short[link.src], short[link.dst], *link[2:]) for link in host.links)
        out = tuple((short[link.src], *link[1:]) for link in host.outward) if outward else len(host.outward)
        groups.setdefault((devices, links, out), []).append(host)
    return list(groups.values())


def derived_codes(host: Host, *, nics: bool = False) -> dict[tuple[str, str], str]:
    """Return the codes of nvidia-smi that the links of one host give; with `nics` also those between two NICs."""
    swapped: dict[str, DeviceKind] = {"gpu": "nic", "nic": "gpu"}
    graphs = [host.devices]
    if nics:  # NCCL needs no codes between NICs: the second graph swaps them with GPUs
        graphs.append(tuple(d._replace(kind=swapped.get(d.kind, d.kind)) for d in host.devices))
    codes: dict[tuple[str, str], str] = {}
    for devices in graphs:
        for pair in nccl_paths.pairs(Topology(host.name, "", devices, host.links), wording="nvidia-smi"):
            if pair.code:
                codes.setdefault((pair.a, pair.b), pair.code)
    return codes


def local(name: str, host: str) -> str:
    """Return a device's id without its host's name in front."""
    return name.removeprefix(f"{host}/")


def fabric_links(devices: Sequence[Device], links: Sequence[Link]) -> list[Link]:
    """Return the links of one host's GPU fabric: between GPUs, and between GPUs and their switches."""
    kinds = {d.id: d.kind for d in devices}
    return [x for x in links if x.kind in FABRICS and {kinds[x.src], kinds[x.dst]} <= {"gpu", "switch"}]


def numa_order(numa: int | str | None) -> tuple[bool, str]:
    """Return a sort key of NUMA nodes: by number, unknown ones last."""
    return numa is None, str(numa).zfill(9)


def shared_cpus(devices: Iterable[Device]) -> str | None:
    """Return the CPU list that all GPUs among the devices have; None where they differ or have none."""
    lists = {d.cpu_affinity for d in devices if d.kind == "gpu"}
    return lists.pop() if len(lists) == 1 else None


def forest(devices: Sequence[Device], links: Sequence[Link]) -> list[Node]:
    """Return the spanning forest of one host's tree links, from hosts, NUMA nodes and switches down to endpoints."""
    by_id = {d.id: d for d in devices}
    links_from: dict[str, list[Link]] = {}
    for link in links:
        links_from.setdefault(link.src, []).append(link)
    visited: set[str] = set()
    roots = []
    for kind in ("host", "numa", "switch"):
        starts = [d for d in devices if d.kind == kind and d.id in links_from and d.id not in visited]
        if kind == "numa":  # neighbours of one rank, not each other's children
            visited.update(d.id for d in starts)
        for start in starts:
            if kind != "numa" and start.id in visited:
                continue
            visited.add(start.id)
            root = Node(start, None, [])
            roots.append(root)
            queue = deque([(root, 1)])
            while queue:
                node, level = queue.popleft()
                if node.device.kind in ENDPOINT_KINDS or level == MOST_LEVELS:
                    continue
                for link in links_from.get(node.device.id, ()):
                    if link.dst not in visited:
                        visited.add(link.dst)
                        child = Node(by_id[link.dst], link, [])
                        node.children.append(child)
                        queue.append((child, level + 1))
    return roots


def loose_nodes(devices: Sequence[Device], links: Sequence[Link], roots: Sequence[Node]) -> list[Node]:
    """Return GPUs, CPUs and NICs outside the forest.

    A NIC linked to one such endpoint is its child; several endpoints linked to one NIC are the NIC's children.
    """
    inside = {node.device.id for node in walk(roots)}
    by_id = {d.id: d for d in devices}
    nic_links: dict[str, list[Link]] = {}
    for link in links:
        if by_id[link.src].kind == "nic" and by_id[link.dst].kind in ENDPOINT_KINDS and link.src not in inside:
            nic_links.setdefault(link.src, []).append(link)
    nodes = {d.id: Node(d, None, []) for d in devices if d.kind in ("gpu", "cpu", "nic") and d.id not in inside}
    children: set[str] = set()
    for nic, own in nic_links.items():
        if len(own) == 1 and own[0].dst in nodes:
            nodes[own[0].dst].children.append(nodes.pop(nic)._replace(link=own[0]))
        else:
            nodes[nic].children.extend(Node(by_id[link.dst], link, []) for link in own)
            children.update(link.dst for link in own)
    return [node for name, node in nodes.items() if name not in children]


def walk(nodes: Iterable[Node]) -> Iterable[Node]:
    """Yield the nodes and all below them, each before its children."""
    for node in nodes:
        yield node
        yield from walk(node.children)
