"""The GPUs and NICs among hwloc's PCI and OS devices, and their numbers.

One GPU can be listed as `cuda0`, `opencl0d0`, `nvml0`, `card1` and `renderD128` at once; a board's own graphics chip is
no GPU. A NIC is an InfiniBand port and, where there is none, an Ethernet port that is not for management alone.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from topocomm.topology.inference.pci_tree import bus_key, natural
from topocomm.topology.readers.hwloc.hwloc_objects import HwlocObject

NVIDIA, AMD = 0x10DE, 0x1002

_OS_DEVICE = re.compile(r"(cuda|nvml|rsmi|opencl|ze|renderD)(\d{1,6})(?:d(\d{1,6})|\.(\d{1,6}))?")
_NUMBERED_BY = ("nvml", "cuda", "rsmi", "ze")
"""Drivers' names for GPUs; the first that every GPU has numbers them. NVML counts in bus order, CUDA as configured."""

_NETWORK_CLASSES = (0x0200, 0x0207, 0x0208)
"""Ethernet, InfiniBand, fabric (Omni-Path); 0280 is mostly Wi-Fi."""
_WIRELESS = re.compile(r"(?:wl|ww|usb|enx)")
_SLINGSHOT = re.compile(r"hs[in]\d+")
"""HPE's fabric, which hwloc shows as Ethernet."""
_SLOWEST_GB_PER_S = 1.25
"""PCIe below this cannot carry 10 Gb/s: a port for management, where there are faster ones."""
_TAKEN = re.compile(r"(?:GPU|numa|host|bridge|pcie|nvswitch|cpu|network)\d*")


class Gpu(NamedTuple):
    """One GPU: its id, its PCI device (an OS device where there is none), its OS devices, and its partition there."""

    id: str
    holder: HwlocObject
    os_devices: tuple[HwlocObject, ...]
    part: int = 0

    @property
    def model(self) -> str | None:
        """The vendor's name, where an OS device has it."""
        return next((m.strip() for d in self.os_devices if (m := d.infos.get("GPUModel", "")).strip()), None)


class Nic(NamedTuple):
    """One network function: its id, its PCI device, and the names of its InfiniBand devices and interfaces."""

    id: str
    holder: HwlocObject
    fabric_names: tuple[str, ...]
    net_names: tuple[str, ...]


def family(name: str | None) -> str | None:
    """Return the driver of an OS device's name: `cuda` of `cuda0`; None for other devices."""
    match = _OS_DEVICE.fullmatch(name or "")
    return match.group(1) if match else None


def number(name: str | None) -> tuple[int, ...]:
    """Return the number in an OS device's name: (0, 3) of `opencl0d3`, (0,) of `cuda0`."""
    match = _OS_DEVICE.fullmatch(name or "")
    return tuple(int(part) for part in match.groups()[1:] if part) if match else ()


def find_gpus(root: HwlocObject) -> list[Gpu]:
    """Return the GPUs in the order of the numbers that drivers give them, else of their bus ids."""
    candidates = [*_on_pci(root), *_off_pci(root)]
    surest = min(map(_tier, candidates), default=3)
    gpus = [c for c in candidates if _tier(c) <= surest < 3]
    for driver in _NUMBERED_BY:
        numbers = [_number_by(driver, gpu) for gpu in gpus]
        if all(numbers) and len(set(numbers)) == len(numbers):
            gpus.sort(key=lambda gpu: _number_by(driver, gpu))
            break
    else:
        gpus.sort(key=lambda gpu: (bus_key(gpu.holder.bus_id), gpu.part))
    return [gpu._replace(id=f"GPU{i}") for i, gpu in enumerate(gpus)]


