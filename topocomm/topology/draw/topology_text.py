"""A topology as one screen of text: tree first, then counts, unknowns, warnings and the next command."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby

from topocomm.topology.draw.device_tree import (
    FABRICS,
    Host,
    Node,
    alike,
    fabric_links,
    forest,
    loose_nodes,
    split_hosts,
    walk,
)
from topocomm.topology.draw.names import counts, figure, label, listed, named, plural, ranges
from topocomm.topology.links import assume
from topocomm.topology.model import Device, Link, Topology
from topocomm.topology.network.in_network import IN_NETWORK

WIDTH = 80
HEIGHT = 40
"""One screen of a terminal; the last line is left to the prompt."""

_ASCII = str.maketrans({"├": "+", "└": "+", "─": "-", "│": "|"})


def render(topology: Topology, *, next_command: str) -> str:
    """The topology as text of at most 80 columns and, for one host, at most 39 lines.

    Lines read like NCCL's system tree, `TYPE[GB/s] - NODE/id`: PCI[?] is a PCIe link of unknown rate, NVS an
    NVSwitch, HB a PCIe host bridge, ADP a network card of several ports, SW a network switch.

    Args:
        topology: One host or a cluster.
        next_command: What the last line proposes to run.
    """
    head = [_cut(f"{topology.name} ({topology.source})"), ""]
    foot = ["", *_wrapped("", counts(topology)), *_in_network(topology), *_unknowns(topology), *_warnings(topology)]
    foot += _wrapped("Next: ", next_command)
    body = [piece for line in _body(topology) for piece in _folded(line)]
    room = HEIGHT - 1 - len(head) - len(foot)
    if len(body) > room:
        first, last = room * 2 // 3, room - room * 2 // 3 - 1  # the end says what joins the GPUs
        more = f"... {len(body) - first - last} more lines; `--format json` has everything"
        body = [*body[:first], more, *body[len(body) - last :]]
    return "\n".join([*head, *body, *foot]) + "\n"


def to_ascii(text: str) -> str:
    """The same for terminals that cannot show box-drawing characters."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def _body(topology: Topology) -> list[str]:
    hosts = split_hosts(topology)
    groups: dict[tuple[str, ...], list[str]] = {}
    for same in alike(hosts):
        groups.setdefault(tuple(host_lines(topology, same[0])), []).extend(host.name for host in same)
    lines: list[str] = []
    for own, names in groups.items():
        if len(hosts) > 1:
            lines.append(f"{len(names)} hosts alike: {ranges(names)}" if len(names) > 1 else f"Host {names[0]}")
        lines += own
    return [*lines, *network_lines(topology)]


def network_lines(topology: Topology) -> list[str]:
    """Switches that sit on no host, those alike on one line."""
    hosts = set(topology.hosts)
    switches = [d for d in topology.devices if d.kind == "switch" and d.host not in hosts]
    alike: dict[tuple[str, ...], list[Device]] = {}
    for switch in switches:
        alike.setdefault(_joins(topology, switch), []).append(switch)
    entries = [f"{ranges(s.id for s in same)}: {'; '.join(joins)}" for joins, same in alike.items()]
    if not entries:
        return []
    return ["Network", *(("└─ " if i == len(entries) - 1 else "├─ ") + text for i, text in enumerate(entries))]


def _joins(topology: Topology, switch: Device) -> tuple[str, ...]:
    """What a network switch joins, in words that are equal for switches alike."""
    groups: dict[tuple[str, str], list[Device]] = {}
    for link in topology.links:
        if link.src == switch.id:
            peer = topology.by_id[link.dst]
            kind = "switch" if peer.host == switch.host else peer.kind
            groups.setdefault((figure(link), kind), []).append(peer)
    return tuple(f"{how} - {_peers(kind, peers)}" for (how, kind), peers in groups.items())


def _peers(kind: str, peers: Sequence[Device]) -> str:
    if kind == "switch":
        return ranges(peer.id for peer in peers)
    hosts = list(dict.fromkeys(peer.host for peer in peers))
    if len(peers) == len(hosts) > 1:
        return f"one {kind.upper()} of {ranges(hosts)}"
    if len(hosts) == 1:
        return ranges(map(label, peers))
    return f"{plural(len(peers), kind.upper())} of {ranges(hosts)}"


def _in_network(topology: Topology) -> list[str]:
    """Switches that can reduce on the way, and what they know."""
    lines = []
    for kind, own in IN_NETWORK.items():
        names = dict.fromkeys(d.id.rsplit("/", 1)[-1] for d in topology.devices if d.in_network == kind)
        if names:
            words = f"{ranges(names)}, for {', '.join(own.types)}; not for custom operators and plans"
            lines += _wrapped(f"{own.name}: ", words)
    return lines


def _unknowns(topology: Topology) -> list[str]:
    """Figures that no source gave, and what stands or would be put in their place."""
    rates = dict.fromkeys(link.kind for link in topology.links if link.gb_per_s is None)
    late = dict.fromkeys(link.kind for link in topology.links if link.latency_us is None)
    assumed = dict.fromkeys(link.kind for link in topology.links if link.latency_us_source == "assumed")
    lines = []
    if rates:
        words = ", ".join(f"{kind} ({assume(kind).gb_per_s:g})" for kind in rates)
        lines += _wrapped("Unknown: ", f"GB/s of {words}; in brackets what plans assume for one link")
    if late:
        words = ", ".join(f"{kind} ({assume(kind).latency_us:g})" for kind in late)
        lines += _wrapped("Unknown: ", f"latency of {words}; in brackets what plans assume, in us")
    if assumed:
        lines += _wrapped("Assumed: ", f"latency of {', '.join(assumed)}, which no tool tells")
    return lines


def _warnings(topology: Topology) -> list[str]:
    shown = topology.warnings[:3]
    lines = [line for text in shown for line in _wrapped("" if text.startswith("No GPU") else "Note: ", text, limit=3)]
    more = len(topology.warnings) - len(shown)
    return lines + ([f"Note: {more} more; `--format json` has all"] if more else [])


def _wrapped(title: str, text: str, limit: int | None = None) -> list[str]:
    indent = " " * len(title)
    return textwrap.wrap(
        title + text,
        WIDTH,
        subsequent_indent=indent,
        max_lines=limit,
        placeholder=" ...",
        break_on_hyphens=False,
    )


def _folded(line: str) -> list[str]:
    """A tree line over 80 columns, folded below its text."""
    if len(line) <= WIDTH:
        return [line]
    text = line.lstrip("├└│─ ")
    lead = line[: len(line) - len(text)]
    indent = lead.replace("├─", "│ ").replace("└─", "  ") + "  "
    return textwrap.wrap(text, WIDTH, initial_indent=lead, subsequent_indent=indent, break_on_hyphens=False)


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."


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
