"""A topology as one screen of text: tree first, then counts, unknowns, warnings and the next command."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from topocomm.topology.draw.alike_hosts import alike, split_hosts
from topocomm.topology.draw.counts import counts
from topocomm.topology.draw.host_text import host_lines
from topocomm.topology.draw.names import figure, label, plural, ranges
from topocomm.topology.links import assume
from topocomm.topology.model import Device, Topology
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