def _on_pci(root: HwlocObject) -> list[Gpu]:
    """Return PCI devices with their OS devices; a GPU in partitions has several of one driver on one device."""
    candidates = []
    for device in root.walk():
        if device.type != "PCIDev":
            continue
        by_driver: dict[str, list[HwlocObject]] = {}
        for below in device.walk():
            if below.type == "OSDev" and (driver := family(below.name)):
                by_driver.setdefault(driver, []).append(below)
        computes = [d for driver in _NUMBERED_BY for d in by_driver.get(driver, ())]
        if not computes and device.class_id is not None and device.class_id >> 8 not in (0x03, 0x12):
            continue
        whole = Counter(family(d.name) for d in computes if len(number(d.name)) == 1)
        parts = max([1, *whole.values()])
        of_part: list[list[HwlocObject]] = [[] for _ in range(parts)]
        for devices in by_driver.values():
            for rank, below in enumerate(sorted(devices, key=lambda d: number(d.name))):
                of_part[min(rank, parts - 1)].append(below)
        candidates += [Gpu("", device, tuple(devices), part) for part, devices in enumerate(of_part)]
    return candidates


def _off_pci(root: HwlocObject) -> list[Gpu]:
    """Return GPUs that the source shows without a PCI device; drivers' equal numbers are one GPU."""
    lost: dict[tuple[int, ...], list[HwlocObject]] = {}
    for device in root.walk():
        if device.type != "OSDev" or family(device.name) not in _NUMBERED_BY:
            continue
        above = device.parent
        while above is not None and above.type in ("OSDev", "Misc"):
            above = above.parent
        if above is None or above.type != "PCIDev":
            lost.setdefault(number(device.name)[:1], []).append(device)
    return [Gpu("", devices[0], tuple(devices)) for devices in lost.values()]


def _tier(candidate: Gpu) -> int:
    """Return 0 for a GPU that computes, 1 for AMD's, maybe inside the CPU, 2 for a driver for graphics, else 3."""
    families = {family(d.name) for d in candidate.os_devices}
    if families & set(_NUMBERED_BY):
        return 0
    holder = candidate.holder
    kind, vendor = holder.class_id, holder.vendor
    if (kind is not None and vendor == NVIDIA) or kind == 0x0302:
        return 0
    if kind is not None and vendor == AMD:
        return 1
    return 2 if families or (kind is None and vendor == NVIDIA and not holder.children) else 3


def _number_by(driver: str, candidate: Gpu) -> tuple[int, ...]:
    return next((number(d.name) for d in candidate.os_devices if family(d.name) == driver), ())


def find_nics(root: HwlocObject) -> tuple[list[Nic], list[str]]:
    """Return the NICs in the order of their bus ids, and the names of ports for management alone."""
    ports: list[Nic] = []
    for device in root.walk():
        if device.type != "PCIDev":
            continue
        below = [d for d in device.walk() if d.type == "OSDev" and d.name]
        fabric = tuple(d.name or "" for d in below if d.family == "openfabrics")
        nets = tuple(d.name or "" for d in below if d.family == "net" and not _WIRELESS.match(d.name or ""))
        is_network = device.class_id in _NETWORK_CLASSES or (device.class_id in (None, 0x0280) and bool(nets))
        if fabric or is_network:
            ports.append(Nic("", device, fabric, nets))
    fabrics = [port for port in ports if port.fabric_names or any(map(_SLINGSHOT.fullmatch, port.net_names))]
    fast = [p for p in ports if p.holder.gb_per_s is None or p.holder.gb_per_s >= _SLOWEST_GB_PER_S]
    kept = fabrics or fast or ports
    used = {id(port.holder) for port in kept}
    left = [name for p in ports if id(p.holder) not in used for name in (p.net_names or (p.holder.bus_id or "",))]
    nics: list[Nic] = []
    ids: set[str] = set()
    for port in sorted(kept, key=lambda port: bus_key(port.holder.bus_id)):
        # An InfiniBand name, else an interface's, else the bus id, else a number.
        names = [*port.fabric_names, *port.net_names, port.holder.bus_id or "", f"nic{len(nics)}"]
        chosen = next((n for n in names if n and n not in ids and not _TAKEN.fullmatch(n)), f"nic#{len(nics)}")
        ids.add(chosen)
        nics.append(port._replace(id=chosen))
    return nics, sorted(left, key=natural)
