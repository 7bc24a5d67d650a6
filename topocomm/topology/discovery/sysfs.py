"""A host without GPUs from Linux's sysfs: physical cores, NUMA nodes, NICs, and the order of cores by hwloc.

Every physical core that this process may use is one `cpu` endpoint. The tree of files is a parameter, so that tests can
read the copy of any machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from topocomm.topology.inference.cpu_lists import Core, cpu_ranges, cpus_of
from topocomm.topology.inference.pci_tree import Leaf, core_graph, natural
from topocomm.topology.links import PCIE_LANE_GB_PER_S
from topocomm.topology.merge.cluster import NETWORK
from topocomm.topology.model import Device, Topology

_BUS_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


class Nic(NamedTuple):
    """One network port as sysfs shows it; unknown facts are None."""

    name: str
    numa: int | None
    bus_id: str | None
    port_gb_per_s: float | None
    pcie_gb_per_s: float | None


def cpu_host(sysfs: Path, *, host: str, usable: Collection[int]) -> Topology:
    """Return a host's usable online cores, NUMA nodes and NICs."""
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
    threads_of: dict[Core, list[int]] = {}
    for cpu in cpus:
        threads_of.setdefault(_siblings(sysfs, cpu, _CORE) | {cpu}, []).append(cpu)
    nodes = list(numas)
    homes = [node_of.get(threads[0]) for threads in threads_of.values()]  # of cores, in the order of their first CPU
    cores = [
        Device(f"cpu{i}", "cpu", host, numa=node, cpu_affinity=cpu_ranges(threads))
        for i, (node, threads) in enumerate(zip(homes, threads_of.values(), strict=True))
    ]
    leaves = []
    for nic in nics:
        device = Device(nic.name, "nic", host, nic.name, nic.numa, bus_id=nic.bus_id)
        places = frozenset((nodes.index(nic.numa),)) if nic.numa in numas else frozenset[int]()
        leaves.append(Leaf(device, (), nic.pcie_gb_per_s, places))
    ports = {nic.name: nic.port_gb_per_s for nic in nics}
    hub, links = core_graph(map(nodes.index, homes), tuple(numas.values()), leaves, ports)
    devices = (*cores, *numas.values(), *hub, *(leaf.device for leaf in leaves), *([NETWORK] if nics else []))
    return Topology(name=host, source="sysfs", devices=devices, links=links)


def find_nics(sysfs: Path) -> Iterator[Nic]:
    """Yield ports of hardware, by name; an InfiniBand device replaces the network interfaces on it."""
    devices_with_port: set[str] = set()
    for kind in ("infiniband", "net"):
        for port in entries(sysfs / "class" / kind):
            device = port / "device"
            if not device.exists():  # loopback, bridges, bonds, containers' pairs
                continue
            path = os.path.realpath(device)
            bus_ids = _BUS_ID.findall(path)
            bus_id = bus_ids[-1] if bus_ids else None
            key = bus_id or path
            if kind == "net" and key in devices_with_port:
                continue
            devices_with_port.add(key)
            pci = Path(path[: path.rindex(bus_id) + len(bus_id)]) if bus_id else Path(path)
            lane = PCIE_LANE_GB_PER_S.get(number_in(pci / "current_link_speed") or 0.0)
            width = number_in(pci / "current_link_width")
            rate = lane * width if lane and width and width > 0 else None
            yield Nic(port.name, numa_of(pci), bus_id, _port_gb_per_s(port, kind), rate)


def _port_gb_per_s(port: Path, kind: str) -> float | None:
    if kind == "net":
        mb_per_s = number_in(port / "speed")  # Mb/s; -1 or an error where the port is down or virtual
        return mb_per_s / 8000 if mb_per_s and mb_per_s > 0 else None
    rates = [rate for entry in entries(port / "ports") if (rate := number_in(entry / "rate"))]  # "400 Gb/sec (4X NDR)"
    return max(rates) / 8 if rates else None


