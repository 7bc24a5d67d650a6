"""Elements of NCCL's topology XML as processors, PCI devices, GPUs and network ports, checked and numbered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import NamedTuple, NoReturn

from topocomm.errors import TopologyError
from topocomm.topology.inference.host_tree import group_words
from topocomm.topology.readers.nccl.xml.nccl_xml_values import bus_key, is_bus_id, mask_words, whole
from topocomm.topology.readers.plain.safe_xml import Element

VERSIONS = (1, 2)
"""NCCL writes 1, RCCL 2."""

MAX_GPUS, MAX_NETS, MAX_CPUS = 256, 256, 256
"""NCCL's XML is for one NVLink domain; more of them is no such file."""

_GPU_CLASSES = ("0x03", "0x12")
_NIC_CLASS = "0x02"
_BRIDGE_CLASS = "0x0604"
_AGAIN = "dump the file again with NCCL_TOPO_DUMP_FILE"


class Notes:
    """Warnings with file and line, those of the same kind in one."""

    def __init__(self, file: str) -> None:
        self._file = PurePath(file).name  # warnings travel with the topology: no paths of this machine in them
        self._found: dict[str, tuple[int, dict[str, None]]] = {}

    def add(self, message: str, element: Element, subject: str) -> None:
        """Add a warning `subject: message`."""
        line, subjects = self._found.get(message, (element.line, {}))
        subjects[subject] = None
        self._found[message] = min(line, element.line), subjects

    def warnings(self) -> tuple[str, ...]:
        """Return `file:line: subjects: message`, with the first line of the subjects."""
        return tuple(
            f"{self._file}:{line}: {group_words(list(subjects))}: {message}"
            for message, (line, subjects) in self._found.items()
        )


@dataclass(eq=False, slots=True)
class Cpu:
    """One `<cpu>`: a NUMA node."""

    element: Element
    host: str
    numa: int | None
    words: list[str] | None
    """Of its CPU mask; None where the mask is missing or damaged."""
    children: list[Pci] = field(default_factory=list)
    device: str = ""
    """Id of its device, once it has one."""


@dataclass(eq=False, slots=True)
class Pci:
    """One `<pci>`; its kind is `bridge`, `gpu`, `nic` or `other`."""

    element: Element
    cpu: Cpu
    bus_id: str
    kind: str = "other"
    children: list[Pci] = field(default_factory=list)

    def all(self) -> Iterator[Pci]:
        """Return this device and those below, in the order of the file."""
        left = [self]
        while left:
            pci = left.pop()
            yield pci
            left += reversed(pci.children)


class Gpu(NamedTuple):
    """One GPU; its number gives the id."""

    id: str
    pci: Pci
    element: Element | None
    """Its `<gpu>`; templates have none."""


@dataclass(eq=False, slots=True)
class Nic:
    """One network port, or a NIC whose ports the file does not name."""

    id: str
    element: Element
    """Its first `<net>`, else its `<pci>`."""
    pci: Pci | None
    cpus: list[Cpu]
    """NUMA nodes above it; a NIC without a PCI device can be under several."""
    is_net: bool


_Net = tuple[Element, Cpu, Pci | None]
"""A `<net>` and its place."""


