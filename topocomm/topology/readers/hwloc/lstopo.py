"""Text of `lstopo` (`lstopo-no-graphics`, `lstopo -v`), hwloc 1 to 3."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import reduce
from operator import or_

from topocomm.topology.inference.pci_tree import MAX_BRIDGES, with_domain
from topocomm.topology.model import Topology
from topocomm.topology.readers.hwloc.hwloc_machine import Machine
from topocomm.topology.readers.hwloc.hwloc_objects import BRIDGES, IO_TYPES, HwlocObject
from topocomm.topology.readers.plain.paste import LineReader, plain_lines

SOURCE = "lstopo"

MAX_DEPTH = 100
MAX_OBJECTS = 20_000
"""Some ten for each core of the largest machines."""
_MAX_COPIES = 4096
_MAX_CPU = 1 << 16

_MACHINE = re.compile(r"(?:Machine|System)(?: [LP]?#\d+)?(?: \(|$)")
_INDEXED = re.compile(r"^[ \t>|]*(?:.* \+ )?(?:PU|Core|NUMANode|Package|Socket) ?[LP]?#\d+", re.MULTILINE)
_FIRST = re.compile(
    r"^\ufeff?(?:\x1b\[[0-9;]*m|[ \t>|])*(?:Machine|System)(?:(?: [LP]?#\d+)? ?\(|[ \t\r]*$)", re.MULTILINE
)

_NORMAL = re.compile(
    r"(Machine|System|Package|Socket|Die|Cluster|Module|Tile|Group\d*|NUMANode|MemCache|L[1-5][iud]?(?:Cache)?|Cache|Core|PU)"
    r"(?:\(([^()]*)\))?(?= [LP]?#\d| \(|$| cpuset=)"
)
_BRIDGE = re.compile(r"(Host ?Bridge|PCI ?Bridge|Bridge)(?:\([^()]*\))?(?: [LP]?#\d+)?(?= \(|$)")
_PCI = re.compile(r"PCI(?:Dev)?(?:\(([^()]*)\))?(?: [LP]?#[\d-]+)?(?: (\S+))?(?: \((.*)\))?(?: \".*\")?$")
_COPIES = re.compile(r"(\d{1,9}) ?x \{ (.*?) \}$")
_OS_DEVICE = re.compile(r"([A-Za-z][\w/,|&-]*(?: \w+)?)(?:\(([^()]*)\))?(?: [LP]?#\d+)?(?: \(.*\))? \"([^\"]*)\"$")
_OTHER = re.compile(r"(?:Misc|MemoryModule|Block|Net|Network|GPU|CoProc|OpenFabrics|DMA|Storage|Memory)\b|OS(?:Dev)?\[")
_TYPED = re.compile(r"OS(?:Dev)?\[([\w,-]{1,80})\]")
"""hwloc 3 names the types of an OS device in brackets: `OSDev[OpenFabrics,Network] L#3 "mlx5_0"`."""
_PHYSICAL = re.compile(r"\bP#(\d{1,9})")
_BUS_ID = re.compile(r"((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])(?:-\S+)?")
_IDS = re.compile(r"([0-9a-fA-F]{4}):([0-9a-fA-F]{4})")
_ATTRIBUTE = re.compile(r"\b(\w+)=(?:\"([^\"]*)\"|([^\s\")]+))")
_MEMORY = re.compile(r"\b(\d{1,15})\s?([KMGT])i?B\b")
_GIGABYTES = " gigabytes"
"""Key of the memory of an object among its attributes, none of which has a space."""
_UNITS = {"K": 2**-20, "M": 2**-10, "G": 1, "T": 2**10}
_CLASS = re.compile(r"\bclass=([0-9a-fA-F]{4})\b")
_LINK = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)\s?GB/s")
_ELISION = re.compile(r"[\[(<]?(?:\.{2,}|…)")

_TYPES = {"System": "Machine", "Socket": "Package", "Cluster": "Group", "Module": "Group", "Tile": "Group"}
_CLASSES = {
    "Ethernet": 0x0200,
    "InfiniBand": 0x0207,
    "Fabric": 0x0208,
    "Network": 0x0280,
    "VGA": 0x0300,
    "3D": 0x0302,
    "Display": 0x0380,
    "ProcessingAccelerator": 0x1200,
}
_OTHER_CLASS = 0xFF00
_CPU_TYPES = ("Machine", "Package", "Die", "Group", "Cache", "Core", "PU")


def matches(text: str) -> bool:
    """Return whether the text has lstopo's first line and an object with an index."""
    return _FIRST.search(text) is not None and _INDEXED.search(text) is not None


def read(text: str, name: str) -> Topology:
    """Return the host of a text; it shows no NVLink, and addresses get the domain 0000 that it leaves out."""
    return _Reader([line.expandtabs(8) for line in plain_lines(text)], name).read()


