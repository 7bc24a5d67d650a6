"""What NCCL 2.30.7 does with a topology file before it plans, as a small model of `src/graph/xml.cc` and `topo.cc`.

Every rank fills in its own GPU and what is above it, keeps that and all ports, and the parts become one file. The model
was compared with NCCL's own code, linked on a CPU, on every shared dump.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from copy import deepcopy

MODEL_READS = {"x86_64": ("vendor",), "arm64": (), "ppc64": (), "": ()}
"""Attributes beside `arch` by architecture; of an Intel also family and model."""
GENERATIONS = {"2.5 GT/s": 15, "5 GT/s": 30, "8 GT/s": 60, "16 GT/s": 120, "32 GT/s": 240}
GENERATIONS |= {"2.5 GT/s PCIe": 15, "5.0 GT/s PCIe": 30, "8.0 GT/s PCIe": 60}
GENERATIONS |= {"16.0 GT/s PCIe": 120, "32.0 GT/s PCIe": 240, "64.0 GT/s PCIe": 480}
"""`kvDictPciGen`: 100 Mb/s of a lane."""


class Refused(Exception):
    """NCCL's warning: `Attribute link_width of node pci not found`."""


class System:
    """The file as NCCL plans with it."""

    def __init__(self, fused):
        self.fused = fused
        self.parents = {child: parent for parent in fused.iter() for child in parent}
        for cpu in fused.findall("cpu"):
            self._add_cpu(cpu)

    def _add_cpu(self, cpu):
        """`ncclTopoAddCpu`."""
        read(cpu, "numaid")
        arch = read(cpu, "arch")
        for key in MODEL_READS[arch]:
            read(cpu, key)
        if arch == "x86_64" and read(cpu, "vendor") == "GenuineIntel":
            read(cpu, "familyid"), read(cpu, "modelid")
        for pci in cpu.findall("pci"):
            self._add_pci(pci)

    def _add_pci(self, pci):
        """`ncclTopoAddPci`."""
        for key in ("class", "busid", "link_width", "link_speed"):
            read(pci, key)
        for gpu in pci.findall("gpu"):
            for key in ("rank", "sm", "dev", "gdr"):
                read(gpu, key)
        for below in pci.findall("pci"):
            self._add_pci(below)

    def twice(self):
        """Bus ids and ports that are in the fused file twice: `xmlFindNode` took their elements for different ones."""
        found = [pci.get("busid") for pci in self.fused.iter("pci")]
        found += [
            (net.get("name"), self.parents[self.parents[net]].get("busid", "none")) for net in self.fused.iter("net")
        ]
        found = [item for item in found if not isinstance(item, tuple) or item[1] != "none"]
        found += [("cpu", cpu.get("numaid")) for cpu in self.fused.iter("cpu")]
        return {item for item in found if found.count(item) > 1}

    def gb_per_s(self, bus_id):
        """Of the link upwards: width times speed over 80, and 16 lanes of Gen3 for what is empty."""
        pci = next(pci for pci in self.fused.iter("pci") if pci.get("busid") == bus_id)
        return (int(pci.get("link_width") or 16)) * GENERATIONS.get(pci.get("link_speed"), 60) / 80

    def code(self, a, b):
        """NCCL's path type of two PCI devices over PCIe (`ncclTopoSetPaths`)."""
        ways = [self._up(bus_id) for bus_id in (a, b)]
        meet = next((x for x in ways[0] if x in ways[1]), None)
        if meet is None or meet.tag == "system":
            return "SYS"
        if meet.tag == "cpu":
            return "PHB"
        return "PIX" if ways[0].index(meet) == ways[1].index(meet) == 0 else "PXB"

    def _up(self, bus_id):
        element = next(pci for pci in self.fused.iter("pci") if pci.get("busid") == bus_id)
        way = []
        while element in self.parents:
            element = self.parents[element]
            way.append(element)
        return way


def load(text, *, sysfs=True):
    """The system of a job with one rank on each GPU of the file.

    Args:
        text: The file.
        sysfs: Whether the machine shows its PCI devices; bridges `ffff:` it never does.

    Raises:
        Refused: An attribute is missing that NCCL reads.
    """
    root = ET.fromstring(text)
    assert " />" not in text.split("-->")[-1]  # xmlGetToken takes the blank for an attribute
    fused = None
    for rank in range(len(list(root.iter("gpu")))):
        mine = _of_rank(deepcopy(root), rank, sysfs)
        if fused is None:
            fused = mine
        else:
            _fuse(fused, mine)
    return System(fused)


def read(element, key):
    """`xmlGetAttrStr`."""
    value = element.get(key)
    if value is None:
        raise Refused(f"Attribute {key} of node {element.tag} not found")
    return value


def _of_rank(root, rank, sysfs):
    """`ncclTopoFillGpu`, `ncclTopoPopulateNics` and `ncclTopoTrimXml` of one rank."""
    parents = {child: parent for parent in root.iter() for child in parent}
    gpu = list(root.iter("gpu"))[rank]
    for key, value in (("dev", rank), ("sm", 90), ("gdr", 1)):
        gpu.set(key, gpu.get(key, str(value)))
    gpu.set("rank", str(rank))
    above = parents[gpu]
    while above.tag == "pci":
        _fill_pci(above, sysfs)
        above = parents[above]
    for key, value in (("affinity", "ff"), ("arch", "x86_64"), ("vendor", "GenuineIntel"), ("familyid", "6")):
        if key not in above.attrib:
            above.set(key, value)
            if key == "familyid":
                above.set("modelid", "143")
    kept: set[ET.Element] = set()
    for element in (gpu, *root.iter("net")):
        kept.add(element)
        while element in parents:
            element = parents[element]
            kept.add(element)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in ("pci", "cpu", "nic", "net", "gpu") and child not in kept:
                parent.remove(child)
    return root


def _fill_pci(pci, sysfs):
    """`ncclTopoGetXmlFromSys`."""
    shown = sysfs and not pci.get("busid").startswith("ffff")
    pci.set("class", pci.get("class", "0x03"))
    for key in ("vendor", "device", "subsystem_vendor", "subsystem_device"):
        if shown and key not in pci.attrib:
            pci.set(key, "0x1")
    for key, value in (("link_speed", "32.0 GT/s PCIe"), ("link_width", "16")):
        if key not in pci.attrib:
            pci.set(key, value if shown else "")


def _fuse(into, other):
    """`xmlTopoFuseXmlRecursive`: elements are the same if tag and all attributes are."""
    for theirs in other:
        mine = next((x for x in into if x.tag == theirs.tag and x.attrib == theirs.attrib), None)
        if mine is None:
            into.append(theirs)
        else:
            _fuse(mine, theirs)
