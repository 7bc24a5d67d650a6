"""From the elements of NCCL's topology XML to devices and PCIe links: a tree per NUMA node, joined in the host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, count

from topocomm.topology.inference.cpu_lists import mask_ranges
from topocomm.topology.inference.nccl_paths import ADAPTER, PORT
from topocomm.topology.links import PATH_LATENCY_US, both_ways
from topocomm.topology.model import Device, DeviceKind, Link
from topocomm.topology.readers.nccl.xml.nccl_xml_devices import Notes, Pci, System
from topocomm.topology.readers.nccl.xml.nccl_xml_values import gt_per_s, pcie_rate, smp_kind, whole
from topocomm.topology.readers.plain.safe_xml import Element

_PIX_US, _PXB_US, _PHB_US, _SYS_US = (PATH_LATENCY_US[code] / 2 for code in ("PIX", "PXB", "PHB", "SYS"))

_SLOW_GT_PER_S, _FAST_GT_PER_S = 5.0, 16.0
"""No switch has a Gen2 port upwards and Gen4 devices below: the speed of such a virtual port says nothing."""

_LINK = ("link_speed", "link_width")
_MAX_MBPS = 3_200_000
"""Mb/s; no port is faster, and some plugins write kb/s."""


def net_gb_per_s(net: Element, file: str, notes: Notes) -> float | None:
    """Return GB/s of a network port; None where the file does not say it."""
    mbps = whole(net, "speed", file, least=-(2**31), most=2**62)
    if mbps is None or mbps <= 0:
        return None
    if mbps > _MAX_MBPS:
        notes.add("a speed beyond any port; read as kb/s instead of Mb/s", net, net.attributes.get("name", "net"))
        mbps //= 1000
    return mbps / 8000 if mbps <= _MAX_MBPS else None


class Graph:
    """The devices and PCIe links of a system, whose processors get the ids of their devices.

    Latencies depend on the level at which two devices meet alone (`links.PATH_LATENCY_US`), as in `host_tree`.
    """

    def __init__(self, system: System, file: str, notes: Notes) -> None:
        self.system, self.file, self.notes = system, file, notes
        self.devices: list[Device] = []
        self.links: list[Link] = []
        self._several = len({cpu.host for cpu in system.cpus}) > 1
        self._taken = {gpu.id for gpu in system.gpus} | {nic.id for nic in system.nics}
        self._ends: dict[int, list[str]] = {}
        self._ports = {nic.id: net_gb_per_s(nic.element, file, notes) if nic.is_net else None for nic in system.nics}
        self._depth: dict[int, int] = {}
        self._numbers: dict[str, Iterator[int]] = defaultdict(count)
        self.slow_ports: dict[str, dict[str, str]] = {}
        """Speed and width as the file has them, by bus id, where another rate is used."""
        self._name_numas()
        self._put_ends()
        for cpu in system.cpus:
            for child in cpu.children:
                self._measure(child)
                self._plant(child, cpu.device, _PHB_US)
        for nic in system.nics:  # without PCI device; one under several processors has no place, so it gets no link
            if nic.pci is None and len(nic.cpus) == 1:
                self.links += both_ways(nic.id, nic.cpus[0].device, "pcie", latency_us=_PHB_US)
        self._put_hosts()

    def _name_numas(self) -> None:
        for cpu in self.system.cpus:
            plain = "numa" if cpu.numa is None else f"numa{cpu.numa}"
            wanted = f"{cpu.host}/{plain}" if self._several else plain
            name = self._free(chain([wanted], (f"{wanted}.{n}" for n in count(1))))
            if name != wanted:
                self.notes.add("more than one <cpu> has this number; they stay apart", cpu.element, wanted)
            cpu.device = name

    def _free(self, names: Iterable[str]) -> str:
        """Return the first name that no device has yet."""
        free = next(name for name in names if name not in self._taken)
        self._taken.add(free)
        return free

    def _put_ends(self) -> None:
        masks = {id(cpu): int("".join(cpu.words or "0"), 16) for cpu in self.system.cpus}
        cpus = {cpu: mask_ranges(mask) for cpu, mask in masks.items()}
        for gpu in self.system.gpus:
            cpu = gpu.pci.cpu
            self.devices.append(Device(gpu.id, "gpu", cpu.host, None, cpu.numa, cpus[id(cpu)], gpu.pci.bus_id))
            self._ends.setdefault(id(gpu.pci), []).append(gpu.id)
        for nic in self.system.nics:
            numa = nic.cpus[0].numa if len(nic.cpus) == 1 else None
            bus_id = None if nic.pci is None else nic.pci.bus_id
            name = nic.element.attributes.get("name") if nic.is_net else None
            kind: DeviceKind = "nic"
            if nic.pci is not None and id(nic.pci) in self._ends:  # the first port stands for the adapter
                kind, name = "switch", f"{PORT} {name or nic.id}"
            self.devices.append(Device(nic.id, kind, nic.cpus[0].host, name, numa, None, bus_id))
            if nic.pci is not None:
                self._ends.setdefault(id(nic.pci), []).append(nic.id)
        for cpu in self.system.cpus:
            self.devices.append(Device(cpu.device, "numa", cpu.host, None, cpu.numa, cpus[id(cpu)]))

    def _measure(self, pci: Pci) -> int:
        """Return the number of switches above one another down to a GPU or NIC; -1 where none is below."""
        below = max((self._measure(child) for child in pci.children), default=-1)
        own = 0 if id(pci) in self._ends else -1
        self._depth[id(pci)] = own if below < 0 else below + 1
        return self._depth[id(pci)]

    def _plant(self, pci: Pci, parent: str, height_us: float) -> None:
        """Join a device and those below it to its parent, which is `height_us` above the leaves."""
        ends = self._ends.get(id(pci), [])
        depth = self._depth[id(pci)]
        if depth < 0:
            return
        if len(ends) == 1 and not depth:
            self._join(pci, ends[0], parent, height_us)
            return
        own_us = 0.0 if not depth else _PIX_US if depth == 1 else _PXB_US
        node = self._new("pcie", pci, "PCIe switch") if depth else self._new("adapter", pci, ADAPTER)
        self._join(pci, node, parent, height_us - own_us)
        for end in ends:
            self.links += both_ways(end, node, "network", gb_per_s=self._ports.get(end), latency_us=own_us)
        for child in pci.children:
            self._plant(child, node, own_us)

    def _new(self, prefix: str, pci: Pci, name: str) -> str:
        ident = self._free(f"{prefix}{number}" for number in self._numbers[prefix])
        self.devices.append(Device(ident, "switch", pci.cpu.host, name, pci.cpu.numa, None, pci.bus_id))
        return ident

    def _join(self, pci: Pci, node: str, parent: str, latency_us: float) -> None:
        """Add the link upwards; replace a speed or width that says nothing, with a warning."""
        attributes = pci.element.attributes
        gb_per_s, assumed = pcie_rate(attributes)
        if assumed:
            words = "link_speed or link_width says nothing; NCCL takes Gen3 and 16 lanes, assumed here too"
            self.notes.add(words, pci.element, pci.bus_id)
        speed = gt_per_s(attributes.get("link_speed"))
        below = [child.element.attributes for child in pci.children if self._depth[id(child)] >= 0]
        fastest = max((gt_per_s(child.get("link_speed")) or 0.0 for child in below), default=0.0)
        if speed is not None and speed <= _SLOW_GT_PER_S and fastest >= _FAST_GT_PER_S:
            slow = f"at most {_SLOW_GT_PER_S:.0f} GT/s above faster devices"
            self.notes.add(f"{slow}, as virtual ports say; assumed as fast as those", pci.element, pci.bus_id)
            self.slow_ports[pci.bus_id] = {key: attributes[key] for key in _LINK if key in attributes}
            rates = [rate for child in below if (rate := pcie_rate(child)[0]) is not None]
            gb_per_s = max(rates, default=None)
            assumed = True
        links = both_ways(node, parent, "pcie", gb_per_s=gb_per_s, latency_us=round(latency_us, 6))
        if assumed:
            links = links[0]._replace(gb_per_s_source="assumed"), links[1]._replace(gb_per_s_source="assumed")
        self.links += links

    def _put_hosts(self) -> None:
        for host in dict.fromkeys(cpu.host for cpu in self.system.cpus):
            cpus = [cpu for cpu in self.system.cpus if cpu.host == host]
            if len(cpus) == 1:
                continue
            name = self._free(f"{host}{'-root' * n}" for n in count())
            self.devices.append(Device(name, "host", host))
            for cpu in cpus:
                attributes = cpu.element.attributes
                keys = ("familyid", "modelid")
                models = [whole(cpu.element, key, self.file, least=-1) if attributes.get(key) else None for key in keys]
                kind = smp_kind(attributes.get("arch"), attributes.get("vendor"), *models)
                self.links += both_ways(cpu.device, name, kind, latency_us=round(_SYS_US - _PHB_US, 6))
