"""Which network cards are nearest to each endpoint, and which cores belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from topocomm.topology.draw.alike_hosts import Host
from topocomm.topology.model import Device, Pair, Topology

_ORDER = ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC")


class Place(NamedTuple):
    """One endpoint: its nearest NICs, the code between them (None where only NUMA numbers say so), and its cores."""

    device: Device
    nics: tuple[Device, ...]
    code: str | None
    cpus: str | None


def places(host: Host, stated: Mapping[tuple[str, str], Pair]) -> list[Place]:
    """The endpoints of one host in order.

    A NIC that no code and no NUMA number puts near an endpoint is not among its nearest, though it may be the only one.

    Args:
        host: The host.
        stated: What the source says of pairs, by (endpoint, NIC).
    """
    nics = [d for d in host.devices if d.kind == "nic"]
    kind = "gpu" if any(d.kind == "gpu" for d in host.devices) else "cpu"
    codes = {key: pair.code for key, pair in stated.items() if pair.code}
    if kind == "gpu" and nics and host.links:
        from topocomm.topology.inference import nccl_paths

        part = Topology(host.name, "", host.devices, host.links)
        for pair in nccl_paths.pairs(part, wording="nvidia-smi"):
            if pair.code and (pair.a, pair.b) not in stated:
                codes[pair.a, pair.b] = pair.code
    return [_place(device, nics, codes, host) for device in host.devices if device.kind == kind]


def _place(device: Device, nics: list[Device], codes: Mapping[tuple[str, str], str], host: Host) -> Place:
    own = {nic.id: codes[device.id, nic.id] for nic in nics if codes.get((device.id, nic.id)) in _ORDER}
    cpus = device.cpu_affinity or _cpus_of_numa(device, host)
    if own:
        best = min(own.values(), key=_ORDER.index)
        return Place(device, tuple(nic for nic in nics if own.get(nic.id) == best), best, cpus)
    same = tuple(nic for nic in nics if nic.numa is not None and nic.numa == device.numa)
    return Place(device, same, None, cpus)


def _cpus_of_numa(device: Device, host: Host) -> str | None:
    """The CPU list of the endpoint's NUMA node, where the node names it."""
    if device.numa is None:
        return None
    lists = {d.cpu_affinity for d in host.devices if d.kind == "numa" and d.numa == device.numa and d.cpu_affinity}
    return lists.pop() if len(lists) == 1 else None