class _Reader(LineReader):
    remedy = "give the whole output of `lstopo-no-graphics`, indentation included"

    def __init__(self, lines: list[str], name: str) -> None:
        super().__init__(lines, name)
        self.numbered = True
        self.objects = 0
        self.stack: list[tuple[int, HwlocObject]] = []

    def read(self) -> Topology:
        first = next((i for i, line in enumerate(self.lines) if _MACHINE.match(line.strip())), None)
        if first is None:
            self.refuse(0, "no line that starts with `Machine (`")
        last = first
        for index in range(first, len(self.lines)):
            text = self.lines[index].strip()
            if not text:
                continue
            indent = len(self.lines[index]) - len(self.lines[index].lstrip())
            if index > first and indent <= self.stack[0][0]:
                if self._object(index, text) is not None:
                    self.refuse(index, f"{text[:40]!r} stands at the margin, as the machine does")
                break
            if _ELISION.match(text):
                self._elided(index)
                continue
            self._line(index, text, indent)
            last = index
        root = self.stack[0][1]
        if not root.children:
            self.refuse(last, "nothing below the machine")
        self._check_memory(root)
        self._cpusets(root)
        return Machine(root, self.file, numbered=self.numbered).topology(SOURCE, {}, self.warnings)

    def _line(self, index: int, text: str, indent: int) -> None:
        """Put the objects of one line (`L2 L#0 (1MB) + Core L#0`) below the last line that is less indented."""
        closed = None
        while self.stack and self.stack[-1][0] >= indent:
            closed = self.stack.pop()[0]
        if closed is not None and closed != indent:
            self.refuse(index, f"indented by {indent}, between the levels above")
        for part in re.split(r" \+ (?=[A-Z])", text) if '"' not in text else [text]:
            item = self._object(index, part)
            if item is None:
                self.refuse(index, f"{part[:60]!r} is no object of lstopo, as `Core L#0` or `PCI 18:00.0 (3D)`")
            self.objects += 1
            if self.objects > MAX_OBJECTS:
                self.fail(index, f"more than {MAX_OBJECTS} objects; this is no machine")
            if self.stack:
                self._check_parent(index, self.stack[-1][1], item)
                self.stack[-1][1].add(item)
                self._repeat(self.stack[-1][1], item, part)
            self.stack.append((indent, item))
        if len(self.stack) > MAX_DEPTH:
            self.fail(index, f"more than {MAX_DEPTH} levels; this is no machine")

    def _repeat(self, parent: HwlocObject, first: HwlocObject, text: str) -> None:
        """Add the other devices of a line such as `2 x { PCI 00:05.0-1 (Ethernet) }`, with addresses of one device."""
        copies = _COPIES.match(text)
        functions = re.search(r"\.([0-7])-([0-7]) ", copies.group(2)) if copies and first.bus_id else None
        for i in range(1, int(copies.group(1)) if copies else 0):
            bus_id = None
            if functions and first.bus_id and int(functions.group(1)) + i <= int(functions.group(2)):
                bus_id = f"{first.bus_id[:-1]}{int(functions.group(1)) + i}"
            parent.add(replace(first, bus_id=bus_id, children=[], parent=None))

    def _check_parent(self, index: int, parent: HwlocObject, child: HwlocObject) -> None:
        wrong = child.type not in IO_TYPES and (parent.type in IO_TYPES or parent.type == "PU")
        if wrong or (parent.type == "OSDev" and child.type not in ("OSDev", "Misc")):
            self.refuse(index, f"a {child.type} below a {parent.type}: the indentation is damaged")
        if child.type in BRIDGES:
            above = [item.type for _, item in self.stack[-MAX_BRIDGES:]]
            if len(above) == MAX_BRIDGES and set(above) <= set(BRIDGES):
                self.fail(index, f"more than {MAX_BRIDGES} bridges above one another; this is no machine")

    def _elided(self, index: int) -> None:
        """Take dots for lines that somebody left out: harmless between cores only."""
        after = next((line.strip() for line in self.lines[index + 1 :] if line.strip()), "")
        near = (self.stack[-1][1], self._object(index, after))
        if any(item is None or item.type not in ("Core", "PU", "Cache") for item in near):
            self.refuse(index, f"lines were left out ({self.lines[index].strip()[:20]!r})")
        self.numbered = False
        self.warn(index, "cores were left out here; no CPU lists are given")

    def _object(self, index: int, text: str) -> HwlocObject | None:
        normal = _NORMAL.match(text)
        if normal is not None:
            return self._normal(index, normal, text)
        if bridge := _BRIDGE.match(text):
            kind = "HostBridge" if bridge.group(1).startswith("Host") else "PCIBridge"
            attributes = _attributes(text)
            infos = {"pci_ids": attributes["id"]} if "id" in attributes else {}
            return HwlocObject(
                kind, index + 1, bus_id=attributes.get("busid"), gb_per_s=_gb_per_s(attributes), infos=infos
            )
        copies = _COPIES.match(text)
        pci = _PCI.match(copies.group(2) if copies else text)
        if pci is not None:
            return self._pci(index, pci, text, int(copies.group(1)) if copies else 1)
        device = _OS_DEVICE.match(_old_style(text))
        if device is not None:
            word = device.group(1)
            family = "openfabrics" if word.startswith("OpenFabrics") else "net" if word.startswith("Net") else None
            return HwlocObject("OSDev", index + 1, name=device.group(3), family=family, infos=_attributes(text))
        return HwlocObject("Misc", index + 1) if _OTHER.match(text) else None

    def _normal(self, index: int, match: re.Match[str], text: str) -> HwlocObject:
        kind = match.group(1)
        kind = "Cache" if kind[0] == "L" else "Group" if kind.startswith("Group") else _TYPES.get(kind, kind)
        physical = _PHYSICAL.search(text)
        number = int(physical.group(1)) if physical else None
        if kind == "PU" and number is None:
            self.numbered = False  # `lstopo -l` prints logical numbers alone
        if kind == "PU" and number is not None and number >= _MAX_CPU:
            self.fail(index, f"PU P#{number}; expected at most {_MAX_CPU - 1}")
        infos = _attributes(text) if kind in ("Machine", "Package") else {}
        if kind in ("Machine", "NUMANode") and (memory := _MEMORY.search(text)):
            infos[_GIGABYTES] = str(int(memory.group(1)) * _UNITS[memory.group(2)])
        return HwlocObject(kind, index + 1, os_index=number, family=match.group(2), infos=infos)

    def _pci(self, index: int, match: re.Match[str], text: str, copies: int) -> HwlocObject | None:
        if copies > _MAX_COPIES:
            self.fail(index, f"{copies} devices on one line; expected at most {_MAX_COPIES}")
        subtype, where, inside = match.groups()
        attributes = _attributes(text)
        address = _BUS_ID.fullmatch(where or "") or _BUS_ID.fullmatch(attributes.get("busid", ""))
        ids = _IDS.fullmatch(where or "") or _IDS.fullmatch(attributes.get("id", ""))
        if address is None and ids is None:
            return None
        shown = _CLASS.search(inside or "")
        word = inside if inside and "=" not in inside and "#" not in inside else None
        device = HwlocObject("PCIDev", index + 1, family=subtype, gb_per_s=_gb_per_s(attributes), infos=attributes)
        device.bus_id = with_domain(address.group(1)) if address else None
        device.vendor = int(ids.group(1), 16) if ids else None
        if shown or word:
            device.class_id = int(shown.group(1), 16) if shown else _CLASSES.get(word or "", _OTHER_CLASS)
        return device

    def _check_memory(self, root: HwlocObject) -> None:
        """Refuse a text that lost a NUMA node: the machine's memory is the sum over its nodes."""
        sizes = [node.infos.get(_GIGABYTES) for node in root.walk() if node.type == "NUMANode"]
        total = float(root.infos.get(_GIGABYTES, 0))
        known = sum(float(size) for size in sizes if size is not None)
        if total and sizes and None not in sizes and known + len(sizes) + 1 < 0.9 * total:
            self.refuse(root.line - 1, f"the machine has {total:.0f} GB, the NUMA nodes shown have {known:.0f}")

    def _cpusets(self, root: HwlocObject) -> None:
        """Set CPU sets from the PUs. An object without PUs gets a bit of its own, so that places can be told apart."""
        order = list(root.walk())
        unnumbered = _MAX_CPU
        for item in reversed(order):
            below = [child.cpuset for child in item.children if child.type not in IO_TYPES]
            if item.type not in _CPU_TYPES and not (item.type == "NUMANode" and below):
                continue
            if item.type == "PU" and item.os_index is not None:
                item.cpuset = 1 << item.os_index
            elif not any(below):
                item.cpuset = 1 << unnumbered
                unnumbered += 1
                self.numbered = False
            else:
                item.cpuset = reduce(or_, below)
        for item in order:  # memory without CPUs below it is near to those beside it
            if not item.cpuset and item.parent is not None and item.type not in IO_TYPES:
                item.cpuset = item.parent.cpuset


def _old_style(text: str) -> str:
    """Return the text of an OS device of hwloc 3 as hwloc 2 prints it, with one type before the brackets."""
    typed = _TYPED.match(text)
    if typed is None:
        return text
    types = set(typed.group(1).split(","))
    fabric, net = types & {"OpenFabrics", "OFED"}, types & {"Network", "Net"}
    return ("OpenFabrics" if fabric else "Net" if net else "OSDev") + text[typed.end() :]


def _attributes(text: str) -> dict[str, str]:
    """Return the `key=value` pairs of `lstopo -v`."""
    return {m.group(1): m.group(3) if m.group(2) is None else m.group(2) for m in _ATTRIBUTE.finditer(text)}


def _gb_per_s(attributes: dict[str, str]) -> float | None:
    match = _LINK.fullmatch(attributes.get("link", ""))
    return float(match.group(1)) or None if match else None
