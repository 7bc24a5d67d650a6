"""XML of hwloc (`lstopo --of xml`), versions 1 to 3.

PCI codes are derived from the bridges above two devices, NVLink from the matrix `NVLinkBandwidth`. PCIe GB/s are those
of `pci_link_speed`.
"""

from __future__ import annotations

import re
from typing import NoReturn

from topocomm.errors import TopologyError
from topocomm.topology.inference.pci_tree import MAX_BRIDGES
from topocomm.topology.model import Topology
from topocomm.topology.readers.hwloc.hwloc_links import Matrix
from topocomm.topology.readers.hwloc.hwloc_machine import Machine
from topocomm.topology.readers.hwloc.hwloc_objects import HwlocObject, bit_mask
from topocomm.topology.readers.plain import safe_xml
from topocomm.topology.readers.plain.safe_xml import Element

SOURCE = "hwloc XML"

_START = re.compile(r"<\?xml\b|<!DOCTYPE\b|<topology\b")
_BUS_ID = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_PCI_TYPE = re.compile(r"([0-9a-fA-F]{4}) \[([0-9a-fA-F]{4}):[0-9a-fA-F]{4}\].*")
_INDEX = re.compile(r"(?:([A-Za-z0-9]+):)?(\d{1,18})")
_TEXTS = re.compile(r"<(?:indexes|u64values)\b[^<>]*?(?:/>|>([^<]*)<)")
_NUMBER = re.compile(r"\d{1,18}")
_SPEED = re.compile(r"\d{1,6}(?:[.,]\d{1,9})?")

_TYPES = {"Socket": "Package", "System": "Machine"}
_NETWORK_BIT, _FABRIC_BIT = 16, 32
"""Of `osdev_type` since version 3, where it is a mask."""


def matches(text: str) -> bool:
    """Return whether the text has hwloc's root element and an object."""
    return "<topology" in text and re.search(r"<object\s[^<>]*\btype=", text) is not None


def read(text: str, name: str) -> Topology:
    """Return the host that hwloc's XML describes."""
    start = _START.search(text)
    if start:
        text = "\n" * text.count("\n", 0, start.start()) + text[start.start() :]
    end = text.rfind("</topology>")
    text = text if end < 0 else text[: end + len("</topology>")]
    return _Reader(text, name).read()


