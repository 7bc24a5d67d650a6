"""A topology as one screen of text: the tree, counts, unknown figures, warnings and the next command."""

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
    numa_order,
    shared_cpus,
    split_hosts,
    walk,
)
from topocomm.topology.draw.names import counts, figure, label, listed, named, plural, ranges
from topocomm.topology.inference.host_tree import LEVELS
from topocomm.topology.links import assume
from topocomm.topology.model import Device, Link, Topology
from topocomm.topology.network.in_network import IN_NETWORK

WIDTH = 80
HEIGHT = 40
"""One screen of a terminal; the last line is left to the prompt."""
MOST_FINDINGS = 4
_INLINE_WIDTH = 70
"""Longest branch of the tree that is written in one line, in characters."""

_ASCII = str.maketrans({"├": "+", "└": "+", "─": "-", "│": "|"})


def render(topology: Topology, *, next_command: str, findings: Sequence[tuple[str, str, str]] = ()) -> str:
    """Return the topology as text of at most 80 columns and, for one host, at most 39 lines.

    Lines read like NCCL's system tree, `TYPE[GB/s] - NODE/id`: PCI[?] is a PCIe link of unknown rate, NVS an
    NVSwitch, HB a PCIe host bridge, ADP a network card of several ports, SW a network switch. The last lines, which
    are not wrapped, propose to run `next_command`. `findings` are what checks say of the machine: level, check, text.
    """
    title = f"{topology.name} ({topology.source})"
    head = [title if len(title) <= WIDTH else f"{title[: WIDTH - 3]}...", ""]
    foot = ["", *_wrapped("", counts(topology)), *_notes(topology), *_found(findings), *_next(next_command)]
    body = [piece for line in _body(topology) for piece in _folded(line)]
    room = HEIGHT - 1 - len(head) - len(foot)
    if len(body) > room:
        first, last = room * 2 // 3, room - room * 2 // 3 - 1  # the last lines show the GPU fabric
        more = f"... {len(body) - first - last} more lines; `--format json` has everything"
        body = [*body[:first], more, *body[len(body) - last :]]
    return "\n".join([*head, *body, *foot]) + "\n"


def _found(findings: Sequence[tuple[str, str, str]]) -> list[str]:
    shown = [f"{level:5} {check}: {text}" for level, check, text in findings[:MOST_FINDINGS]]
    lines = [line for text in shown for line in _wrapped(text[:6], text[6:], limit=2)]
    rest = len(findings) - len(shown)
    return [*lines, f"and {plural(rest, 'more finding')} of `topocomm doctor`"] if rest else lines


def _next(command: str) -> list[str]:
    """Lines with the commands to run next, each whole, so that it can be copied."""
    return f"Next: {command}".replace("\n", "\n      ").split("\n")


