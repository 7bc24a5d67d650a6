"""A topology as the XML that NCCL reads through NCCL_TOPO_FILE, and RCCL likewise.

The file holds processors, PCIe switches, GPUs, NVLinks and NICs. Unknown attributes are left out between GPUs and
processors, where NCCL reads them from the machine; above NICs, where it reads nothing, they are empty. Limits:

- One host of at most 256 elements. NCCL has no host bridges, so NODE becomes PHB; rates between processors are those of
  its own table.
- GB/s of a PCIe link that no speed and width gives is not written. An NVLink rate that differs from the one of `sm` is
  in the attribute `gb_per_s`, which NCCL ignores.
- Bus ids are those of the machine, or virtual machine, of the topology; on another NCCL does not find its GPUs. Bridges
  without bus id get `ffff:ff:01.0` and on, as in the files of clouds.
- NICs have the name of their port, GPUs the driver's number (`dev`) where a source gives it.

Every rank reads the file, fills in what is absent between its own GPU and the processor (`ncclTopoGetXmlFromSys`,
`ncclTopoGetXmlFromCpu` in `src/graph/xml.cc`), keeps this path and all network ports (`ncclTopoTrimXml`), and the parts
of all ranks become one file (`ncclTopoFuseXml`), in which elements are the same only if all attributes are equal
(`xmlFindNode`). Attributes that are absent above a port are an error (`ncclTopoAddPci`, `ncclTopoAddCpu`), or make the
element appear twice. Empty texts are allowed and not filled in.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from typing import NoReturn
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

from topocomm.errors import TopologyError
from topocomm.topology.catalog.simulated_systems import SIMULATED
from topocomm.topology.draw.device_tree import shared_cpus
from topocomm.topology.inference.gpu_vendor import is_amd
from topocomm.topology.inference.host_tree import group_words
from topocomm.topology.inference.nccl_paths import ADAPTER, PORT, is_port
from topocomm.topology.links import KINDS, kind_of
from topocomm.topology.model import Device, Link, Topology
from topocomm.topology.readers.nccl.xml.nccl_xml_fabric import HIDDEN, NPU_CLASS, NVSWITCH_CLASS, RATE
from topocomm.topology.readers.nccl.xml.nccl_xml_values import BRIDGE_IDS, IDS, bus_key, cpu_mask, pcie_attributes

MAX_ELEMENTS = 256
"""NCCL_TOPO_XML_MAX_NODES; NCCL refuses a longer file."""

_FABRICS = ("nvlink", "xgmi")
_CLASS = {"nvlink": "0x030200", "xgmi": "0x038000"}
"""PCI class of a GPU by what links it."""
_CAPTURE = (
    "give a dump that has it: NCCL_TOPO_DUMP_FILE=FILE of a run with NCCL_DEBUG=INFO, or `lstopo --of xml`, "
    "instead of `nvidia-smi topo -m`"
)
_INVENT = "a catalogue system has none: --invent-bus-ids makes some up, for simulation in NCCL"
_HIP_ARCH = "38911"
"""RCCL's value for the features of all Instinct GPUs, which a simulation reads from the file."""
_LINK = ("link_speed", "link_width")
"""Attributes that `ncclTopoAddPci` reads; empty ones mean Gen3 and 16 lanes."""
_MODEL = ("arch", "vendor", "familyid", "modelid")
"""Attributes that `ncclTopoAddCpu` reads; between unknown processors there is no limit (`ncclTopoGetInterCpuBw`)."""


def render(topology: Topology) -> str:
    """Return the file of one host with GPUs, their bus ids, and PCIe links up to a NUMA node.

    `readers.nccl.xml.nccl_xml` reads it back with equal pairs and GB/s.

    Raises:
        TopologyError: Several hosts, no GPU, or a device without a required fact; says which and how to get it.
    """
    return _Writer(topology).text()


