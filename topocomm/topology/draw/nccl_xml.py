"""A topology as the XML that NCCL reads through NCCL_TOPO_FILE, and RCCL likewise.

The file holds what NCCL plans with: processors, PCIe switches, GPUs, NVLinks, NICs. What a topology does not know is
left out, and NCCL looks it up on the machine: speed and width of PCIe links, `sm`, CPU masks and models, network ports
and their speeds, ranks. Limits:

- One host of at most 256 elements. NCCL knows no host bridges, so NODE becomes PHB; and no rates between processors
  but those of its own table.
- GB/s of a PCIe link that no speed and width gives is left out. An NVLink rate that `sm` does not tell stands in an
  attribute `gb_per_s`, which NCCL passes over; it has a table of its own.
- Bus ids are those of the machine, or virtual machine, that the topology is of; in another NCCL does not find its GPUs
  in the file. Bridges without bus id get `ffff:ff:01.0` and on, as in the files that clouds ship.
- NICs are called by the name of their port, and GPUs that are not called GPU0, GPU1, ... are numbered by NCCL.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NoReturn
from xml.sax.saxutils import escape

from topocomm.errors import TopologyError
from topocomm.topology.host_tree import group_words
from topocomm.topology.links import KINDS
from topocomm.topology.model import Device, Link, Topology
from topocomm.topology.nccl_paths import ADAPTER, PORT, is_port
from topocomm.topology.readers.nccl_xml_fabric import HIDDEN, NPU_CLASS, NVSWITCH_CLASS, RATE, kind_of
from topocomm.topology.readers.nccl_xml_values import bus_key, pcie_attributes

MAX_ELEMENTS = 256
"""NCCL_TOPO_XML_MAX_NODES: NCCL refuses a longer file."""

_QUOTE = '"'
_FABRICS = ("nvlink", "xgmi")
_CAPTURE = (
    "give a dump that has it: NCCL_TOPO_DUMP_FILE=FILE of a run with NCCL_DEBUG=INFO, or `lstopo --of xml`, "
    "instead of `nvidia-smi topo -m`"
)
_CPU_KEYS = ("arch", "vendor", "familyid", "modelid")
_HEAD = """<!--
  {name}, written by topocomm; for NCCL_TOPO_FILE.
  NCCL adds on the machine what is not said here: PCIe speeds, CPU masks, network ports, ranks.
  Bus ids must be those that the machine, or virtual machine, shows.
