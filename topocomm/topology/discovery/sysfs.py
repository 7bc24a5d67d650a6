"""A host without GPU tools, from Linux's sysfs: physical cores, NUMA nodes, NICs.

Every physical core that this process may use is one `cpu` endpoint. The tree of files is a parameter, so that
any machine's copy can be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import combinations, groupby
from pathlib import Path
from typing import NamedTuple

from topocomm.topology.inference.cpu_lists import Core, cpu_ranges, cpus_of
from topocomm.topology.links import both_ways
from topocomm.topology.merge.cluster import NETWORK
from topocomm.topology.model import Device, Link, Topology

LANE_GB_PER_S = {2.5: 0.25, 5.0: 0.5, 8.0: 1.0, 16.0: 2.0, 32.0: 4.0, 64.0: 7.5}
"""Nominal PCIe rate of one lane by GT/s (PCI Express base specification, generations 1 to 6)."""

_BUS_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


class Nic(NamedTuple):
    """One network port as sysfs shows it; None is what sysfs does not say."""

    name: str
    numa: int | None
    bus_id: str | None
    port_gb_per_s: float | None
    pcie_gb_per_s: float | None


def cpu_host(sysfs: Path, *, host: str, usable: Collection[int]) -> Topology:
    """The host's cores, NUMA nodes and NICs.

    Args:
        sysfs: Root of the tree, `/sys` on a live machine.
        host: Name of the host.
        usable: CPU numbers that this process may run on; offline ones among them are left out.
    """
    online = numbers_in(sysfs / "devices/system/cpu/online")
    cpus = sorted((set(usable) & online) or set(usable))
    node_of = nodes_of_cpus(sysfs)
    nics = list(find_nics(sysfs))
    numas: dict[int | None, Device] = {}
    for node in sorted({node_of.get(cpu) for cpu in cpus}, key=lambda n: (n is None, n)):
        numas[node] = Device(f"numa{node}" if node is not None else "numa", "numa", host, numa=node)
    for nic in nics:  # a NIC can sit on a node whose cores this process may not use
        if nic.numa is not None and nic.numa in set(node_of.values()) and nic.numa not in numas:
            numas[nic.numa] = Device(f"numa{nic.numa}", "numa", host, numa=nic.numa)
    cores: list[Device] = []
    links: list[Link] = []
    for threads in _cores(sysfs, cpus):
        node = node_of.get(threads[0])
        cores.append(Device(f"cpu{len(cores)}", "cpu", host, numa=node, cpu_affinity=cpu_ranges(threads)))
        links += both_ways(cores[-1].id, numas[node].id, "shared-memory")
    for a, b in combinations(numas.values(), 2):
        links += both_ways(a.id, b.id, "smp")
    devices = [*cores, *numas.values()]
    devices += _attach(nics, host, numas, links)
    return Topology(name=host, source="sysfs", devices=tuple(devices), links=tuple(links))


def _attach(nics: list[Nic], host: str, numas: dict[int | None, Device], links: list[Link]) -> list[Device]:
    """NICs on their NUMA node and on the network; where the node is unknown, on a hub between all nodes."""
    devices: list[Device] = []
    lost = [nic for nic in nics if nic.numa not in numas]
    hub = next(iter(numas.values())).id
    if lost and len(numas) > 1:
        hub = "host"
        devices.append(Device(hub, "host", host, name="place of NICs without a NUMA node"))
        for numa in numas.values():
            links += both_ways(numa.id, hub, "smp")
    for nic in nics:
        parent = numas[nic.numa].id if nic.numa in numas else hub
        devices.append(Device(nic.name, "nic", host, nic.name, nic.numa, bus_id=nic.bus_id))
        links += both_ways(parent, nic.name, "pcie", gb_per_s=nic.pcie_gb_per_s)
        links += both_ways(nic.name, NETWORK.id, "network", gb_per_s=nic.port_gb_per_s)
    return [*devices, NETWORK] if nics else devices


def find_nics(sysfs: Path) -> Iterator[Nic]:
    """Ports with hardware below them, by name; an InfiniBand device stands for the network interfaces on it."""
    seen: set[str] = set()
    for kind in ("infiniband", "net"):
        for port in entries(sysfs / "class" / kind):
            device = port / "device"
            if not device.exists():  # loopback, bridges, bonds, containers' pairs
                continue
            path = os.path.realpath(device)
            bus_ids = _BUS_ID.findall(path)
            bus_id = bus_ids[-1] if bus_ids else None
            key = bus_id or path
            if kind == "net" and key in seen:
                continue
            seen.add(key)
            pci = Path(path[: path.rindex(bus_id) + len(bus_id)]) if bus_id else Path(path)
            numa = number_in(pci / "numa_node")
            speed = _port_gb_per_s(port, kind)
            yield Nic(port.name, None if numa is None or numa < 0 else int(numa), bus_id, speed, _pcie_gb_per_s(pci))


def _port_gb_per_s(port: Path, kind: str) -> float | None:
    if kind == "net":
        mb_per_s = number_in(port / "speed")  # Mb/s; -1 or an error where the port is down or virtual
        return mb_per_s / 8000 if mb_per_s and mb_per_s > 0 else None
    rates = [rate for entry in entries(port / "ports") if (rate := number_in(entry / "rate"))]  # "400 Gb/sec (4X NDR)"
    return max(rates) / 8 if rates else None


def _pcie_gb_per_s(pci: Path) -> float | None:
    rate, width = number_in(pci / "current_link_speed"), number_in(pci / "current_link_width")
    lane = LANE_GB_PER_S.get(rate or 0.0)
    return lane * width if lane and width and width > 0 else None


def _cores(sysfs: Path, cpus: list[int]) -> list[list[int]]:
    """Usable CPUs by physical core, in order of their first CPU."""
    cores: dict[frozenset[int], list[int]] = {}
    for cpu in cpus:
        folder = sysfs / f"devices/system/cpu/cpu{cpu}/topology"
        siblings = numbers_in(folder / "core_cpus_list") or numbers_in(folder / "thread_siblings_list")
        cores.setdefault(frozenset(siblings | {cpu}), []).append(cpu)
    return list(cores.values())


def nodes_of_cpus(sysfs: Path) -> dict[int, int]:
    """NUMA node by CPU; empty where the kernel has no NUMA. Nodes of memory alone name no CPU."""
    found = {}
    for folder in entries(sysfs / "devices/system/node"):
        if re.fullmatch(r"node\d+", folder.name):
            for cpu in numbers_in(folder / "cpulist"):
                found[cpu] = int(folder.name[4:])
    return found


def numbers_in(path: Path) -> set[int]:
    """The CPU list in a file; empty where the file is absent or no list."""
    return cpus_of(text_in(path))


def number_in(path: Path) -> float | None:
    """The number that a file starts with: `16.0 GT/s PCIe` is 16; None where the file is absent or says no number."""
    match = re.match(r"-?\d+(?:\.\d+)?", text_in(path))
    return float(match.group()) if match else None


def text_in(path: Path) -> str:
    """What a file holds, stripped; empty where it cannot be read."""
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:  # absent, or the driver answers EINVAL
        return ""


def entries(folder: Path) -> list[Path]:
    """What is in a folder, `mlx5_2` before `mlx5_10`."""

    def natural(path: Path) -> list[tuple[bool, int, str]]:
        return [
            (part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.findall(r"\d+|\D+", path.name)
        ]

    try:
        return sorted(folder.iterdir(), key=natural)
    except OSError:
        return []


def sysfs_cores(sysfs: Path, usable: Collection[int]) -> list[list[Core]]:
    """The cores by package of a live host; none where sysfs does not say, or where not all CPUs are to be used.

    hwloc leaves out what a container or a batch system withholds and numbers the rest. What it leaves out cannot be
    known from the CPUs that a process may use: those it may only have been bound to.

    Args:
        sysfs: Root of sysfs.
        usable: CPUs that this process may run on.
    """
    online = numbers_in(sysfs / "devices/system/cpu/online")
    if not online or not online <= set(usable):
        return []
    cores = {cpu: _siblings(sysfs, cpu, _CORE) & online for cpu in online}
    if not all(cores.values()):
        return []
    around = _around(sysfs, online)
    placed = sorted(set(cores.values()), key=lambda core: _place(core, around[min(core)]))
    owned = [(_siblings(sysfs, min(core), _PACKAGE) & online, core) for core in placed]
    found = [(package, [core for _, core in own]) for package, own in groupby(owned, key=lambda both: both[0])]
    whole = all(package == frozenset().union(*own) for package, own in found)
    return [own for _, own in found] if whole else []


_CORE = ("core_cpus_list", "thread_siblings_list")
_PACKAGE = ("package_cpus_list", "core_siblings_list")
"""Names of a file of `cpuN/topology`, now and before Linux 5.4."""


def _siblings(sysfs: Path, cpu: int, names: Iterable[str]) -> Core:
    folder = sysfs / f"devices/system/cpu/cpu{cpu}/topology"
    return next((frozenset(found) for name in names if (found := numbers_in(folder / name))), frozenset())


def _around(sysfs: Path, online: Collection[int]) -> dict[int, set[Core]]:
    """By CPU the sets of CPUs that hwloc makes an object of: packages, dies, clusters, NUMA nodes and caches."""
    nodes = [numbers_in(node / "cpulist") for node in entries(sysfs / "devices/system/node")]
    found: dict[int, set[Core]] = {cpu: set() for cpu in online}
    for cpu in online:
        folder = sysfs / f"devices/system/cpu/cpu{cpu}"
        lists = [*(folder / "topology").glob("*_cpus_list"), *(folder / "topology").glob("*_siblings_list")]
        lists += (folder / "cache").glob("index*/shared_cpu_list")
        sets = [cpus_of(text_in(path)) for path in lists] + [node for node in nodes if cpu in node]
        found[cpu] = {frozenset(one & set(online)) for one in sets if cpu in one}
    return found


def _place(core: Core, around: Collection[Core]) -> tuple[int, ...]:
    """The lowest CPU of all that holds the core, from the largest in, and its own: the way down hwloc's tree."""
    return (*(min(one) for one in sorted(around, key=len, reverse=True) if one > core), min(core))