class _Writer:
    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.devices = topology.by_id
        self.gpus = [d for d in topology.devices if d.kind == "gpu"]
        self._check()
        self.near: dict[str, list[Link]] = defaultdict(list)
        self.fabric: dict[str, list[Link]] = defaultdict(list)
        for link in topology.links:
            (self.fabric if link.kind in (*_FABRICS, "c2c") else self.near)[link.src].append(link)
        taken = {bus_key(d.bus_id) for d in topology.devices if d.bus_id}
        self.written: set[str] = set()
        bridges = (f"ffff:{255 - number // 256:02x}:{number % 256:02x}.0" for number in count(1))
        self.free_ids = (bus_id for bus_id in bridges if bus_key(bus_id) not in taken)
        """Made-up bus ids of bridges."""
        self.amd = is_amd(topology)
        self.simulated = topology.facts.get(SIMULATED) is True
        physical = topology.facts.get("net_physical")
        known = topology.facts.get("net_names")
        names = set(known if isinstance(known, list) else ()) - set(physical if isinstance(physical, list) else ())
        self.virtual = [d for d in topology.devices if d.kind == "nic" and not d.bus_id and d.id in names]

    def fail(self, message: str) -> NoReturn:
        raise TopologyError(f"topology {self.topology.name!r}: {message}")

    def _check(self) -> None:
        hosts = dict.fromkeys(gpu.host for gpu in self.gpus)
        if not hosts:
            self.fail(f"no GPU; {_CAPTURE}")
        if len(hosts) != 1:
            remedy = f"; {_INVENT}, of one host" if self.topology.source == "catalogue" else ""
            self.fail(f"GPUs on {len(hosts)} hosts; NCCL_TOPO_FILE describes the GPUs of one host{remedy}")
        lacking = [gpu.id for gpu in self.gpus if not gpu.bus_id]
        if lacking:
            remedy = _INVENT if self.topology.source == "catalogue" else _CAPTURE
            self.fail(f"no bus id of {group_words(lacking)}, by which NCCL finds its GPUs in the file; {remedy}")
        for device in self.topology.devices:
            if device.kind == "nic" and " " not in (device.name or " ") and re.search(r"[\"'<>&]", device.name or ""):
                self.fail(f"the NIC name {device.name or device.id!r} holds a character that NCCL's XML cannot")

    def text(self) -> str:
        """Return head and elements."""
        cpus = [self._cpu(number, root) for number, root in self._roots()]
        system = _element("system", {"version": "2" if self.amd else "1"}, cpus)
        unplaced = [gpu.id for gpu in self.gpus if gpu.id not in self.written]
        if unplaced:
            self.fail(f"{group_words(unplaced)}: no PCIe link leads to a NUMA node; {_CAPTURE}")
        empty = _complete(system)
        elements = sum(1 for _ in system.iter())
        if elements > MAX_ELEMENTS:
            self.fail(f"{elements} elements in its XML; NCCL reads at most {MAX_ELEMENTS}")
        ET.indent(system)
        lines = ET.tostring(system, "unicode").replace(" />", "/>")  # NCCL's parser does not take the blank
        return "\n".join([*self._head(empty), lines, ""])

    def _head(self, empty: list[str]) -> list[str]:
        trays = self.topology.facts.get("trays")
        of = f", one of {trays} hosts" if isinstance(trays, int) and self.simulated else ""
        lines = [f"{_plain(self.topology.name)}{of}, written by topocomm; for NCCL_TOPO_FILE."]
        if not self.simulated:
            lines.append("NCCL adds ranks, and what is absent on the way from GPUs to processors.")
        if empty:
            lines += ["Not known, so empty:", *(f"- {words}" for words in empty)]
        unplaced = [d.id for d in self.topology.devices if d.kind == "nic" and d.id not in self.written]
        if unplaced:
            words = f"{group_words(unplaced)}, whose place on PCI is not known; NCCL finds NICs itself"
            lines.append(f"Left out: {_plain(words)}.")
        if self.simulated:
            lines.append("Bus ids are made up: for simulation in NCCL, not for a job.")
        else:
            lines.append("Bus ids must be those that the machine, or virtual machine, shows.")
        return ["<!--", *(f"  {line}" for line in lines), "-->"]

    def _roots(self) -> list[tuple[int, Device]]:
        """NUMA nodes with their numbers; -1 (NCCL's 'unknown') for a single root without a number."""
        host = self.gpus[0].host
        numas = [d for d in self.topology.devices if d.kind == "numa" and d.host == host]
        if not numas:
            above = {src for src, links in self.near.items() if any(x.kind not in ("smp", "network") for x in links)}
            tops = [d for d in self.topology.devices if d.kind == "switch" and d.host == host and d.id in above]
            tops.sort(key=lambda d: "host bridge" not in (d.name or ""))
            return [(-1, tops[0])] if tops else []
        nameless = [d.id for d in numas if not isinstance(d.numa, int)]
        if nameless and len(numas) > 1:
            self.fail(f"NUMA node {group_words(nameless)} has no single number; {_CAPTURE}")
        return [(d.numa if isinstance(d.numa, int) else -1, d) for d in numas]

    def _cpu(self, number: int, root: Device) -> Element:
        """One processor, with the source's attributes in the words of NCCL's XML; -1 there is node 0 here."""
        known = self.topology.facts.get("cpus")
        cpus = [cpu for cpu in known if isinstance(cpu, dict)] if isinstance(known, list) else []
        names = {str(number), hex(number)} | ({"-1"} if number == 0 else set())
        stated: dict[str, str] = next((cpu for cpu in cpus if cpu.get("numaid") in names), {})
        values = {"numaid": str(number)}
        shared = root.cpu_affinity or shared_cpus(gpu for gpu in self.gpus if gpu.numa == number)
        mask = (root.cpu_affinity and stated.get("affinity")) or cpu_mask(shared)
        if mask:
            values["affinity"] = mask
        vendor = self.topology.facts.get("cpu_vendor")
        if not stated.get("arch") and vendor in ("GenuineIntel", "AuthenticAMD"):
            values |= {"arch": "x86_64", "vendor": str(vendor)}
        values |= {key: stated[key] for key in _MODEL if stated.get(key)}
        virtual = [d for d in self.virtual if not self.near[d.id] or root.id in {x.dst for x in self.near[d.id]}]
        is_top = root.kind == "numa" or "host bridge" in (root.name or "")
        inside = list(self._below(root)) if is_top else [self._node(root, None)]
        if virtual:
            self.written |= {d.id for d in virtual}
            inside.append(_element("nic", {}, map(self._net, virtual)))
        return _element("cpu", values, inside)

    def _below(self, parent: Device) -> Iterator[Element]:
        """Elements below a device; host bridges are passed through, as in NCCL."""
        self.written.add(parent.id)
        for link in self.near[parent.id]:
            child = self.devices[link.dst]
            is_pci = child.kind in ("gpu", "nic", "switch") and link.kind not in ("smp", "network")
            if child.id in self.written or not is_pci:
                continue
            if "host bridge" in (child.name or ""):
                yield from self._below(child)
            elif child.kind == "nic" and not child.bus_id:
                continue  # written without a PCI device, or left out
            elif child.kind == "switch" and not self._leads_to_ends(child, {parent.id}):
                continue
            elif parent.name == "PCIe switches" and child.kind != "switch":
                yield _element("pci", {"busid": next(self.free_ids), "class": "0x060400"}, [self._node(child, link)])
            else:
                yield self._node(child, link)

    def _leads_to_ends(self, switch: Device, above: set[str]) -> bool:
        """Whether a GPU or a NIC that can be written is below a switch."""
        for link in self.near[switch.id]:
            child = self.devices[link.dst]
            if child.id in above or link.kind == "smp":
                continue
            if child.kind == "gpu" or (is_port(child) and child.bus_id):
                return True
            if child.kind == "switch" and self._leads_to_ends(child, {*above, switch.id}):
                return True
        return False

    def _node(self, device: Device, link: Link | None) -> Element:
        self.written.add(device.id)
        inside: list[Element] = []
        if device.kind == "gpu":
            inside = [self._gpu(device)]
        elif device.kind == "nic":
            if device.name and " " not in device.name:  # else it is the model, by which NCCL finds no port
                inside = [_element("nic", {}, [self._net(device)])]
        elif device.name == ADAPTER:
            ports = [self.devices[link.dst] for link in self.near[device.id] if is_port(self.devices[link.dst])]
            self.written |= {port.id for port in ports}
            if named := [self._net(port) for port in ports if port.name]:
                inside = [_element("nic", {}, named)]
        else:
            inside = list(self._below(device))
        if device.kind == "switch" and not device.bus_id and device.name != ADAPTER:
            bus_id = next(self.free_ids)
        elif device.bus_id:
            bus_id = bus_key(device.bus_id)  # NCCL compares the text with its own: four digits, lower case
        else:
            self.fail(f"no bus id of {device.id}, which hangs off a PCIe switch; {_CAPTURE}")
        classes = {"gpu": _CLASS["xgmi" if self.amd else "nvlink"], "nic": "0x020000"}
        own = "0x020000" if device.name == ADAPTER else classes.get(device.kind, "0x060400")
        values = {"busid": bus_id, "class": own}
        if own == "0x060400":
            values |= self._source_attributes(BRIDGE_IDS, device, IDS)
        speed = self._source_attributes("slow_ports", device, _LINK) or (pcie_attributes(link.gb_per_s) if link else {})
        return _element("pci", values | speed, inside)

    def _source_attributes(self, fact: str, device: Device, keys: tuple[str, ...]) -> dict[str, str]:
        known = self.topology.facts.get(fact)
        stated = known.get(device.bus_id) if isinstance(known, dict) else None
        return {key: str(stated[key]) for key in keys if key in stated} if isinstance(stated, dict) else {}

    def _gpu(self, gpu: Device) -> Element:
        facts = (("dev", "gpu_dev"), ("rank", "gpu_rank"), ("sm", "sm"), ("sm", "compute_units"), ("gcn", "gcn"))
        values = {key: str(value) for key, fact in facts if (value := self._fact(fact, gpu.id)) is not None}
        if self.simulated:
            values |= {"gdr": "1"} | ({"arch": _HIP_ARCH} if self.amd else {})
        elif "dev" in values:
            values.pop("rank", None)  # of one job; it numbers the GPUs where no driver's number does
        inside = [element for link in self.fabric[gpu.id] if (element := self._link(gpu, link)) is not None]
        loops = self.topology.facts.get("self_nvlinks")
        count = loops.get(gpu.id) if isinstance(loops, dict) else None
        if isinstance(count, int):  # keeps NCCL from looking for others, as clouds want it
            own = {"target": bus_key(gpu.bus_id or ""), "count": str(count), "tclass": _CLASS["nvlink"]}
            inside.append(Element("nvlink", own))
        return _element("gpu", values, inside)

    def _fact(self, key: str, device: str) -> int | str | None:
        """A fact of one device, which may be one for all."""
        value = self.topology.facts.get(key)
        value = value.get(device) if isinstance(value, dict) else value
        return value if isinstance(value, int | str) else None

    def _link(self, gpu: Device, link: Link) -> Element | None:
        end = self.devices[link.dst]
        if link.kind == "c2c":
            lanes = link.lanes or 1
            if link.gb_per_s is None:
                return None
            return Element("c2c", {"bw": f"{link.gb_per_s * 1000 / lanes:.0f}", "count": str(lanes)})
        if link.lanes is None:
            self.fail(f"the number of links between {link.src} and {link.dst} is not known; {_CAPTURE}")
        peer = _CLASS[link.kind]
        target_class = peer if end.kind == "gpu" else f"{NVSWITCH_CLASS}00" if end.kind == "switch" else NPU_CLASS
        target = bus_key(end.bus_id) if end.bus_id and end.kind in ("gpu", "switch") else HIDDEN
        values = {"target": target, "count": str(link.lanes), "tclass": target_class}
        sm, gcn = self._fact("sm", gpu.id), self._fact("gcn", gpu.id)
        row = KINDS.get(kind_of(link.kind, sm if isinstance(sm, int) else None, None if gcn is None else str(gcn)))
        if link.gb_per_s is not None and (row is None or row.gb_per_s * link.lanes != link.gb_per_s):
            values[RATE] = f"{link.gb_per_s / link.lanes:.12f}".rstrip("0").rstrip(".")
        return Element(link.kind, values)

    def _net(self, nic: Device) -> Element:
        values = {"name": (nic.name or nic.id).removeprefix(f"{PORT} ")}
        if self.simulated and (dev := self._fact("net_dev", nic.id)) is not None:
            values |= {"dev": str(dev), "gdr": "1"}
        speed = self._fact("net_speed_mbps", nic.id)
        if isinstance(speed, int) and speed > 0:
            values["speed"] = str(speed)
        return Element("net", values)