def nodes_of_cpus(sysfs: Path) -> dict[int, int]:
    """Return the NUMA node of each CPU; empty where the kernel has no NUMA."""
    nodes = {}
    for folder in entries(sysfs / "devices/system/node"):
        if re.fullmatch(r"node\d+", folder.name):
            for cpu in numbers_in(folder / "cpulist"):
                nodes[cpu] = int(folder.name[4:])
    return nodes


def numbers_in(path: Path) -> set[int]:
    """Return the CPUs of the list in a file; empty where there is none."""
    return cpus_of(text_in(path))


def number_in(path: Path) -> float | None:
    """Return the number at the start of a file, 16 of `16.0 GT/s PCIe`; None where there is none."""
    match = re.match(r"-?\d+(?:\.\d+)?", text_in(path))
    return float(match.group()) if match else None


def numa_of(device: Path) -> int | None:
    """Return the NUMA node of a device; None for the -1 of those without one."""
    numa = number_in(device / "numa_node")
    return None if numa is None or numa < 0 else int(numa)


def text_in(path: Path) -> str:
    """Return the text of a file, stripped; empty where it cannot be read."""
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:  # absent, or the driver answers EINVAL
        return ""


def entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, `mlx5_2` before `mlx5_10`."""
    try:
        return sorted(folder.iterdir(), key=lambda entry: natural(entry.name))
    except OSError:
        return []


def sysfs_cores(sysfs: Path, usable: Collection[int]) -> list[list[Core]]:
    """Return the cores of a live host by package, in hwloc's order; none where sysfs lacks them or a CPU is not usable.

    hwloc does not number CPUs that a container or a batch system withholds. They cannot be told from CPUs outside the
    binding of this process.
    """
    online = numbers_in(sysfs / "devices/system/cpu/online")
    if not online or not online <= set(usable):
        return []
    cores = {cpu: _siblings(sysfs, cpu, _CORE) & online for cpu in online}
    if not all(cores.values()):
        return []
    objects = _hwloc_objects(sysfs, online)

    def place(core: Core) -> tuple[int, ...]:
        """The path down hwloc's tree: the lowest CPU of each object around the core, the largest first, and its own."""
        around = sorted((cpus for cpus in objects[min(core)] if cpus > core), key=len, reverse=True)
        return (*map(min, around), min(core))

    in_order = sorted(set(cores.values()), key=place)
    owned = [(_siblings(sysfs, min(core), _PACKAGE) & online, core) for core in in_order]
    packages = [(package, [core for _, core in own]) for package, own in groupby(owned, key=lambda both: both[0])]
    is_whole = all(package == frozenset().union(*own) for package, own in packages)
    return [own for _, own in packages] if is_whole else []


_CORE = ("core_cpus_list", "thread_siblings_list")
_PACKAGE = ("package_cpus_list", "core_siblings_list")
"""Names of files of `cpuN/topology`, since Linux 5.4 and before."""


def _siblings(sysfs: Path, cpu: int, names: Iterable[str]) -> Core:
    folder = sysfs / f"devices/system/cpu/cpu{cpu}/topology"
    return next((frozenset(cpus) for name in names if (cpus := numbers_in(folder / name))), frozenset())


def _hwloc_objects(sysfs: Path, online: Collection[int]) -> dict[int, set[Core]]:
    """By CPU, the CPU sets of hwloc's objects that contain it: packages, dies, clusters, NUMA nodes and caches."""
    nodes = [numbers_in(node / "cpulist") for node in entries(sysfs / "devices/system/node")]
    objects: dict[int, set[Core]] = {}
    for cpu in online:
        folder = sysfs / f"devices/system/cpu/cpu{cpu}"
        lists = [*(folder / "topology").glob("*_cpus_list"), *(folder / "topology").glob("*_siblings_list")]
        lists += (folder / "cache").glob("index*/shared_cpu_list")
        sets = [cpus_of(text_in(path)) for path in lists] + [node for node in nodes if cpu in node]
        objects[cpu] = {frozenset(cpus & set(online)) for cpus in sets if cpu in cpus}
    return objects
