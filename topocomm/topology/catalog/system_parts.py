"""What the catalogue's machines are built of: GPUs and NICs on two sockets, direct links, NVSwitches, pair codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from topocomm.topology.inference.host_tree import PairKey
from topocomm.topology.links import KINDS, NVSWITCH_HOP_US, PATH_LATENCY_US, both_ways
from topocomm.topology.model import Device, InNetworkKind, Link, Pair

SOCKETS = 2
"""Of every machine here but those that say otherwise; a socket is one NUMA node."""


class Host(NamedTuple):
    """One host, what joins it to the network, and the speed of its ports."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    pairs: tuple[Pair, ...]
    port: str
    """Row of `links.KINDS` for a port of its NICs."""
    uplinks: tuple[Link, ...] = ()
    """GPU-NIC links that lead nowhere but to the network: part of a cluster only, because in one host they would
    count as bandwidth that no other GPU can use."""
    trays: int = 1
    """Hosts like this one that share its devices of the host name `network`: a rack with one NVLink domain."""
    taper: int = 1
    """Ports of a rail switch towards hosts for each towards the spine."""


def gpus_on_sockets(count: int, sockets: int = SOCKETS) -> list[Device]:
    """GPUs, as many on each socket."""
    return [Device(f"GPU{i}", "gpu", numa=i * sockets // count) for i in range(count)]


def nics_on_sockets(count: int, sockets: int = SOCKETS) -> list[Device]:
    """NICs, as many on each socket; one alone is on the first."""
    return [Device(f"NIC{i}", "nic", numa=i * sockets // count) for i in range(count)]


def coded(pairs: Mapping[PairKey, str], fabric: Iterable[Pair] = ()) -> tuple[Pair, ...]:
    """Pairs of the PCIe codes, those of the fabric in their place."""
    found = {pair: Pair(*pair, code, None, PATH_LATENCY_US[code], None, "assumed") for pair, code in pairs.items()}
    found.update({(pair.a, pair.b): pair for pair in fabric})
    return tuple(found.values())


def codes_by_socket(devices: Sequence[Device], near: str, own: str) -> dict[PairKey, str]:
    """Codes of GPU-GPU and GPU-NIC pairs: `own` between a GPU and its NIC, `near` on one socket, else SYS."""
    codes = {}
    for a, b in combinations(devices, 2):
        if a.kind == "gpu":
            mine = b.kind == "nic" and a.id[3:] == b.id[3:]
            codes[a.id, b.id] = own if mine else near if a.numa == b.numa else "SYS"
    return codes


def into_switch(gpus: Sequence[Device], switch: Device, kind: str, lanes: int) -> tuple[list[Link], list[Pair]]:
    """Links of GPUs into NVSwitches, folded into one device as NCCL does, and the pairs through it."""
    links: list[Link] = []
    for gpu in gpus:
        links += both_ways(gpu.id, switch.id, kind, lanes=lanes, latency_us=NVSWITCH_HOP_US)
    rate = KINDS[kind].gb_per_s * lanes
    pairs = [
        Pair(a.id, b.id, f"NV{lanes}", rate, 2 * NVSWITCH_HOP_US, "table", "assumed") for a, b in combinations(gpus, 2)
    ]
    return links, pairs


def nvswitch(in_network: InNetworkKind | None = None) -> Device:
    """The NVSwitches of one host."""
    return Device("nvswitch0", "switch", name="NVSwitch", in_network=in_network)


def direct(kind: str, code: str, counts: Mapping[tuple[int, int], int]) -> tuple[list[Link], list[Pair]]:
    """Links and pairs of GPUs that are joined one by one.

    Args:
        kind: Row of `links.KINDS`.
        code: Of the pairs; its `#` becomes the number of links.
        counts: Links by pair of GPU numbers.
    """
    links: list[Link] = []
    pairs = []
    for (i, j), lanes in counts.items():
        both = both_ways(f"GPU{i}", f"GPU{j}", kind, lanes=lanes)
        links += both
        a, b, figure = both[0].src, both[0].dst, both[0]
        pairs.append(Pair(a, b, code.replace("#", str(lanes)), figure.gb_per_s, figure.latency_us, "table", "assumed"))
    return links, pairs


def uplinks(gpus: Sequence[Device], nics: Sequence[Device], pcie: str, code: str = "PIX") -> tuple[Link, ...]:
    """The way of every GPU to its NIC; neighbours share one where there are more GPUs than NICs."""
    links: list[Link] = []
    for i, gpu in enumerate(gpus):
        nic = nics[i * len(nics) // len(gpus)]
        links += both_ways(gpu.id, nic.id, pcie, latency_us=PATH_LATENCY_US[code])
    return tuple(links)


def all_pairs(count: int, lanes: int = 1) -> dict[tuple[int, int], int]:
    """Every one of `count` GPUs linked to every other."""
    return dict.fromkeys(combinations(range(count), 2), lanes)


def full_mesh(count: int, kind: str, code: str, port: str, pcie: str, *, lanes: int = 1) -> Host:
    """GPUs on two sockets, each linked to each, each with a NIC behind its PCIe switch."""
    gpus, nics = gpus_on_sockets(count), nics_on_sockets(count)
    links, fabric = direct(kind, code, all_pairs(count, lanes))
    pairs = coded(codes_by_socket([*gpus, *nics], "NODE", "PIX"), fabric)
    return Host((*gpus, *nics), tuple(links), pairs, port, uplinks(gpus, nics, pcie))