def to_ascii(text: str) -> str:
    """Return the text for terminals that cannot show box-drawing characters."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def _body(topology: Topology) -> list[str]:
    hosts = split_hosts(topology)
    groups: dict[tuple[str, ...], list[str]] = {}
    for same in alike(hosts):
        groups.setdefault(tuple(_host_lines(topology, same[0])), []).extend(host.name for host in same)
    lines: list[str] = []
    for own, names in groups.items():
        if len(hosts) > 1:
            lines.append(f"{len(names)} hosts alike: {ranges(names)}" if len(names) > 1 else f"Host {names[0]}")
        lines += own
    return [*lines, *network_lines(topology)]


def _listing(title: str, entries: Sequence[str]) -> list[str]:
    """A title with its entries drawn as branches; nothing without entries."""
    last = len(entries) - 1
    return [title, *(("└─ " if i == last else "├─ ") + text for i, text in enumerate(entries))] if entries else []


def network_lines(topology: Topology) -> list[str]:
    """Return the switches that sit on no host, one line for all that join the same."""
    hosts = set(topology.hosts)
    groups: dict[tuple[str, ...], list[str]] = {}
    for device in topology.devices:
        if device.kind == "switch" and device.host not in hosts:
            peers: dict[tuple[str, str], list[Device]] = {}
            for link in topology.links:
                if link.src == device.id:
                    peer = topology.by_id[link.dst]
                    kind = "switch" if peer.host == device.host else peer.kind
                    peers.setdefault((figure(link), kind), []).append(peer)
            joins = tuple(f"{rate} - {_peer_words(kind, own)}" for (rate, kind), own in peers.items())
            groups.setdefault(joins, []).append(device.id)
    return _listing("Network", [f"{ranges(names)}: {'; '.join(joins)}" for joins, names in groups.items()])


def _peer_words(kind: str, peers: Sequence[Device]) -> str:
    if kind == "switch":
        return ranges(peer.id for peer in peers)
    hosts = list(dict.fromkeys(peer.host for peer in peers))
    if len(peers) == len(hosts) > 1:
        return f"one {kind.upper()} of {ranges(hosts)}"
    if len(hosts) == 1:
        return ranges(map(label, peers))
    return f"{plural(len(peers), kind.upper())} of {ranges(hosts)}"


def _notes(topology: Topology) -> list[str]:
    """Switches that can reduce, figures that no source gave with what plans assume, and warnings."""
    lines = []
    for kind, own in IN_NETWORK.items():
        names = dict.fromkeys(d.id.rsplit("/", 1)[-1] for d in topology.devices if d.in_network == kind)
        if names:
            words = f"{ranges(names)}, for {', '.join(own.types)}; not for custom operators and plans"
            lines += _wrapped(f"{own.name}: ", words)
    rates = dict.fromkeys(link.kind for link in topology.links if link.gb_per_s is None)
    latencies = dict.fromkeys(link.kind for link in topology.links if link.latency_us is None)
    assumed = dict.fromkeys(link.kind for link in topology.links if link.latency_us_source == "assumed")
    if rates:
        words = ", ".join(f"{kind} ({assume(kind).gb_per_s:g})" for kind in rates)
        lines += _wrapped("Unknown: ", f"GB/s of {words}; in brackets what plans assume for one link")
    if latencies:
        words = ", ".join(f"{kind} ({assume(kind).latency_us:g})" for kind in latencies)
        lines += _wrapped("Unknown: ", f"latency of {words}; in brackets what plans assume, in us")
    if assumed:
        lines += _wrapped("Assumed: ", f"latency of {', '.join(assumed)}, which no tool tells")
    for text in topology.warnings[:3]:
        lines += _wrapped("" if text.startswith("No GPU") else "Note: ", text, limit=3)
    if len(topology.warnings) > 3:
        lines.append(f"Note: {len(topology.warnings) - 3} more; `--format json` has all")
    return lines


def _wrapped(title: str, text: str, limit: int | None = None) -> list[str]:
    return textwrap.wrap(
        title + text,
        WIDTH,
        subsequent_indent=" " * len(title),
        max_lines=limit,
        placeholder=" ...",
        break_on_hyphens=False,
    )


def _folded(line: str) -> list[str]:
    """A tree line of over 80 columns, folded below its text."""
    if len(line) <= WIDTH:
        return [line]
    text = line.lstrip("├└│─ ")
    lead = line[: len(line) - len(text)]
    indent = lead.replace("├─", "│ ").replace("└─", "  ") + "  "
    return textwrap.wrap(text, WIDTH, initial_indent=lead, subsequent_indent=indent, break_on_hyphens=False)


def _host_lines(topology: Topology, host: Host) -> list[str]:
    """The lines of one host, without its name, so that hosts alike give equal lines."""
    devices, links = host.devices, host.links
    fabric = fabric_links(devices, links)
    in_fabric = set(fabric)
    roots = forest(devices, [link for link in links if link not in in_fabric])
    linked = {link.src for link in (*links, *host.outward)}
    near = {d.id: _nearest_gpus(topology, d.id) for d in devices if d.kind == "nic" and d.id not in linked}
    loose = loose_nodes(devices, links, roots)
    for root in roots:  # devices that have no link, but the root's NUMA number
        own = [n for n in loose if n.device.numa is not None and n.device.numa == root.device.numa]
        root.children.extend(own)
        loose = [n for n in loose if n not in own]
    lines: list[str] = []
    for root in roots:
        lines.append(label(root.device) + _cpus([c.device for c in walk(root.children)]))
        lines += _children(root.children, "", near)
    groups: dict[int | str | None, list[Node]] = {}
    for node in loose:
        groups.setdefault(node.device.numa, []).append(node)
    for numa, nodes in sorted(groups.items(), key=lambda item: numa_order(item[0])):
        title = "NUMA not known" if numa is None else f"NUMA/{numa}"
        lines.append(title + _cpus([n.device for n in nodes]))
        lines += _children(nodes, "", near)
    numas = {d.id: label(d) for d in devices if d.kind == "numa"}
    figures = dict.fromkeys(figure(link) for link in links if link.src in numas and link.dst in numas)
    lines += [f"{words} - between {ranges(numas.values())}" for words in figures]
    return [*lines, *_fabric(topology, devices, fabric)]


def _cpus(devices: Sequence[Device]) -> str:
    shared = shared_cpus(devices)
    return f" (CPUs {shared})" if shared else ""


def _children(nodes: Sequence[Node], prefix: str, near: dict[str, tuple[str, list[str]]]) -> list[str]:
    """The lines below a node: leaves drawn together by kind and figure, then the branches."""
    entries: list[tuple[str, list[Node]]] = []
    leaves = [n for n in nodes if not n.children]
    for (rate, _), same in groupby(leaves, key=lambda n: (_link_words(n), n.device.kind)):
        devices = [n.device for n in same]
        entries.append((f"{rate}{listed(devices)}{_unlinked(devices, near)}", []))

    def shape_of(node: Node) -> tuple[str, str] | None:  # equal for GPUs that have one NIC each with equal figures
        is_pair = node.device.kind == "gpu" and len(node.children) == 1
        return (_link_words(node), _link_words(node.children[0])) if is_pair else None

    for shape, same in groupby((n for n in nodes if n.children), key=shape_of):
        group = list(same)
        if shape is not None and len(group) > 1:
            nics = [child.device for n in group for child in n.children]
            text = f"{shape[0]}{listed([n.device for n in group])}, each {shape[1]}"
            entries.append((text + ranges(map(label, nics)), []))
        else:
            entries += map(_branch, group)
    lines = []
    for i, (text, below) in enumerate(entries):
        mark, indent = ("└─ ", "   ") if i == len(entries) - 1 else ("├─ ", "│  ")
        lines.append(prefix + mark + text)
        lines += _children(below, prefix + indent, near)
    return lines


def _nearest_gpus(topology: Topology, nic: str) -> tuple[str, list[str]]:
    """The code of a NIC's nearest GPUs, and these, as pairs tell; empty where they do not."""
    gpus: dict[str, list[str]] = {}
    for pair in topology.pairs:
        if nic in (pair.a, pair.b) and pair.code in LEVELS:
            gpus.setdefault(pair.code, []).append(label(topology.by_id[pair.a if pair.b == nic else pair.b]))
    code = min(gpus, key=LEVELS.__getitem__, default="")
    return code, gpus.get(code, [])


