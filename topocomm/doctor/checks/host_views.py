"""A topology as one view per host, for the checks of machines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from topocomm.doctor.finding import Finding, Level
from topocomm.topology.model import Device, Link, Topology

FABRICS = ("nvlink", "xgmi")
"""Link kinds between GPUs, direct or by their own switch."""


@dataclass(frozen=True)
class Host:
    """One host with endpoints.

    Attributes:
        name: Its name.
        alone: Whether the topology has no other host.
        gpus: Its GPUs, in file order.
        nics: Its NICs, in file order.
        kinds: Kinds of all its devices by id.
        cores: Number of CPU endpoints.
        links: Links that start on it, within the host and to the network.
        codes: Codes by pair of device ids, both ways; pairs without a code are absent.
        facts: Facts of the source about this host beyond devices, links and pairs.
    """

    name: str
    alone: bool
    gpus: tuple[Device, ...]
    nics: tuple[Device, ...]
    kinds: Mapping[str, str]
    cores: int
    links: tuple[Link, ...]
    codes: Mapping[tuple[str, str], str]
    facts: Mapping[str, Any]

    def finding(self, level: Level, check: str, text: str, remedy: str = "") -> Finding:
        """Make a finding that names the host if there are several."""
        return Finding(level, check, text if self.alone else f"{self.name}: {text}", remedy)

    def local(self, device_id: str) -> str:
        """Return a device's id without the host: GPU1 for `h0/GPU1`."""
        return device_id.removeprefix(f"{self.name}/")

    def lanes(self) -> dict[str, int]:
        """Return NVLink or xGMI lanes by GPU with such links; a link of unknown width counts as one."""
        gpus = {gpu.id for gpu in self.gpus}
        found: dict[str, int] = {}
        for link in self.links:
            if link.kind in FABRICS and link.src in gpus:
                found[link.src] = found.get(link.src, 0) + (link.lanes or 1)
        return found


@lru_cache(maxsize=1)
def hosts_of(topology: Topology) -> tuple[Host, ...]:
    """Return the hosts with endpoints in order of first appearance; cached for the checks of one topology."""
    names = topology.hosts
    host_by_id = {device.id: device.host for device in topology.devices}
    devices: dict[str, list[Device]] = {name: [] for name in names}
    links: dict[str, list[Link]] = {name: [] for name in names}
    codes: dict[str, dict[tuple[str, str], str]] = {name: {} for name in names}
    for device in topology.devices:
        if device.host in devices:
            devices[device.host].append(device)
    for link in topology.links:
        if (own := host_by_id[link.src]) in links:
            links[own].append(link)
    for pair in topology.pairs:
        own = host_by_id.get(pair.a, "")
        if pair.code is not None and own in codes and own == host_by_id.get(pair.b):
            codes[own][pair.a, pair.b] = codes[own][pair.b, pair.a] = pair.code
    return tuple(
        Host(
            name,
            len(names) == 1,
            tuple(d for d in devices[name] if d.kind == "gpu"),
            tuple(d for d in devices[name] if d.kind == "nic"),
            {d.id: d.kind for d in devices[name]},
            sum(d.kind == "cpu" for d in devices[name]),
            tuple(links[name]),
            codes[name],
            _facts(topology, name),
        )
        for name in names
    )


def number_of(device_id: str) -> int | None:
    """Return the number in the name of a GPU: 3 for `GPU3`; None without one."""
    found = re.fullmatch(r"GPU(\d{1,6})", device_id)
    return int(found[1]) if found else None


def some(names: list[str], limit: int = 4) -> str:
    """Return the first names as a phrase, and the number of the others."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a natural sort key: node2 before node10."""
    parts = re.findall(r"\d+|\D+", name)
    digits = [part.lstrip("0") if part.isdecimal() else None for part in parts]
    return [(False, 0, part) if own is None else (True, len(own), own) for part, own in zip(parts, digits, strict=True)]


def _facts(topology: Topology, host: str) -> Mapping[str, Any]:
    """Return the facts of one host; a cluster of several inputs keeps them by host."""
    if len(topology.hosts) == 1:
        return topology.facts
    own = topology.facts.get(host)
    return own if isinstance(own, dict) else {}
