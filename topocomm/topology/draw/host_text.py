"""One host as lines of text: its PCIe and NUMA tree, then what joins its GPUs directly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from topocomm.topology.draw.alike_hosts import Host
from topocomm.topology.draw.device_tree import FABRICS, Node, fabric_links, forest, loose_nodes, walk
from topocomm.topology.draw.names import figure, label, listed, named, ranges
from topocomm.topology.model import Device, Link, Topology

_INLINE_WIDTH = 70


def host_lines(topology: Topology, host: Host) -> list[str]:
    """The lines of one host, without its name in them, so that hosts alike give equal lines."""
    devices, links = host.devices, host.links
    fabric = fabric_links(devices, links)
    kept = set(fabric)
    roots = forest(devices, [link for link in links if link not in kept])
    linked = {link.src for link in (*links, *host.outward)}
    loose = loose_nodes(devices, links, roots)
    for root in roots:  # what no link places, but its NUMA number
        here = [n for n in loose if n.device.numa is not None and n.device.numa == root.device.numa]
        root.children.extend(here)
        loose = [n for n in loose if n not in here]
    lines = [line for root in roots for line in _root(root, linked)]
    for numa, nodes in _by_numa(loose):
        title = "NUMA not known" if numa is None else f"NUMA/{numa}"
        lines.append(title + _cpus([n.device for n in nodes]))
        lines += _children(nodes, "", linked)
    return [*lines, *_meshes(devices, links), *_fabric(topology, devices, fabric)]


def _by_numa(nodes: Sequence[Node]) -> list[tuple[int | str | None, list[Node]]]:
    groups: dict[int | str | None, list[Node]] = {}
    for node in nodes:
        groups.setdefault(node.device.numa, []).append(node)
    return sorted(groups.items(), key=lambda item: (item[0] is None, str(item[0]).zfill(9)))


def _root(node: Node, linked: set[str]) -> list[str]:
    text = label(node.device) + _cpus([c.device for c in walk(node.children)])
    return [text, *_children(node.children, "", linked)]


def _cpus(devices: Sequence[Device]) -> str:
    """The CPU list that all GPUs among the devices share."""
    lists = {d.cpu_affinity for d in devices if d.kind == "gpu"}
    shared = lists.pop() if len(lists) == 1 else None
    return f" (CPUs {shared})" if shared else ""


def _children(nodes: Sequence[Node], prefix: str, linked: set[str]) -> list[str]:
    """The lines below a node: leaves drawn together by kind and figure, then the branches."""
    entries: list[tuple[str, list[Node]]] = []
    leaves = [n for n in nodes if not n.children]
    for (how, _), same in groupby(leaves, key=lambda n: (_how(n), n.device.kind)):
        devices = [n.device for n in same]
        idle = devices[0].kind == "nic" and not any(d.id in linked for d in devices)
        entries.append((f"{how}{listed(devices)}" + (" (not linked)" if idle else ""), []))
    for shape, same in groupby((n for n in nodes if n.children), key=_shape):
        group = list(same)
        if shape is not None and len(group) > 1:
            below = [child.device for n in group for child in n.children]
            text = f"{_how(group[0])}{listed([n.device for n in group])}, each {_how(group[0].children[0])}"
            entries.append((text + ranges(map(label, below)), []))
            continue
        entries += map(_branch, group)
    lines = []
    for i, (text, below_nodes) in enumerate(entries):
        last = i == len(entries) - 1
        lines.append(prefix + ("└─ " if last else "├─ ") + text)
        lines += _children(below_nodes, prefix + ("   " if last else "│  "), linked)
    return lines


def _branch(node: Node) -> tuple[str, list[Node]]:
    """A branch in one line if all below it have one figure and it is short, else its line and what goes below."""
    text = _how(node) + named(node.device)
    if node.device.kind in ("numa", "host") or label(node.device).startswith("HB"):
        text += _cpus([c.device for c in walk(node.children)])
    hows = {_how(child) for child in walk(node.children)}
    if len(hows) == 1:
        (how,) = hows
        line = f"{text}: {'' if how == _how(node) else how}{_inline(node.children)}"
        leaves = not any(child.children for child in node.children)
        if (leaves and node.device.kind == "switch") or len(line) <= _INLINE_WIDTH:
            return line, []
    return text, node.children


def _inline(nodes: Sequence[Node]) -> str:
    """Leaves by ranges, branches with what is below them in brackets."""
    words = [listed([n.device for n in nodes if not n.children])]
    words += [f"{label(n.device)} ({_inline(n.children)})" for n in nodes if n.children]
    return ", ".join(filter(None, words))


def _how(node: Node) -> str:
    return f"{figure(node.link)} - " if node.link else ""


def _shape(node: Node) -> tuple[str, ...] | None:
    """Equal for GPUs that have one NIC each of the same figure; None for other branches."""
    if node.device.kind != "gpu" or len(node.children) != 1:
        return None
    return (_how(node), _how(node.children[0]))


def _meshes(devices: Sequence[Device], links: Sequence[Link]) -> list[str]:
    """NUMA nodes that are joined each to each."""
    numas = [d for d in devices if d.kind == "numa"]
    between = [link for link in links if {link.src, link.dst} <= {d.id for d in numas}]
    if not between:
        return []
    return [f"{figures} - between {ranges(map(label, numas))}" for figures in dict.fromkeys(map(figure, between))]


def _fabric(topology: Topology, devices: Sequence[Device], links: Sequence[Link]) -> list[str]:
    """NVLink and xGMI: into switches, each to each, or per GPU."""
    lines: list[str] = []
    gpus = [d for d in devices if d.kind == "gpu"]
    for kind, title in FABRICS.items():
        mine = [link for link in links if link.kind == kind]
        if not mine:
            continue
        direct = [link for link in mine if topology.by_id[link.dst].kind == topology.by_id[link.src].kind == "gpu"]
        entries = _switched(topology, mine)
        each = {(link.gb_per_s, link.lanes) for link in direct}
        if len(gpus) > 2 and len(direct) == len(gpus) * (len(gpus) - 1) and len(each) == 1:
            entries.append(_bond(direct[0], f"between {ranges(map(label, gpus))}, each to each"))
        elif direct and len({link.src for link in direct}) == len(direct):  # bridges between pairs
            ends = [(link, [topology.by_id[link.src], topology.by_id[link.dst]]) for link in direct[::2]]
            entries += [_bond(link, ranges(map(label, pair))) for link, pair in ends]
        elif direct:
            entries += [_neighbours(topology, gpu, direct) for gpu in gpus if any(x.src == gpu.id for x in direct)]
        lines.append(title)
        lines += [("└─ " if i == len(entries) - 1 else "├─ ") + text for i, text in enumerate(entries)]
    return lines


def _switched(topology: Topology, links: Sequence[Link]) -> list[str]:
    into: dict[tuple[str, str], list[Device]] = {}
    for link in links:
        if topology.by_id[link.dst].kind == "switch":
            key = (f"{figure(link)} - {label(topology.by_id[link.dst])}", _lanes(link))
            into.setdefault(key, []).append(topology.by_id[link.src])
    return [f"{text}: {ranges(map(label, gpus))}{lanes}" for (text, lanes), gpus in into.items()]


def _lanes(link: Link) -> str:
    return f" ({link.lanes} links each)" if link.lanes else ""


def _bond(link: Link, peers: str) -> str:
    """The figure, what it leads to, and the number of bonded links: `NVL[50] - GPU/3-4 (x2)`."""
    return f"{figure(link)} - {peers}" + (f" (x{link.lanes})" if link.lanes and link.lanes > 1 else "")


def _neighbours(topology: Topology, gpu: Device, links: Sequence[Link]) -> str:
    bonds: dict[tuple[float, int, str], tuple[Link, list[str]]] = {}
    for link in links:
        if link.src == gpu.id:
            key = (-(link.gb_per_s or 0.0), -(link.lanes or 0), figure(link))
            bonds.setdefault(key, (link, []))[1].append(label(topology.by_id[link.dst]))
    return f"{label(gpu)}: " + ", ".join(_bond(link, ranges(peers)) for _, (link, peers) in sorted(bonds.items()))
