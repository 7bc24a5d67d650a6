"""Writes hwloc's XML for invented machines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count


class Xml:
    """Builds one document, element by element; `gp` counts gp_index as hwloc does."""

    def __init__(self, version: str | None = "2.0") -> None:
        self.version = version
        self.lines: list[str] = []
        self.gp = count(1)
        self.after: list[str] = []
        self.open: list[str] = []

    def begin(self, type: str, **attributes: object) -> int:
        """Opens an object; returns its gp_index."""
        index = next(self.gp)
        words = "".join(f' {key}="{value}"' for key, value in attributes.items())
        self.lines.append(f'<object type="{type}" gp_index="{index}"{words}>')
        return index

    def info(self, name: str, value: str) -> None:
        """An info of the open object."""
        self.lines.append(f'<info name="{name}" value="{value}"/>')

    def end(self, times: int = 1) -> None:
        """Closes objects."""
        self.lines += ["</object>"] * times

    def single(self, type: str, **attributes: object) -> int:
        """An object without children."""
        index = self.begin(type, **attributes)
        self.end()
        return index

    def host_bridge(self, buses: str = "0000:[00-0f]") -> None:
        """Opens a host bridge."""
        self.begin("Bridge", bridge_type="0-1", depth=0, bridge_pci=buses)

    def bridge(self, bus_id: str, speed: float = 15.753846) -> None:
        """Opens a PCI bridge."""
        kind = "0604 [8086:2030] [0000:0000] 04"
        self.begin("Bridge", bridge_type="1-1", depth=1, pci_busid=bus_id, pci_type=kind, pci_link_speed=f"{speed:f}")

    def gpu(self, bus_id: str, *names: str, model: str = "Tesla T1", kind: str = "0302 [10de:1db1]") -> list[int]:
        """A GPU with OS devices; their gp_index."""
        self.begin("PCIDev", pci_busid=bus_id, pci_type=f"{kind} [10de:0000] a1", pci_link_speed="15.753846")
        found = []
        for name in names:
            found.append(self.begin("OSDev", name=name, osdev_type=1 if name.startswith(("nvml", "rsmi")) else 5))
            self.info("GPUModel", model)
            self.end()
        self.end()
        return found

    def nic(self, bus_id: str, net: str = "", fabric: str = "", speed: float = 15.753846, kind: str = "0200") -> None:
        """A network function."""
        attributes = {"pci_busid": bus_id, "pci_type": f"{kind} [15b3:1017] [15b3:0000] 00"}
        self.begin("PCIDev", **attributes, pci_link_speed=f"{speed:f}")
        if net:
            self.single("OSDev", name=net, osdev_type=2)
        if fabric:
            self.single("OSDev", name=fabric, osdev_type=3)
        self.end()

    def matrix(self, name: str, indexes: Sequence[object], values: Sequence[int], *, hetero: bool = False) -> None:
        """A distance matrix, its figures cut into elements of ten as hwloc does."""
        tag = "distances2hetero" if hetero else "distances2"
        given = "" if hetero else ' type="OSDev" indexing="gp"'
        self.after.append(f'<{tag} nbobjs="{len(indexes)}" kind="9" name="{name}"{given}>')
        self.after.append(f"<indexes>{' '.join(map(str, indexes))} </indexes>")
        for i in range(0, len(values), 10):
            self.after.append(f"<u64values>{' '.join(map(str, values[i : i + 10]))} </u64values>")
        self.after.append(f"</{tag}>")

    def text(self) -> str:
        """The document."""
        version = f' version="{self.version}"' if self.version else ""
        head = ['<?xml version="1.0" encoding="UTF-8"?>', '<!DOCTYPE topology SYSTEM "hwloc2.dtd">']
        return "\n".join([*head, f"<topology{version}>", *self.lines, *self.after, "</topology>", ""])


def machine(xml: Xml, packages: int = 1, cores: int = 4) -> None:
    """Opens a Machine object for packages of some cores."""
    xml.begin("Machine", os_index=0, cpuset=mask(range(packages * cores)))


def package(xml: Xml, index: int, cores: int = 4, numa: int | None = None) -> None:
    """Opens a package with a NUMA node and its cores."""
    cpus = range(index * cores, (index + 1) * cores)
    xml.begin("Package", os_index=index, cpuset=mask(cpus))
    xml.single("NUMANode", os_index=index if numa is None else numa, cpuset=mask(cpus))
    for cpu in cpus:
        xml.begin("Core", os_index=cpu, cpuset=mask([cpu]))
        xml.single("PU", os_index=cpu, cpuset=mask([cpu]))
        xml.end()


def mask(cpus: Sequence[int]) -> str:
    """hwloc's form: 32-bit words, high ones first."""
    bits = sum(1 << cpu for cpu in cpus)
    words = [(bits >> shift) & 0xFFFFFFFF for shift in range(0, max(bits.bit_length(), 1), 32)]
    return ",".join(f"0x{word:08x}" if word else "" for word in reversed(words)) if any(words) else "0x0"


def two_sockets() -> Xml:
    """Four GPUs: a switch with two and a NIC, another root port of its host bridge, a second package."""
    xml = Xml()
    machine(xml, 2)
    package(xml, 0)
    xml.host_bridge()
    xml.bridge("0000:00:01.0", 7.876923)
    xml.bridge("0000:01:00.0")
    for i in range(2):
        xml.bridge(f"0000:02:{i:02x}.0")
        xml.gpu(f"0000:{3 + i:02x}:00.0", f"cuda{i}", f"opencl0d{i}", f"nvml{i}")
        xml.end()
    xml.bridge("0000:02:02.0")
    xml.nic("0000:05:00.0", "ib0", "mlx5_0", kind="0207")
    xml.end(3)
    xml.bridge("0000:00:02.0")
    xml.gpu("0000:08:00.0", "cuda2", "opencl0d2", "nvml2")
    xml.end(3)
    package(xml, 1)
    xml.host_bridge("0001:[00-0f]")
    xml.bridge("0001:00:01.0")
    xml.gpu("0001:01:00.0", "cuda3", "opencl0d3", "nvml3")
    xml.end(2)
    xml.host_bridge("0001:[40-4f]")
    xml.bridge("0001:40:01.0", 0.25)
    xml.nic("0001:41:00.0", "eno1", speed=0.25)
    xml.end(4)
    return xml