-->"""


def render(topology: Topology) -> str:
    """The file's text; `readers.nccl_xml` reads it back into the same pairs and GB/s.

    Args:
        topology: One host with GPUs, their bus ids, and PCIe links up to a NUMA node.

    Raises:
        TopologyError: Several hosts, no GPU, or a device without what the file needs; says which and how to get it.
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
        self.taken = {bus_key(d.bus_id) for d in topology.devices if d.bus_id}
        self.written: set[str] = set()
        self.invented = 0
        numbers = [re.fullmatch(r"GPU(\d+)", gpu.id.rsplit("/", 1)[-1]) for gpu in self.gpus]
        found = {gpu.id: match[1] for gpu, match in zip(self.gpus, numbers, strict=True) if match}
        self.dev = found if len(found) == len(self.gpus) else {}

    def fail(self, message: str) -> NoReturn:
        raise TopologyError(f"topology {self.topology.name!r}: {message}")

    def _check(self) -> None:
        hosts = dict.fromkeys(gpu.host for gpu in self.gpus)
        if not hosts:
            self.fail(f"no GPU; {_CAPTURE}")
        if len(hosts) != 1:
            self.fail(f"GPUs on {len(hosts)} hosts; NCCL_TOPO_FILE describes the GPUs of one host")
        lacking = [gpu.id for gpu in self.gpus if not gpu.bus_id]
        if lacking:
            self.fail(f"no bus id of {group_words(lacking)}, by which NCCL finds its GPUs in the file; {_CAPTURE}")
        for device in self.topology.devices:
            if device.kind == "nic" and re.search(r"[\"'<>&]", device.name or device.id):
                self.fail(f"the NIC name {device.name or device.id!r} holds a character that NCCL's XML cannot")

    def text(self) -> str:
        version = 2 if self._is_amd() else 1
        head = _HEAD.format(name=re.sub(r"-(?=-)|[<>]", "", self.topology.name))
        roots = self._roots()
        body = [line for number, root in roots for line in self._cpu(number, root)]
        lost = [gpu.id for gpu in self.gpus if gpu.id not in self.written]
        if lost:
            self.fail(f"{group_words(lost)}: no PCIe link leads to a NUMA node; {_CAPTURE}")
        lost = [d.id for d in self.topology.devices if d.kind == "nic" and d.id not in self.written]
        if lost:
            self.fail(f"{group_words(lost)}: no PCIe link leads from a GPU's NUMA nodes to it; {_CAPTURE}")
        elements = 1 + sum(line.lstrip().startswith("<") and "</" not in line for line in body)
        if elements > MAX_ELEMENTS:
            self.fail(f"{elements} elements in its XML; NCCL reads at most {MAX_ELEMENTS}")
        return "\n".join([head, f'<system version="{version}">', *body, "</system>"]) + "\n"

    def _is_amd(self) -> bool:
        return "gcn" in self.topology.facts or any(link.kind == "xgmi" for link in self.topology.links)

    def _roots(self) -> list[tuple[int, Device]]:
        """NUMA nodes with their numbers; -1, NCCL's 'not known', where a host has one root without a number."""
        host = self.gpus[0].host
        numas = [d for d in self.topology.devices if d.kind == "numa" and d.host == host]
        if not numas:
            tops = [d for d in self.topology.devices if d.kind == "switch" and d.host == host and self._is_pcie(d)]
            tops.sort(key=lambda d: "host bridge" not in (d.name or ""))
            return [(-1, tops[0])] if tops else []
        nameless = [d.id for d in numas if not isinstance(d.numa, int)]
        if nameless and len(numas) > 1:
            self.fail(f"NUMA node {group_words(nameless)} has no single number; {_CAPTURE}")
        return [(d.numa if isinstance(d.numa, int) else -1, d) for d in numas]

    def _is_pcie(self, device: Device) -> bool:
        return any(link.kind not in ("smp", "network") for link in self.near[device.id])

    def _given(self, number: int) -> dict[str, str]:
        """What the source says of a processor, in the words of NCCL's XML."""
        known = self.topology.facts.get("cpus")
        found = [cpu for cpu in known if isinstance(cpu, dict)] if isinstance(known, list) else []
        return next((cpu for cpu in found if cpu.get("numaid") == str(number)), {})

    def _cpu(self, number: int, root: Device) -> Iterator[str]:
        given = self._given(number)
        values = {"numaid": str(number)}
        if root.cpu_affinity and "affinity" in given:
            values["affinity"] = given["affinity"]
        values |= {key: given[key] for key in _CPU_KEYS if key in given}
        virtual = [
            d
            for d in self.topology.devices
            if d.kind == "nic" and not d.bus_id and (not self.near[d.id] or self._hangs_at(d, root))
        ]
        inside = list(self._below(root) if root.kind == "numa" else self._node(root, None, "    "))
        if virtual:
            self.written |= {d.id for d in virtual}
            inside += ["    <nic>", *(f"      {self._net(d)}" for d in virtual), "    </nic>"]
        yield f"  <cpu{_text(values)}>"
        yield from inside
        yield "  </cpu>"

    def _hangs_at(self, nic: Device, root: Device) -> bool:
        return any(link.dst == root.id for link in self.near[nic.id])

    def _below(self, parent: Device, indent: str = "    ") -> Iterator[str]:
        """What hangs off a device, downwards only; host bridges are passed through, as NCCL does."""
        self.written.add(parent.id)
        for link in self.near[parent.id]:
            child = self.devices[link.dst]
            if (
                child.id in self.written
                or child.kind not in ("gpu", "nic", "switch")
                or link.kind in ("smp", "network")
            ):
                continue
            if "host bridge" in (child.name or ""):
                yield from self._below(child, indent)
            elif child.kind == "nic" and not child.bus_id and parent.kind == "numa":
                continue  # written without a PCI device
            elif parent.name == "PCIe switches" and child.kind != "switch":
                yield f'{indent}<pci busid="{self._bridge_id()}" class="0x060400">'
                yield from self._node(child, link, indent + "  ")
                yield f"{indent}</pci>"
            else:
                yield from self._node(child, link, indent)

    def _node(self, device: Device, link: Link | None, indent: str) -> Iterator[str]:
        """One `<pci>` with what it holds; `link` leads to it."""
        self.written.add(device.id)
        inside = list(self._content(device, indent + "  "))
        if device.kind == "switch" and not device.bus_id and device.name != ADAPTER:
            bus_id = self._bridge_id()
        elif device.bus_id:
            bus_id = bus_key(device.bus_id)  # NCCL compares the text with its own: four digits, lower case
        else:
            self.fail(f"no bus id of {device.id}, which hangs off a PCIe switch; {_CAPTURE}")
        classes = {"gpu": "0x038000" if self._is_amd() else "0x030200", "nic": "0x020000"}
        own = "0x020000" if device.name == ADAPTER else classes.get(device.kind, "0x060400")
        values = {"busid": bus_id, "class": own, **(pcie_attributes(link.gb_per_s) if link else {})}
        if inside:
            yield f"{indent}<pci{_text(values)}>"
            yield from inside
            yield f"{indent}</pci>"
        else:
            yield f"{indent}<pci{_text(values)}/>"

    def _content(self, device: Device, indent: str) -> Iterator[str]:
        if device.kind == "gpu":
            yield from self._gpu(device, indent)
        elif device.kind == "nic":
            if device.name:
                yield from (f"{indent}<nic>", f"{indent}  {self._net(device)}", f"{indent}</nic>")
        elif device.name == ADAPTER:
            ports = [self.devices[link.dst] for link in self.near[device.id] if is_port(self.devices[link.dst])]
            self.written |= {port.id for port in ports}
            yield from (f"{indent}<nic>", *(f"{indent}  {self._net(port)}" for port in ports), f"{indent}</nic>")
        else:
            yield from self._below(device, indent)

    def _gpu(self, gpu: Device, indent: str) -> Iterator[str]:
        values = {"dev": self.dev[gpu.id]} if self.dev else {}
        for key, fact in (("sm", "sm"), ("sm", "compute_units"), ("gcn", "gcn")):
            if (value := self._fact(fact, gpu.id)) is not None:
                values[key] = str(value)
        inside = [line for link in self.fabric[gpu.id] for line in self._link(gpu, link)]
        if inside:
            yield f"{indent}<gpu{_text(values)}>"
            yield from (f"{indent}  {line}" for line in inside)
            yield f"{indent}</gpu>"
        else:
            yield f"{indent}<gpu{_text(values)}/>"

    def _fact(self, key: str, device: str) -> int | str | None:
        """A value of one device, where a fact is one for all or one for each."""
        value = self.topology.facts.get(key)
        value = value.get(device) if isinstance(value, dict) else value
        return value if isinstance(value, int | str) else None

    def _link(self, gpu: Device, link: Link) -> Iterator[str]:
        end = self.devices[link.dst]
        if link.kind == "c2c":
            lanes = link.lanes or 1
            if link.gb_per_s is not None:
                yield f'<c2c bw="{link.gb_per_s * 1000 / lanes:.0f}" count="{lanes}"/>'
            return
        if link.lanes is None:
            self.fail(f"the number of links between {link.src} and {link.dst} is not known; {_CAPTURE}")
        peer = "0x030200" if link.kind == "nvlink" else "0x038000"
        target_class = peer if end.kind == "gpu" else f"{NVSWITCH_CLASS}00" if end.kind == "switch" else NPU_CLASS
        target = bus_key(end.bus_id) if end.bus_id and end.kind in ("gpu", "switch") else HIDDEN
        values = {"target": target, "count": str(link.lanes), "tclass": target_class}
        sm, gcn = self._fact("sm", gpu.id), self._fact("gcn", gpu.id)
        row = KINDS.get(kind_of(link.kind, sm if isinstance(sm, int) else None, None if gcn is None else str(gcn)))
        if link.gb_per_s is not None and (row is None or row.gb_per_s * link.lanes != link.gb_per_s):
            values[RATE] = f"{link.gb_per_s / link.lanes:.12f}".rstrip("0").rstrip(".")
        yield f"<{link.kind}{_text(values)}/>"

    def _net(self, nic: Device) -> str:
        values = {"name": (nic.name or nic.id).removeprefix(f"{PORT} ")}
        speed = self._fact("net_speed_mbps", nic.id)
        if isinstance(speed, int) and speed > 0:
            values["speed"] = str(speed)
        return f"<net{_text(values)}/>"

    def _bridge_id(self) -> str:
        """The next free made-up bus id of a bridge: `ffff:ff:01.0`."""
        while True:
            self.invented += 1
            bus, device = divmod(self.invented, 256)
            bus_id = f"ffff:{255 - bus:02x}:{device:02x}.0"
            if bus_key(bus_id) not in self.taken:
                return bus_id


def _text(values: dict[str, str]) -> str:
    return "".join(f' {key}="{escape(str(value), {_QUOTE: "&quot;"})}"' for key, value in values.items())
