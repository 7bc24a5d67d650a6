"""A topology for Graphviz: a cluster for each host and NUMA node, an edge for each connection, wider where faster."""

from __future__ import annotations

from collections.abc import Iterable
from math import log2

from topocomm.topology.draw.describe import links_words
from topocomm.topology.draw.names import kind_words, named
from topocomm.topology.draw.svg.colours import KIND_COLOURS, OTHER_COLOURS
from topocomm.topology.model import Device, Link, Topology

_SHAPES = {"gpu": "box", "cpu": "box", "nic": "component", "switch": "hexagon", "numa": "folder", "host": "tab"}
_THIN, _THICK = 1.0, 8.0
"""Least and greatest width of an edge in points."""


def render(topology: Topology) -> str:
    """Return the graph as a DOT file that ends in a newline.

    The two directions of a connection are one edge, labelled with both rates where they differ.
    """
    lines = [
        f"// {_printable(topology.name, ' ')} ({_printable(topology.source, ' ')})",
        f"graph {_quoted(topology.name)} {{",
        '  graph [fontname="sans-serif", compound=true, newrank=true];',
        '  node [fontname="sans-serif", fontsize=11, style=filled, fillcolor=white];',
        '  edge [fontname="sans-serif", fontsize=9];',
    ]
    hosts: dict[str, list[Device]] = {}
    for device in topology.devices:
        hosts.setdefault(device.host, []).append(device)
    for index, (host, devices) in enumerate(hosts.items()):
        lines += [f"  subgraph cluster_{index} {{", f"    label={_quoted(host)};"]
        numas: dict[int | str | None, list[Device]] = {}
        for device in devices:
            numas.setdefault(device.numa, []).append(device)
        lines += [f"    {_node(device)}" for device in numas.pop(None, [])]
        for place, (numa, own) in enumerate(numas.items()):
            lines.append(f"    subgraph cluster_{index}_{place} {{")
            lines.append(f"      label={_quoted(f'NUMA {numa}')}; style=dashed;")
            lines += [f"      {_node(device)}" for device in own]
            lines.append("    }")
        lines.append("  }")
    lines += [f"  {line}" for line in _edges(topology.links)]
    return "\n".join([*lines, "}", ""])


def _node(device: Device) -> str:
    facts = [device.bus_id, device.cpu_affinity and f"CPUs {device.cpu_affinity}"]
    label = "\n".join(filter(None, (named(device), *facts)))
    return f"{_quoted(device.id)} [label={_quoted(label)}, shape={_SHAPES[device.kind]}];"


def _edges(links: Iterable[Link]) -> list[str]:
    connections: dict[tuple[str, str], list[Link]] = {}
    for link in links:
        key = (link.dst, link.src) if (link.dst, link.src) in connections else (link.src, link.dst)
        connections.setdefault(key, []).append(link)
    lines = []
    for (a, b), own in connections.items():
        forth = sum(link.gb_per_s or 0.0 for link in own if link.src == a)
        back = sum(link.gb_per_s or 0.0 for link in own if link.src == b)
        rates = " / ".join(dict.fromkeys("?" if not rate else f"{rate:.4g}" for rate in (forth, back or forth)))
        lanes = f" x{own[0].lanes}" if own[0].lanes and own[0].lanes > 1 else ""
        most = max(forth, back)  # an edge has 1 point up to 16 GB/s, about 1 more for every factor of four
        width = min(max(_THIN, 1.4 * log2(most / 8)), _THICK) if most > 0 else _THIN
        colour = KIND_COLOURS.get(own[0].kind, OTHER_COLOURS)[0]
        lines.append(
            f"{_quoted(a)} -- {_quoted(b)} [label={_quoted(f'{kind_words(own[0].kind)}{lanes}, {rates} GB/s')}, "
            f'penwidth={width:.1f}, color="{colour}", tooltip={_quoted(links_words(own))}];'
        )
    return lines


def _quoted(text: str) -> str:
    """Return a DOT string, line breaks escaped."""
    lines = (_printable(line, "?").replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n"))
    return '"' + "\\n".join(lines) + '"'


def _printable(text: str, instead: str) -> str:
    return "".join(c if c.isprintable() else instead for c in text)
