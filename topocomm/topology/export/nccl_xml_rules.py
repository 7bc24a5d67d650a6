"""What NCCL needs of the elements of its topology XML before it accepts a file.

Every rank reads the file, fills in what is absent on the way from its own GPU up to the processor
(`ncclTopoGetXmlFromSys`, `ncclTopoGetXmlFromCpu` in `src/graph/xml.cc`), keeps this way and all network ports, and
sends the rest away (`ncclTopoTrimXml`). Then the files of all ranks become one (`ncclTopoFuseXml`), in which elements
are the same only if all of their attributes are (`xmlFindNode`). What stands above a port is thus in the file of ranks
that do not fill it in: absent attributes end in an error (`ncclTopoAddPci`, `ncclTopoAddCpu`), or the element is there
twice. Empty texts are allowed, and nothing is put in their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

_QUOTE = {'"': "&quot;"}

LINK = ("link_speed", "link_width")
"""`ncclTopoAddPci` reads both; of an empty text it makes Gen3 and 16 lanes."""
IDS = ("vendor", "device", "subsystem_vendor", "subsystem_device")
"""`ncclTopoGetXmlFromSys` adds them; `getBcmGen` tells switches of two levels by them, which are flattened."""
MODEL = ("arch", "vendor", "familyid", "modelid")
"""`ncclTopoAddCpu` reads them; an unknown processor has no limit on the way to others (`ncclTopoGetInterCpuBw`)."""


_NO_LIMIT = "between which NCCL then sees no limit"


@dataclass(eq=False, slots=True)
class Element:
    """One element of the file."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element] = field(default_factory=list)

    def walk(self) -> Iterator[Element]:
        """This element and all below it, in the order of the file."""
        yield self
        for child in self.children:
            yield from child.walk()

    def lines(self, indent: str = "") -> Iterator[str]:
        """Its text. No blank stands before `/>`, which NCCL's parser does not take."""
        words = "".join(f' {key}="{escape(value, _QUOTE)}"' for key, value in self.attributes.items())
        if not self.children:
            yield f"{indent}<{self.tag}{words}/>"
            return
        yield f"{indent}<{self.tag}{words}>"
        for child in self.children:
            yield from child.lines(indent + "  ")
        yield f"{indent}</{self.tag}>"


def complete(system: Element) -> list[str]:
    """Adds the attributes that NCCL needs and no source gave, as empty texts.

    Returns:
        What they are, in words for the head of the file; empty where all is known.
    """
    empty: dict[str, None] = {}
    for element in system.walk():
        tags = {below.tag for below in element.walk()}
        if element.tag == "pci" and ("net" in tags or any(map(_is_nic, element.walk()))):
            _fill(element, LINK, empty, "speed and width of links, for which NCCL takes Gen3 and 16 lanes")
            if {"net", "gpu"} <= tags:
                _fill(element, IDS, empty, "ids of PCIe switches")
        elif element.tag == "cpu" and ("net" in tags or "gpu" not in tags):
            limit = "of which NCCL takes the oldest" if element.attributes.get("vendor") else _NO_LIMIT
            _fill(element, MODEL, empty, f"models of processors, {limit}")
            if {"net", "gpu"} <= tags:
                _fill(element, ("affinity",), empty, "CPU masks")
    return list(empty)


def _is_nic(element: Element) -> bool:
    return element.attributes.get("class", "").startswith("0x02")


def _fill(element: Element, keys: tuple[str, ...], empty: dict[str, None], words: str) -> None:
    if any(key not in element.attributes for key in keys):
        empty[words] = None
    element.attributes = {**element.attributes, **{key: "" for key in keys if key not in element.attributes}}
