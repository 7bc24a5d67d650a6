"""A topology as one view per host, for the checks of machines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from topocomm.doctor.finding import Finding, Level
from topocomm.topology.draw.device_tree import FABRICS, local, split_hosts
from topocomm.topology.model import Device, Link, Topology


@dataclass(frozen=True)
class Host:
    """One host with endpoints.

    Attributes:
        alone: Whether the topology has no other host.
        gpus, nics: In file order.
        kinds: Kinds of all its devices by id.
        links: Links that start on it, within the host and then to the network.
        codes: Codes by pair of device ids, both ways; pairs without a code are absent.
        facts: Facts of the source about this host beyond devices, links and pairs.
    """

    name: str
    alone: bool
    gpus: tuple[Device, ...]
    nics: tuple[Device, ...]
    kinds: Mapping[str, str]
    links: tuple[Link, ...]
    codes: Mapping[tuple[str, str], str]
    facts: Mapping[str, Any]

    def finding(self, level: Level, check: str, text: str, remedy: str = "") -> Finding:
        """Make a finding that names the host if there are several."""
        return Finding(level, check, text if self.alone else f"{self.name}: {text}", remedy)

    def local(self, device_id: str) -> str:
        """Return a device's id without the host: GPU1 for `h0/GPU1`."""
        return local(device_id, self.name)

    def lanes(self) -> dict[str, int]:
        """Return NVLink or xGMI lanes by GPU with such links; a link of unknown width counts as one."""
        gpus = {gpu.id for gpu in self.gpus}
        lanes: dict[str, int] = {}
        for link in self.links:
            if link.kind in FABRICS and link.src in gpus:
                lanes[link.src] = lanes.get(link.src, 0) + (link.lanes or 1)
        return lanes


@lru_cache(maxsize=1)
def hosts_of(topology: Topology) -> tuple[Host, ...]:
    """Return the hosts with endpoints in order of first appearance; cached for the checks of one topology."""
    alone = len(topology.hosts) == 1
    facts = {topology.hosts[0]: topology.facts} if alone else topology.facts  # a cluster keeps them by host
    hosts = []
    for host in split_hosts(topology) if topology.hosts else ():
        gpus, nics = (tuple(d for d in host.devices if d.kind == kind) for kind in ("gpu", "nic"))
        codes = {ends: p.code for p in host.pairs if p.code is not None for ends in ((p.a, p.b), (p.b, p.a))}
        own = facts.get(host.name)
        hosts.append(
            Host(
                host.name,
                alone,
                gpus,
                nics,
                kinds={d.id: d.kind for d in host.devices},
                links=(*host.links, *host.outward),
                codes=codes,
                facts=own if isinstance(own, Mapping) else {},
            )
        )
    return tuple(hosts)


def number_of(device_id: str) -> int | None:
    """Return the number in the name of a GPU: 3 for `GPU3`; None without one."""
    match = re.fullmatch(r"GPU(\d{1,6})", device_id)
    return int(match[1]) if match else None