def _unlinked(devices: Sequence[Device], near: dict[str, tuple[str, list[str]]]) -> str:
    """Words for NICs without links: what is nearest to them, `, each PIX - GPU/0-3`."""
    if any(d.id not in near for d in devices):
        return ""
    codes = {code for code, _ in map(near.__getitem__, (d.id for d in devices))}
    gpus = list(dict.fromkeys(gpu for d in devices for gpu in near[d.id][1]))
    if len(codes) > 1 or not gpus:
        return " (not linked)"
    return f",{' each' if len(gpus) == len(devices) > 1 else ''} {codes.pop()} - {ranges(gpus)}"


def _branch(node: Node) -> tuple[str, list[Node]]:
    """A branch in one line if all below it have one figure and it is short, else its line and its children."""
    text = _link_words(node) + named(node.device)
    if node.device.kind in ("numa", "host") or label(node.device).startswith("HB"):
        text += _cpus([c.device for c in walk(node.children)])
    rates = {_link_words(child) for child in walk(node.children)}
    if len(rates) == 1:
        (rate,) = rates
        line = f"{text}: {'' if rate == _link_words(node) else rate}{_inline(node.children)}"
        has_only_leaves = not any(child.children for child in node.children)
        if (has_only_leaves and node.device.kind == "switch") or len(line) <= _INLINE_WIDTH:
            return line, []
    return text, node.children


def _inline(nodes: Sequence[Node]) -> str:
    """Leaves by ranges, branches with their children in brackets."""
    words = [listed([n.device for n in nodes if not n.children])]
    words += [f"{label(n.device)} ({_inline(n.children)})" for n in nodes if n.children]
    return ", ".join(filter(None, words))


def _link_words(node: Node) -> str:
    return f"{figure(node.link)} - " if node.link else ""


def _fabric(topology: Topology, devices: Sequence[Device], links: Sequence[Link]) -> list[str]:
    """NVLink and xGMI: into switches, each to each, by pair, or by GPU."""
    lines: list[str] = []
    names = {d.id: label(d) for d in devices if d.kind == "gpu"}
    for kind, title in FABRICS.items():
        own = [link for link in links if link.kind == kind]
        direct = [link for link in own if link.src in names and link.dst in names]
        switched: dict[tuple[str, str], list[str]] = {}
        for link in own:
            switch = topology.by_id[link.dst]
            if switch.kind == "switch":
                lanes = f" ({link.lanes} links each)" if link.lanes else ""
                key = (f"{figure(link)} - {label(switch)}", lanes)
                switched.setdefault(key, []).append(label(topology.by_id[link.src]))
        entries = [f"{text}: {ranges(gpus)}{lanes}" for (text, lanes), gpus in switched.items()]
        figures = {(link.gb_per_s, link.lanes) for link in direct}
        if len(names) > 2 and len(direct) == len(names) * (len(names) - 1) and len(figures) == 1:
            entries.append(_bond(direct[0], f"between {ranges(names.values())}, each to each"))
        elif direct and len({link.src for link in direct}) == len(direct):  # bridges between pairs
            entries += [_bond(link, ranges((names[link.src], names[link.dst]))) for link in direct[::2]]
        else:
            sources = {link.src for link in direct}
            entries += [f"{names[gpu]}: {_neighbours(names, gpu, direct)}" for gpu in names if gpu in sources]
        lines += _listing(title, entries)
    return lines


def _bond(link: Link, peers: str) -> str:
    """Figure, peers and number of bonded links: `NVL[50] - GPU/3-4 (x2)`."""
    return f"{figure(link)} - {peers}" + (f" (x{link.lanes})" if link.lanes and link.lanes > 1 else "")


def _neighbours(names: dict[str, str], gpu: str, links: Sequence[Link]) -> str:
    bonds: dict[tuple[float, int, str], tuple[Link, list[str]]] = {}
    for link in links:
        if link.src == gpu:
            key = (-(link.gb_per_s or 0.0), -(link.lanes or 0), figure(link))
            bonds.setdefault(key, (link, []))[1].append(names[link.dst])
    return ", ".join(_bond(link, ranges(peers)) for _, (link, peers) in sorted(bonds.items()))