def _plain(text: str) -> str:
    """The text without what XML comments forbid."""
    return re.sub(r"-(?=-)|[<>]", "", text)


def _element(tag: str, attributes: dict[str, str], children: Iterable[Element]) -> Element:
    element = Element(tag, attributes)
    element.extend(children)
    return element


def _complete(system: Element) -> list[str]:
    """Add required attributes that no source gave, as empty texts, and return them in words."""
    empty: dict[str, None] = {}
    for element in system.iter():
        tags = {below.tag for below in element.iter()}
        has_nic = "net" in tags or any(below.get("class", "").startswith("0x02") for below in element.iter())
        if element.tag == "pci" and has_nic:
            speeds = "speed and width of links, for which NCCL takes Gen3 and 16 lanes"
            required = [(_LINK, speeds), (IDS, "ids of PCIe switches")]
        elif element.tag == "cpu" and ("net" in tags or "gpu" not in tags):
            limit = (
                "of which NCCL takes the oldest" if element.get("vendor") else "between which NCCL then sees no limit"
            )
            required = [(_MODEL, f"models of processors, {limit}"), (("affinity",), "CPU masks")]
        else:
            continue
        for keys, words in required if {"net", "gpu"} <= tags else required[:1]:
            if absent := [key for key in keys if key not in element.attrib]:
                empty[words] = None
                element.attrib |= dict.fromkeys(absent, "")
    return list(empty)
