"""The codes of a host's pairs as a table in the form of `nvidia-smi topo -m`, which `--input` reads again."""

from __future__ import annotations

from topocomm.doctor.checks.host_views import Host, hosts_of
from topocomm.topology.draw.names import ranges
from topocomm.topology.model import Topology

MOST = 40
"""Columns of a table; no host of today has more GPUs and NICs together."""
MOST_TABLES = 8
NO_CODE = "?"


def pair_matrices(topology: Topology) -> list[str]:
    """A table per kind of host, as lines; hosts alike share one."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for host in hosts_of(topology):
        if host.gpus:
            alike.setdefault(tuple(_matrix(host)), []).append(host.name)
    lines: list[str] = []
    for own, names in list(alike.items())[:MOST_TABLES]:
        if len(topology.hosts) > 1:
            lines.append(f"{ranges(names)}:")
        lines += own
    if len(alike) > MOST_TABLES:
        lines.append(f"({len(alike) - MOST_TABLES} more kinds of hosts)")
    return lines


def _matrix(host: Host) -> list[str]:
    devices = [*host.gpus, *host.nics]
    shown = devices[:MOST]
    names = [host.local(device.id) for device in shown]
    numas = [("" if gpu.numa is None else str(gpu.numa)) for gpu in host.gpus]
    rows = [["", *names, *(["NUMA Affinity"] if any(numas) else [])]]
    for index, gpu in enumerate(host.gpus[:MOST]):
        codes = ["X" if gpu is other else host.codes.get((gpu.id, other.id), NO_CODE) for other in shown]
        rows.append([names[index], *codes, *([numas[index] or "N/A"] if any(numas) else [])])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(devices) > MOST:
        lines.append(f"({len(devices) - MOST} more GPUs and NICs)")
    named = ((host.local(nic.id), nic.name) for nic in host.nics)
    return lines + [f"{short}: {name}" for short, name in named if name and name != short]