class System:
    """Content of the file; GPUs and NICs in the order of their numbers.

    Raises:
        TopologyError: Another version, a wrong number, a device without bus id, or one that is there twice.
    """

    def __init__(self, root: Element, file: str, notes: Notes) -> None:
        self.file, self.notes = file, notes
        self.hosts: dict[str | None, str] = {}
        if root.tag != "system":
            self.fail(root, f"the root element is <{root.tag}>; expected <system>; {_AGAIN}")
        self.version = whole(root, "version", self.file)
        if self.version not in VERSIONS:
            got = "no version" if self.version is None else f'version="{self.version}"'
            self.fail(root, f'<system> has {got}; expected version="1" (NCCL) or "2" (RCCL); {_AGAIN}')
        self.cpus = [self._cpu(element) for element in root.all("cpu")]
        if not self.cpus:
            self.fail(root, f"<system> has no <cpu>, so no device has a place; {_AGAIN}")
        if len(self.cpus) > MAX_CPUS:
            self.fail(root, f"{len(self.cpus)} <cpu> in one file; expected at most {MAX_CPUS}; is this one machine?")
        for element in root.children:
            if element.tag != "cpu":
                self.notes.add("stands outside any <cpu> and is passed over", element, f"<{element.tag}>")
        lengths = [len(cpu.words[0]) for cpu in self.cpus if cpu.words]
        for cpu in self.cpus:
            if cpu.words and len(cpu.words[0]) < max(lengths):
                self.notes.add("the CPU mask lost digits and is not used", cpu.element, f"cpu {cpu.numa}")
                cpu.words = None
        self.pcis = [pci for cpu in self.cpus for top in cpu.children for pci in top.all()]
        self.gpu_elements = sum(len(pci.element.all("gpu")) for pci in self.pcis)
        for pci in self.pcis:
            pci.kind = self._kind(pci)
        self.gpus = self._gpus([pci for pci in self.pcis if pci.kind == "gpu"])
        nets: list[_Net] = [(net, pci.cpu, pci) for pci in self.pcis for net in _nets(pci.element)]
        nets += [(net, cpu, None) for cpu in self.cpus for net in _nets(cpu.element)]
        self.net_elements = len(nets)
        self.nics = self._nics(nets)
        for what, count, most in (("GPUs", len(self.gpus), MAX_GPUS), ("network ports", len(self.nics), MAX_NETS)):
            if count > most:
                self.fail(root, f"{count} {what} in one file; expected at most {most}; is this one machine?")

    def fail(self, element: Element, message: str) -> NoReturn:
        """Raise the error of an element."""
        raise TopologyError(f"{self.file}:{element.line}: {message}")

    def _cpu(self, element: Element) -> Cpu:
        hash_text = element.attributes.get("host_hash")
        host = self.hosts.setdefault(hash_text, f"host{len(self.hosts)}")
        numa = whole(element, "numaid", self.file, least=-1, most=2**16)
        if numa is None:
            self.notes.add("has no numaid: its NUMA number is unknown", element, "<cpu>")
        elif numa < 0:
            self.notes.add("numaid -1 means that the kernel names no NUMA node; taken as node 0", element, "<cpu>")
            numa = 0
        mask = element.attributes.get("affinity")
        words = mask_words(mask)
        if words is None and mask:
            self.notes.add(f"the CPU mask {mask[:40]!r} is damaged and not used", element, f"cpu {numa}")
        cpu = Cpu(element, host, numa, words)
        cpu.children = [self._pci(child, cpu) for child in element.all("pci")]
        return cpu

    def _pci(self, element: Element, cpu: Cpu) -> Pci:
        bus_id = element.attributes.get("busid", "").strip()
        if not is_bus_id(bus_id):
            self.fail(element, f"<pci> has the busid {bus_id[:40]!r}; expected one like 0000:0f:00.0; {_AGAIN}")
        pci = Pci(element, cpu, bus_id)
        pci.children = [self._pci(child, cpu) for child in element.all("pci")]
        return pci

    def _kind(self, pci: Pci) -> str:
        """Return the kind by tags, else by class: where any GPU has a tag, those without are not of the job."""
        class_text = pci.element.attributes.get("class", "").strip().lower()
        if pci.element.all("gpu"):
            return "gpu"
        if _nets(pci.element):
            return "nic"
        if pci.children or class_text.startswith(_BRIDGE_CLASS):
            return "bridge"
        if class_text.startswith(_GPU_CLASSES):
            if not self.gpu_elements:
                return "gpu"
            words = "a GPU without <gpu> beside some that have it; passed over, as NCCL does"
            self.notes.add(words, pci.element, pci.bus_id)
        return "nic" if class_text.startswith(_NIC_CLASS) else "other"

    def _gpus(self, pcis: list[Pci]) -> list[Gpu]:
        """Return GPUs by `dev`, else by `rank`, else by their order in the file."""
        first: dict[tuple[str, str], Pci] = {}
        for pci in pcis:
            other = first.setdefault((pci.cpu.host, bus_key(pci.bus_id)), pci)
            if other is not pci:
                self.fail(pci.element, f"GPU {pci.bus_id} is there twice, first on line {other.element.line}; {_AGAIN}")
            if len(pci.element.all("gpu")) > 1:
                words = "several <gpu>, as ranks that share it write them; one GPU is read"
                self.notes.add(words, pci.element, pci.bus_id)
            for tag in pci.element.all("gpu"):
                for key in ("dev", "rank", "sm", "gdr"):
                    whole(tag, key, self.file, least=-1, most=2**20)
        elements = [next(iter(pci.element.all("gpu")), None) for pci in pcis]
        numbers = self._numbers(elements, "dev") or self._numbers(elements, "rank") or list(range(len(pcis)))
        gpus = [Gpu(f"GPU{n}", pci, tag) for n, pci, tag in zip(numbers, pcis, elements, strict=True)]
        return sorted(gpus, key=lambda gpu: int(gpu.id[3:]))

    def _numbers(self, elements: list[Element | None], key: str) -> list[int] | None:
        """Return the attribute of every GPU; None where one lacks it or two have the same."""
        values = [whole(e, key, self.file, least=-1, most=2**20) for e in elements if e is not None]
        numbers = [number for number in values if number is not None and number >= 0]
        if len(set(numbers)) < len(elements):
            if numbers and len(set(numbers)) < len(numbers):
                first = next(e for e in elements if e is not None)
                self.notes.add(f"two GPUs have the same {key}; they are numbered otherwise", first, "<gpu>")
            return None
        return numbers

    def _nics(self, nets: list[_Net]) -> list[Nic]:
        """Return ports by `dev`, each once, then NICs without named ports in the order of the file."""
        pcis = [pci for pci in self.pcis if pci.kind == "nic"]
        taken = {gpu.id for gpu in self.gpus}
        by_place: dict[tuple[str, str, str | None], Nic] = {}
        hosts = len({cpu.host for _, cpu, _ in nets} | {pci.cpu.host for pci in pcis})
        for net, cpu, pci in nets:
            name = net.attributes.get("name", "").strip() or f"net{net.attributes.get('dev', '').strip()}"
            if not name.isprintable() or name == "net":
                self.fail(net, f"<net> has neither a name nor a dev to call it by; {_AGAIN}")
            key = (cpu.host, name, None if pci is None else bus_key(pci.bus_id))
            if key in by_place:
                by_place[key].cpus.append(cpu)
                continue
            ident = name if hosts == 1 else f"{cpu.host}/{name}"
            if ident in taken:
                ident = f"{ident}@{'virtual' if pci is None else pci.bus_id}"
            if ident in taken:
                self.fail(net, f"network port {name!r} is there twice; {_AGAIN}")
            taken.add(ident)
            by_place[key] = Nic(ident, net, pci, [cpu], is_net=True)
        ports = list(by_place.values())
        numbers = {nic.id: whole(nic.element, "dev", self.file, least=-1, most=2**20) for nic in ports}
        if None not in numbers.values():
            ports.sort(key=lambda nic: numbers[nic.id] or 0)
        for pci in pcis:
            if _nets(pci.element):
                continue
            ident = pci.bus_id if hosts == 1 else f"{pci.cpu.host}/{pci.bus_id}"
            if ident in taken:
                self.fail(pci.element, f"the NIC {pci.bus_id} is there twice; {_AGAIN}")
            taken.add(ident)
            ports.append(Nic(ident, pci.element, pci, [pci.cpu], is_net=False))
        return ports


def _nets(element: Element) -> list[Element]:
    """Return the network ports of a `<pci>` or `<cpu>`; entries for GPU-initiated traffic only are no ports."""
    return [net for nic in element.all("nic") for net in nic.all("net") if net.attributes.get("net") != "0"]
