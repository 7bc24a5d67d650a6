"""What sits on each host of a topology, and which hosts are alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from topocomm.topology.draw.device_tree import FABRICS
from topocomm.topology.model import Device, Link, Topology


class Host(NamedTuple):
    """One host: its devices, the links between them, and the links from them to what is outside."""

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    outward: tuple[Link, ...]
    shared: tuple[Device, ...] = ()
    """Switches of the GPU fabric that this host has in common with others."""


def split_hosts(topology: Topology) -> list[Host]:
    """The hosts that have endpoints, in order; every host of the devices where none has any."""
    names = topology.hosts or tuple(dict.fromkeys(d.host for d in topology.devices))
    devices: dict[str, list[Device]] = {name: [] for name in names}
    links: dict[str, list[Link]] = {name: [] for name in names}
    outward: dict[str, list[Link]] = {name: [] for name in names}
    home: dict[str, str] = {}
    for device in topology.devices:
        home[device.id] = device.host
        if device.host in devices:
            devices[device.host].append(device)
    for link in topology.links:
        host = home[link.src]
        if host in links:
            (links if home[link.dst] == host else outward)[host].append(link)
    found = []
    for name in names:
        ways = dict.fromkeys(link.dst for link in outward[name] if link.kind in FABRICS)
        shared = tuple(topology.by_id[end] for end in ways if topology.by_id[end].kind == "switch")
        found.append(Host(name, tuple(devices[name]), tuple(links[name]), tuple(outward[name]), shared))
    return found


def alike(hosts: Sequence[Host]) -> list[list[Host]]:
    """The hosts in groups that have the same devices, figures and ways outside, but for the host's name in the ids."""
    groups: dict[tuple[object, ...], list[Host]] = {}
    for host in hosts:
        groups.setdefault(_shape(host), []).append(host)
    return list(groups.values())


def _shape(host: Host) -> tuple[object, ...]:
    short = {device.id: local(device.id, host.name) for device in host.devices}
    devices = tuple((short[d.id], d.kind, *d[3:6]) for d in host.devices)
    links = tuple((short[link.src], short[link.dst], *link[2:]) for link in host.links)
    outward = tuple((short[link.src], *link[1:]) for link in host.outward)
    return devices, links, outward


def local(name: str, host: str) -> str:
    """A device's id without its host's name before it."""
    return name.removeprefix(f"{host}/")
