"""Devices and links in words, for who points at them: every figure with where it is from."""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.topology.draw.names import label
from topocomm.topology.links import KINDS, assume
from topocomm.topology.model import Device, FigureSource, Link
from topocomm.topology.network.in_network import IN_NETWORK

_KINDS = {
    "nvlink": "NVLink",
    "xgmi": "xGMI",
    "xgmi-cpu": "xGMI to the CPU",
    "pcie": "PCIe",
    "smp": "between NUMA nodes (SMP)",
    "network": "network",
    "shared-memory": "shared memory",
}
_SOURCES: dict[FigureSource | None, str] = {
    "read": "read from the source",
    "table": "nominal",
    "measured": "measured",
    "assumed": "assumed",
    None: "source not named",
}
_WHAT = {
    "gpu": "GPU",
    "cpu": "cores",
    "nic": "network card",
    "switch": "switch",
    "numa": "NUMA node",
    "host": "host",
}


def kind_words(kind: str) -> str:
    """A kind of link as people call it."""
    return _KINDS.get(kind, kind)


def device_words(device: Device) -> str:
    """The device in a few lines; what is not known is not there."""
    lines = [f"{label(device)}: {_WHAT[device.kind]} {device.id}"]
    if device.name and device.name != device.id:
        lines.append(device.name)
    place = [f"host {device.host}"]
    if device.numa is not None and device.kind != "numa":
        place.append(f"NUMA node {device.numa}")
    lines.append(", ".join(place))
    if device.cpu_affinity:
        lines.append(f"CPUs {device.cpu_affinity}")
    if device.bus_id:
        lines.append(f"bus id {device.bus_id}")
    if device.in_network:
        lines.append(f"can reduce by itself: {IN_NETWORK[device.in_network].name}")
    return "\n".join(lines)


def devices_words(devices: Sequence[Device]) -> str:
    """One device, or several drawn as one."""
    if len(devices) == 1:
        return device_words(devices[0])
    shown = [", ".join(filter(None, (d.id, d.name, d.cpu_affinity and f"CPUs {d.cpu_affinity}"))) for d in devices[:12]]
    more = [f"and {len(devices) - len(shown)} more"] if len(devices) > len(shown) else []
    return "\n".join([f"{len(devices)} drawn as one:", *shown, *more])


def links_words(links: Sequence[Link]) -> str:
    """One connection, or several drawn as one; the second direction only where it differs.

    Args:
        links: Directed links, at least one.
    """
    lines: list[str] = []
    told: dict[tuple[str, str], Link] = {}
    for link in links:
        back = told.get((link.dst, link.src))
        if back is not None and back[2:] == link[2:]:
            continue
        told[link.src, link.dst] = link
    for index, link in enumerate(told.values()):
        if index == 4:
            lines.append(f"and {len(told) - index} more")
            break
        both = any(other.src == link.dst and other.dst == link.src for other in links)
        same = both and (link.dst, link.src) not in told
        arrow = "to and from" if same else "to"
        lines += [f"{link.src} {arrow} {link.dst}: {kind_words(link.kind)}", _rate(link, same), _latency(link)]
        if link.gap_us is not None:
            lines.append(f"at least {link.gap_us:.6g} us between two messages")
    return "\n".join(lines)


def _rate(link: Link, both: bool) -> str:
    lanes = f"{link.lanes} links, " if link.lanes and link.lanes > 1 else "1 link, " if link.lanes else ""
    if link.gb_per_s is None:
        row = assume(link.kind)
        return f"{lanes}GB/s not known (plans assume {row.gb_per_s:.6g} a link: {row.source})"
    table = link.gb_per_s_source in ("table", "assumed")
    why = next(
        (
            row.source
            for row in KINDS.values()
            if table and row.family == link.kind and abs(row.gb_per_s * (link.lanes or 1) - link.gb_per_s) < 1e-6
        ),
        "",
    )
    words = _SOURCES[link.gb_per_s_source] + (f": {why}" if why else "")
    return f"{lanes}{link.gb_per_s:.6g} GB/s{' each way' * both} ({words})"


def _latency(link: Link) -> str:
    if link.latency_us is None:
        return f"latency not known (plans assume {assume(link.kind).latency_us:.6g} us)"
    return f"latency {link.latency_us:.6g} us ({_SOURCES[link.latency_us_source]})"
