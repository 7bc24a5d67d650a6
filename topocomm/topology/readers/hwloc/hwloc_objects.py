"""The objects of hwloc, as its XML and its text have them, and their places: CPUs and NUMA nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_MASK_CHARS = 1 << 14
"""Characters; a mask of 45,000 CPUs has them."""

BRIDGES = ("HostBridge", "PCIBridge")
IO_TYPES = (*BRIDGES, "PCIDev", "OSDev", "Misc")
"""Types without CPUs of their own: they are near to the first object above them of another type."""

_MASK = re.compile(r"(?:0x[0-9a-fA-F]*|)(?:,(?:0x)?[0-9a-fA-F]{0,8})*")


@dataclass(eq=False, slots=True)
class HwlocObject:
    """One object. `type` is of hwloc 2: `Package` for a socket, `HostBridge` and `PCIBridge` for bridges, `Cache`."""

    type: str
    line: int
    os_index: int | None = None
    name: str | None = None
    family: str | None = None
    """Of an OSDev: `net`, `openfabrics` or anything else; of a NUMANode its subtype."""
    cpuset: int = 0
    """Bit mask."""
    bus_id: str | None = None
    class_id: int | None = None
    vendor: int | None = None
    gb_per_s: float | None = None
    gp_index: str | None = None
    infos: dict[str, str] = field(default_factory=dict)
    children: list[HwlocObject] = field(default_factory=list)
    parent: HwlocObject | None = None

    def add(self, child: HwlocObject) -> None:
        """Put an object below this one."""
        child.parent = self
        self.children.append(child)

    def walk(self) -> Iterator[HwlocObject]:
        """Return this object and all below it, in the order of the source."""
        left = [self]
        while left:
            item = left.pop()
            yield item
            left += reversed(item.children)


class Place(NamedTuple):
    """A NUMA node with CPUs: its number, None where the source has no NUMA nodes, and the object with its CPUs."""

    numa: int | None
    node: HwlocObject


def bit_mask(text: str) -> int | None:
    """Return the CPU set that hwloc prints as 32-bit words, high ones first, as `0x00000303,,0x0`; None for others."""
    if len(text) > MAX_MASK_CHARS or not _MASK.fullmatch(text) or not text:
        return None
    words = [word.removeprefix("0x") for word in text.split(",")]
    return None if any(len(word) > 8 for word in words) else int("".join(word.zfill(8) for word in words), 16)


def find_places(root: HwlocObject) -> list[Place]:
    """Return the NUMA nodes with CPUs of their own, by number; packages where there are none and several packages.

    Memory of GPUs, high-bandwidth memory and memory on CXL are NUMA nodes too. They share their CPUs with another
    node or have none, so the smaller set and the lower number win.
    """
    nodes = [o for o in root.walk() if o.type == "NUMANode" and o.family != "GPUMemory" and o.cpuset]
    places: list[Place] = []
    taken = 0
    for node in sorted(nodes, key=lambda o: (o.cpuset.bit_count(), o.os_index or 0)):
        if not node.cpuset & taken:
            taken |= node.cpuset
            places.append(Place(node.os_index, node))
    if not places:
        packages = [o for o in root.walk() if o.type == "Package" and o.cpuset]
        places = [Place(None, package) for package in packages] if len(packages) > 1 else [Place(None, root)]
    return sorted(places, key=lambda place: (place.numa is None, place.numa or 0))


def home(device: HwlocObject) -> HwlocObject:
    """Return the first object with CPUs above a device."""
    above = device
    while above.parent is not None and above.type in IO_TYPES:
        above = above.parent
    return above


def bridges_above(device: HwlocObject) -> list[HwlocObject]:
    """Return the bridges above a device from the host bridge down; none where bridges were left out."""
    bridges = []
    above = device.parent
    while above is not None and above.type in BRIDGES:
        bridges.append(above)
        above = above.parent
    return bridges[::-1] if bridges and bridges[-1].type == "HostBridge" else []