class _Reader:
    def __init__(self, text: str, name: str) -> None:
        self.name, self.text = name, text
        self.top = safe_xml.parse(text, name)
        self.by_gp: dict[str, HwlocObject] = {}
        self.by_os: dict[tuple[str, int], HwlocObject] = {}

    def fail(self, line: int, message: str) -> NoReturn:
        raise TopologyError(f"{self.name}:{line}: {message}")

    def read(self) -> Topology:
        objects = self.top.all("object")
        if self.top.tag != "topology" or len(objects) != 1:
            self.fail(self.top.line, "expected <topology> with one <object>; give the output of `lstopo --of xml`")
        version = self.top.attributes.get("version")
        self.major = int(version[0]) if version and version[0].isascii() and version[0].isdigit() else 1
        root = self._object(objects[0], None)
        if root.type != "Machine":
            self.fail(root.line, f"the first object is a {root.type}; expected a Machine")
        facts = {"hwloc_xml": version} if version else {}
        root.infos = {**_infos(self.top), **root.infos}
        return Machine(root, self.name, matrices=self._matrices()).topology(SOURCE, facts, ())

    def _object(self, element: Element, parent: HwlocObject | None, bridges: int = 0) -> HwlocObject:
        attributes = element.attributes
        kind = self._type(element)
        bridges = bridges + 1 if kind.endswith("Bridge") else 0
        if bridges > MAX_BRIDGES:
            self.fail(element.line, f"more than {MAX_BRIDGES} bridges above one another; this is no machine")
        os_index = self._matched(element, "os_index", _NUMBER, "a number")
        cpuset = bit_mask(attributes["cpuset"]) if "cpuset" in attributes else 0
        if cpuset is None:
            text = attributes["cpuset"]
            self.fail(element.line, f"cpuset {text!r:.60}; expected 32-bit words such as 0x00000303,0x03030000")
        bus_id = self._matched(element, "pci_busid", _BUS_ID, "an address such as 0000:3b:00.0")
        speed = self._matched(element, "pci_link_speed", _SPEED, "GB/s such as 15.753846")
        item = HwlocObject(
            kind,
            element.line,
            os_index=None if os_index is None else int(os_index),
            name=attributes.get("name"),
            family=self._family(element, kind),
            cpuset=cpuset,
            bus_id=bus_id,
            gb_per_s=float(speed.replace(",", ".")) or None if speed else None,  # 0 where hwloc could not read it
            gp_index=attributes.get("gp_index"),
            infos=_infos(element),
        )
        pci_type = self._matched(element, "pci_type", _PCI_TYPE, "a class and ids such as 0302 [10de:1db8] [10de:131d]")
        if pci_type is not None:
            item.class_id, item.vendor = int(pci_type[:4], 16), int(pci_type[6:10], 16)
            item.infos["pci_ids"] = pci_type[5:]
        if parent is not None:
            parent.add(item)
        if item.gp_index is not None:
            self.by_gp[item.gp_index] = item
        if item.os_index is not None:
            self.by_os.setdefault((kind, item.os_index), item)
        for child in element.all("object"):
            self._object(child, item, bridges)
        return item

    def _type(self, element: Element) -> str:
        kind = element.attributes.get("type")
        if kind is None:
            self.fail(element.line, "an <object> without a type; expected one such as Package or PCIDev")
        if kind == "Bridge":
            return "HostBridge" if element.attributes.get("bridge_type", "").startswith("0") else "PCIBridge"
        return "Cache" if kind.endswith("Cache") and kind != "MemCache" else _TYPES.get(kind, kind)

    def _family(self, element: Element, kind: str) -> str | None:
        """Return the use of an OSDev, the subtype of a NUMANode."""
        if kind != "OSDev":
            return element.attributes.get("subtype")
        text = element.attributes.get("osdev_type", "")
        code = int(text) if _NUMBER.fullmatch(text) else 0
        if self.major >= 3:
            return "openfabrics" if code & _FABRIC_BIT else "net" if code & _NETWORK_BIT else None
        return {2: "net", 3: "openfabrics"}.get(code)

    def _matched(self, element: Element, key: str, pattern: re.Pattern[str], expected: str) -> str | None:
        text = element.attributes.get(key)
        if text is not None and not pattern.fullmatch(text):
            self.fail(element.line, f"{key} {text!r:.60}; expected {expected}")
        return text

    def _matrices(self) -> list[Matrix]:
        """Return the matrices of versions 2 and 3.

        Their figures are text, which `safe_xml` passes over; it is taken from the document, element by element.
        """
        wanted = [e for e in self.top.children if e.tag in ("distances2", "distances2hetero")]
        first, *rest = self.text.split("<!--")
        bare = first + "".join(part.partition("-->")[2] for part in rest)
        texts = [match.group(1) or "" for match in _TEXTS.finditer(bare)]
        parts = [(e, part) for e in wanted for part in e.children if part.tag in ("indexes", "u64values")]
        if len(parts) != len(texts):
            line = wanted[0].line if wanted else self.top.line
            self.fail(line, "<indexes> and <u64values> are not where hwloc writes them; give its output unaltered")
        figures: dict[int, dict[str, list[str]]] = {id(e): {"indexes": [], "u64values": []} for e in wanted}
        for (element, part), text in zip(parts, texts, strict=True):
            figures[id(element)][part.tag] += text.split()
        return [self._matrix(e, figures[id(e)]["indexes"], figures[id(e)]["u64values"]) for e in wanted]

    def _matrix(self, element: Element, indexes: list[str], values: list[str]) -> Matrix:
        count = len(indexes)
        name = element.attributes.get("name", "")
        nbobjs = element.attributes.get("nbobjs")
        if len(values) != count * count or nbobjs != str(count):
            words = f"{nbobjs} objects has {count} indexes and {len(values)} values"
            self.fail(element.line, f"matrix {name!r} of {words}; it is cut")
        if wrong := [value for value in values if not _NUMBER.fullmatch(value)]:
            self.fail(element.line, f"matrix {name!r}: value {wrong[0]!r:.40}; expected a number")
        is_os = element.attributes.get("indexing") == "os"
        kind = element.attributes.get("type", "")
        objects = []
        for text in indexes:
            index = _INDEX.fullmatch(text)
            if index is None:
                self.fail(element.line, f"index {text!r:.40}; expected a number or a type and a number, as OSDev:802")
            by_os = is_os and index.group(1) is None
            objects.append(self.by_os.get((kind, int(index.group(2)))) if by_os else self.by_gp.get(index.group(2)))
        return Matrix(name, tuple(objects), tuple(map(int, values)))


def _infos(element: Element) -> dict[str, str]:
    return {info.attributes.get("name", ""): info.attributes.get("value", "") for info in element.all("info")}
