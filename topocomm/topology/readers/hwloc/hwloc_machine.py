"""From hwloc's objects to a Topology: GPUs and NICs in their PCI tree, or the cores where there is no GPU.

Facts name processors, PCIe bridges and GPUs in the words of NCCL's topology XML, so that it can be written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from topocomm.errors import TopologyError
from topocomm.topology.inference.cpu_lists import core_facts, cpus_of, mask_ranges
from topocomm.topology.inference.gpu_vendor import VENDOR
from topocomm.topology.inference.host_tree import group_words
from topocomm.topology.inference.pci_tree import Bridge, Leaf, check_size, core_graph, natural, pci_graph, pci_pairs
from topocomm.topology.merge.cluster import NETWORK
from topocomm.topology.model import Device, Link, Topology
from topocomm.topology.readers.hwloc.hwloc_devices import AMD, family, find_gpus, find_nics, number
from topocomm.topology.readers.hwloc.hwloc_links import GpuLinks, Matrix
from topocomm.topology.readers.hwloc.hwloc_objects import HwlocObject, bridges_above, find_places, home
from topocomm.topology.readers.nccl.xml.nccl_xml_values import BRIDGE_IDS, IDS

MAX_CORES = 4096
_ARCH = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "arm64", "arm64": "arm64", "ppc64": "ppc64"}
_ARCH |= {"ppc64le": "ppc64"}
_PAIR = re.compile(r"\[?([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\]?")
_OLD_FAMILIES = 15
"""Largest base family; the processor says the rest in a second field, which NCCL adds sixteenfold: 25 becomes 175."""


class Machine:
    """The host that a tree of hwloc's objects describes.

    `numbered` is False if the bits of CPU sets tell CPUs apart but are not their numbers.
    """

    def __init__(self, root: HwlocObject, name: str, *, matrices: Sequence[Matrix] = (), numbered: bool = True) -> None:
        self.root, self.name, self.matrices, self.numbered = root, name, matrices, numbered
        check_size(name, 0, 0, sum(o.type in ("NUMANode", "Package") for o in root.walk()))
        self.places = find_places(root)
        self.cores = [o for o in root.walk() if o.type == "Core"]
        if len(self.cores) > MAX_CORES:
            raise TopologyError(f"{name}: {len(self.cores)} cores in one host; expected at most {MAX_CORES}")
        numbers = [place.numa for place in self.places if place.numa is not None]
        if len(set(numbers)) < len(numbers):
            line = max(place.node.line for place in self.places if numbers.count(place.numa or 0) > 1)
            raise TopologyError(f"{name}:{line}: a NUMA node of this number is there twice; give one machine's output")
        self.numas = []
        for i, place in enumerate(self.places):
            ident, label = f"numa{place.numa}", None
            if place.numa is None:
                ident, label = f"numa-{i}" if len(self.places) > 1 else "numa", "NUMA node without a number"
            cpus = mask_ranges(place.node.cpuset) if numbered else None
            self.numas.append(Device(ident, "numa", name=label, numa=place.numa, cpu_affinity=cpus))
        self.gpus = find_gpus(root)
        self.nics, self.management = find_nics(root)
        check_size(name, len(self.gpus), len(self.nics))
        self.bridges: dict[int, Bridge] = {}

    def topology(self, source: str, facts: Mapping[str, Any], warnings: Sequence[str]) -> Topology:
        """Return the topology, with facts and warnings of the source beyond the tree."""
        near_cpu = {id(place.node): numa.id for place, numa in zip(self.places, self.numas, strict=True)}
        for above in self.root.walk():
            near = self._near(above) if above.cpuset and above.type not in ("PU", "Core", "Cache") else ()
            if len(near) == 1:
                near_cpu.setdefault(id(above), self.numas[next(iter(near))].id)
        fabric = GpuLinks(self.gpus, self.matrices, near_cpu)
        gpus = [self._leaf(gpu.holder, Device(gpu.id, "gpu", name=gpu.model)) for gpu in self.gpus]
        names = [next(iter((*nic.fabric_names, *nic.net_names)), None) for nic in self.nics]
        nics = [self._leaf(n.holder, Device(n.id, "nic", name=name)) for n, name in zip(self.nics, names, strict=True)]
        leaves = [*gpus, *nics]
        forwarding, links = pci_graph(leaves, self.numas)
        ends: list[Device] = []
        if not gpus:
            forwarding, ends, links = self._cpu_host(nics)
        base = PurePath(self.name).name
        lost = [leaf.device.id for leaf in leaves if len(leaf.places) != 1]
        unplaced = [f"{group_words(lost)}: the NUMA node is not known"] if lost else []
        return Topology(
            name=PurePath(self.name).stem,
            source=source,
            devices=(*ends, *(leaf.device for leaf in leaves), *self.numas, *forwarding, *fabric.devices),
            links=(*fabric.links, *links),
            pairs=pci_pairs(gpus, nics, fabric.pairs),
            warnings=(*warnings, *(f"{base}: {text}" for text in (*fabric.warnings, *unplaced))),
            facts={**facts, **self._facts(nics), **self._hardware(), **fabric.facts},
        )

    def _near(self, above: HwlocObject) -> frozenset[int]:
        """Return the NUMA nodes whose CPUs an object shares; none if it is at all of several: its place is unknown."""
        near = frozenset(i for i, place in enumerate(self.places) if place.node.cpuset & above.cpuset)
        return near if len(near) < len(self.places) or len(near) == 1 else frozenset()

    def _leaf(self, holder: HwlocObject, device: Device) -> Leaf:
        above = home(holder)
        near = self._near(above)
        if not above.cpuset and len(self.places) == 1:
            near = frozenset((0,))
        place = self.places[next(iter(near))] if len(near) == 1 else None
        device = device._replace(
            numa=place.numa if place else None,
            cpu_affinity=mask_ranges(above.cpuset) if near and self.numbered else None,
            bus_id=holder.bus_id,
        )
        bridges = [
            self.bridges.setdefault(id(above), Bridge(above.bus_id, above.gb_per_s)) for above in bridges_above(holder)
        ]
        return Leaf(device, tuple(bridges), holder.gb_per_s, near)

    def _cpu_host(self, nics: Sequence[Leaf]) -> tuple[tuple[Device, ...], list[Device], tuple[Link, ...]]:
        """Return cores as endpoints on NUMA nodes that all reach each other, as on a live host without a GPU."""
        cores: list[Device] = []
        known = [(core.cpuset, near) for core in self.cores if len(near := self._near(core)) == 1]
        homes: list[int] = []
        for cpuset, near in known or [(place.node.cpuset, frozenset((i,))) for i, place in enumerate(self.places)]:
            homes += near
            cpus = mask_ranges(cpuset) if self.numbered else None
            cores.append(Device(f"cpu{len(cores)}", "cpu", numa=self.numas[homes[-1]].numa, cpu_affinity=cpus))
        hub, links = core_graph(homes, self.numas, nics, {})
        return (*([NETWORK] if nics else []), *hub), cores, links

    def _facts(self, nics: Sequence[Leaf]) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        packages = [
            [o.cpuset for o in top.walk() if o.type == "Core"] for top in self.root.walk() if top.type == "Package"
        ]  # in hwloc's logical order
        if self.numbered and packages and all(packages) and sum(map(len, packages)) == len(self.cores):
            facts = core_facts([[cpus_of(mask_ranges(core)) for core in own] for own in packages])
        if self.places[0].numa is not None:
            facts["numa_nodes"] = len(self.places)
        names_by_gpu = [[d.name or "" for d in gpu.os_devices] for gpu in self.gpus]
        # `cuda3` becomes `cudaN`: the part that is the same on each GPU.
        kinds = {tuple(re.sub(r"\d+$", "N", n) if family(n) else n for n in own) for own in names_by_gpu}
        if len(kinds) == 1 and (kind := kinds.pop()):
            facts["os_devices_per_gpu"] = list(kind)
        names = sorted((name for nic in self.nics for name in nic.net_names), key=natural)
        if names:
            facts["net_names"] = names
            facts["nics_with_interface"] = names
        if nics:
            facts["nic_numa"] = {nic.device.id: nic.device.numa for nic in nics}
        if self.management:
            facts["management_ports"] = self.management
        latency = next((m for m in self.matrices if m.name == "NUMALatency"), None)
        if latency is not None:
            size = len(latency.objects)
            facts["numa_latency"] = [list(latency.values[i * size : (i + 1) * size]) for i in range(size)]
        return facts

    def _hardware(self) -> dict[str, Any]:
        """Return `cpus`, `bridge_ids`, `gpu_dev` (the driver's numbers) and the GPUs' vendor, each where it is said."""
        objects = list(self.root.walk())
        packages = [o for o in objects if o.type == "Package"]
        cpus = []
        for place in self.places:
            own = [package for package in packages if package.cpuset & place.node.cpuset] or packages
            words = _cpu({**self.root.infos, **(own[0].infos if own else {})})
            if place.numa is not None and words:
                cpus.append({"numaid": str(place.numa), **words})
        bridges = {o.bus_id: _ids(o.infos.get("pci_ids", "")) for o in objects if o.type == "PCIBridge" and o.bus_id}
        facts: dict[str, Any] = {"cpus": cpus, BRIDGE_IDS: {bus_id: ids for bus_id, ids in bridges.items() if ids}}
        for driver in ("nvml", "rsmi"):
            numbers = [[number(d.name) for d in gpu.os_devices if family(d.name) == driver] for gpu in self.gpus]
            if self.gpus and all(len(each) == 1 and len(each[0]) == 1 for each in numbers):
                facts["gpu_dev"] = {gpu.id: each[0][0] for gpu, each in zip(self.gpus, numbers, strict=True)}
        if any(gpu.holder.vendor == AMD or any(family(d.name) == "rsmi" for d in gpu.os_devices) for gpu in self.gpus):
            facts[VENDOR] = "AMD"
        return {key: value for key, value in facts.items() if value}


def _cpu(infos: dict[str, str]) -> dict[str, str]:
    """Return architecture, vendor and model; only processors with CPUID have a vendor of this name."""
    vendor = infos.get("CPUVendor")
    arch = _ARCH.get(infos.get("Architecture", ""), "x86_64" if vendor in ("GenuineIntel", "AuthenticAMD") else None)
    words = {} if arch is None else {"arch": arch}
    if arch != "x86_64" or not vendor:
        return words
    words["vendor"] = vendor
    numbers = [infos.get(key, "") for key in ("CPUFamilyNumber", "CPUModelNumber")]
    if all(re.fullmatch(r"\d{1,4}", text) for text in numbers):
        own, model = map(int, numbers)
        own = own if own < _OLD_FAMILIES else _OLD_FAMILIES + 16 * (own - _OLD_FAMILIES)
        words |= {"familyid": str(own), "modelid": str(model)}
    return words


def _ids(text: str) -> dict[str, str]:
    """Return the ids of device and subsystem in `[1000:c010] [1000:a096]`, or of the device in `1000:c010`."""
    parts = [part for pair in _PAIR.findall(text) for part in pair]
    return {key: f"0x{part.lower()}" for key, part in zip(IDS, parts, strict=False)}
