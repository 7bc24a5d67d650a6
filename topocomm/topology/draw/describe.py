"""Devices and links in words, every figure with its source."""

from __future__ import annotations

import re
from collections.abc import Sequence

from topocomm.topology.draw.names import kind_words, label, rate_words
from topocomm.topology.links import KINDS, assume
from topocomm.topology.model import Device, FigureSource, Link
from topocomm.topology.network.in_network import IN_NETWORK

_SOURCES: dict[FigureSource | None, str] = {
    "read": "read from the source",
    "table": "nominal",
    "measured": "measured",
    "assumed": "assumed",
    None: "source not named",
}
_DEVICE_KINDS = {
    "gpu": "GPU",
    "cpu": "cores",
    "nic": "network card",
    "switch": "switch",
    "numa": "NUMA node",
    "host": "host",
}
MEMORY_GB = {
    "H200": 141,
    "B200": 180,
    "GH200": 96,
    "L40S?": 48,
    "L4": 24,
    "A10G?": 24,
    "A40": 48,
    "RTX A6000": 48,
    "RTX 6000 Ada Generation": 48,
    "RTX 3090(?: Ti)?": 24,
    "RTX 4090": 24,
    "RTX 5090": 32,
    "T4": 16,
    "MI100": 32,
    "MI210": 64,
    "MI250X?": 64,
    "MI300X": 192,
    "MI325X": 256,
    "MI350X": 288,
    "MI355X": 288,
}
"""Memory of GPUs whose names do not tell it (as `H100 80GB HBM3` does), in GB, from datasheets; MI250: of one die."""
MOST_DEVICES, MOST_LINKS = 12, 4
"""Devices and links that are described; more are counted."""


def device_words(device: Device) -> str:
    """Return the known facts of a device, a few lines."""
    lines = [f"{label(device)}: {_DEVICE_KINDS[device.kind]} {device.id}"]
    if device.name and device.name != device.id:
        memory = memory_gb(device.name)
        lines.append(device.name + (f", {memory} GB of memory (datasheet)" if memory else ""))
    numa = device.numa is not None and device.kind != "numa"
    lines.append(f"host {device.host}" + (f", NUMA node {device.numa}" if numa else ""))
    if device.cpu_affinity:
        lines.append(f"CPUs {device.cpu_affinity}")
    if device.bus_id:
        lines.append(f"PCI address {device.bus_id}")
    if device.in_network:
        lines.append(f"can reduce by itself: {IN_NETWORK[device.in_network].name}")
    return "\n".join(lines)


def memory_gb(name: str) -> int | None:
    """Return the memory of a GPU of this name by its datasheet, None where the name says it or is not known."""
    return next((size for model, size in MEMORY_GB.items() if re.search(rf"\b{model}\b", name)), None)


def devices_words(devices: Sequence[Device]) -> str:
    """Describe one device, or several that are drawn as one."""
    if len(devices) == 1:
        return device_words(devices[0])
    shown = devices[:MOST_DEVICES]
    lines = [", ".join(filter(None, (d.id, d.name, d.cpu_affinity and f"CPUs {d.cpu_affinity}"))) for d in shown]
    more = [f"and {len(devices) - len(shown)} more"] if len(devices) > len(shown) else []
    return "\n".join([f"{len(devices)} drawn as one:", *lines, *more])


def links_words(links: Sequence[Link]) -> str:
    """Describe one or several connections; a second direction only where its figures differ from the first."""
    described: dict[tuple[str, str], Link] = {}
    for link in links:
        back = described.get((link.dst, link.src))
        if back is None or back[2:] != link[2:]:
            described[link.src, link.dst] = link
    directions = {link[:2] for link in links}
    lines: list[str] = []
    for link in list(described.values())[:MOST_LINKS]:
        both = (link.dst, link.src) in directions and (link.dst, link.src) not in described
        arrow = "to and from" if both else "to"
        lines += [f"{link.src} {arrow} {link.dst}: {kind_words(link.kind)}", _rate(link, both)]
        if link.latency_us is None:
            lines.append(f"latency not known (plans assume {assume(link.kind).latency_us:.6g} us)")
        else:
            lines.append(f"latency {link.latency_us:.6g} us ({_SOURCES[link.latency_us_source]})")
        if link.gap_us is not None:
            lines.append(f"at least {link.gap_us:.6g} us between two messages")
    if len(described) > MOST_LINKS:
        lines.append(f"and {len(described) - MOST_LINKS} more")
    return "\n".join(lines)


def _rate(link: Link, both: bool) -> str:
    lanes = f"{link.lanes} links, " if link.lanes and link.lanes > 1 else "1 link, " if link.lanes else ""
    if link.gb_per_s is None:
        row = assume(link.kind)
        return f"{lanes}GB/s not known (plans assume {rate_words(row.gb_per_s)} a link: {row.source})"
    words = _SOURCES[link.gb_per_s_source]
    if link.gb_per_s_source in ("table", "assumed"):
        for row in KINDS.values():
            if row.family == link.kind and abs(row.gb_per_s * (link.lanes or 1) - link.gb_per_s) < 1e-6:
                words += f": {row.source}"
                break
    return f"{lanes}{rate_words(link.gb_per_s)}{' each way' * both} ({words})"
