"""The PCI bus of a host as Linux's sysfs shows it: devices, the bridges above them, their links.

The tree of files is a parameter, so that tests can read the copy of any machine. Facts that a container or a virtual
machine withholds are None.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from topocomm.topology.discovery.sysfs import entries, numa_of, number_in, text_in
from topocomm.topology.inference.pci_tree import Bridge, bus_key
from topocomm.topology.links import PCIE_LANE_GB_PER_S

GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
"""VGA, 3D and other display controllers, processing accelerators."""
GPU_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
NVSWITCH_CLASS = "0x0680"

_WIDTHS = (1, 2, 4, 8, 12, 16, 32)

_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


class PciDevice(NamedTuple):
    """One function on the bus; unknown facts are None."""

    bus_id: str
    kind: str
    """Class as sysfs prints it: `0x030200`."""
    vendor: str
    above: tuple[str, ...]
    """The host bridge (`pci0000:3a`) and the bridges down to the device, by bus id."""
    numa: int | None
    cpus: str | None
    speed_gts: float | None
    width: int | None
    max_speed_gts: float | None
    max_width: int | None

    @property
    def gpu_vendor(self) -> str | None:
        """Vendor of a GPU; None for other devices, such as a server's management display."""
        return GPU_VENDORS.get(self.vendor) if self.kind[:6] in GPU_CLASSES else None


class PciBus:
    """All PCI devices of one host."""

    def __init__(self, sysfs: Path) -> None:
        devices = (_device(entry) for entry in entries(sysfs / "bus/pci/devices"))
        self.devices = {d.bus_id: d for d in sorted(filter(None, devices), key=lambda d: bus_key(d.bus_id))}
        self._bridges: dict[str, Bridge] = {}

    def gpus(self) -> list[PciDevice]:
        """Return the GPUs in the order of their addresses."""
        return [d for d in self.devices.values() if d.gpu_vendor]

    def path(self, bus_id: str | None) -> tuple[Bridge, ...]:
        """Return the bridges above a device, the host bridge first; empty where sysfs does not show it."""
        device = self.devices.get(bus_id or "")
        for name in device.above if device else ():
            if name not in self._bridges:  # a port above a GPU idles with it, so that its rate is unknown
                below = (d for d in self.devices.values() if d.above and d.above[-1] == name)
                rate = None if any(d.gpu_vendor for d in below) else self.gb_per_s(name)
                self._bridges[name] = Bridge(None if _ROOT.fullmatch(name) else name, rate)
        return tuple(self._bridges[name] for name in device.above) if device else ()

    def link_facts(self, bus_id: str | None) -> dict[str, Any]:
        """Return the known current and greatest GT/s and lanes of the link above a device.

        The greatest GT/s are the lower of card and port; the greatest lanes are the card's.
        """
        device = self.devices.get(bus_id or "")
        if device is None:
            return {}
        figures = {
            "speed_gts": device.speed_gts,
            "width": device.width,
            "max_speed_gts": self._most_gts(device),
            "max_width": device.max_width,
        }
        return {name: value for name, value in figures.items() if value is not None}

    def gb_per_s(self, bus_id: str | None) -> float | None:
        """Return GB/s of the link above a device in one direction.

        Lanes are those in use. GT/s are the current ones, but the greatest for a GPU, because drivers slow the links of
        idle GPUs down.
        """
        device = self.devices.get(bus_id or "")
        if device is None:
            return None
        speed = (device.gpu_vendor and self._most_gts(device)) or device.speed_gts
        width = device.width or device.max_width
        lane = PCIE_LANE_GB_PER_S.get(speed or 0.0)
        return lane * width if lane and width else None

    def _most_gts(self, device: PciDevice) -> float | None:
        port = self.devices.get(device.above[-1]) if device.above else None
        return min((d.max_speed_gts for d in (device, port) if d and d.max_speed_gts), default=None)


def short_bus_id(text: str) -> str:
    """Return an address as sysfs writes it: NVML's `00000000:3B:00.0` is `0000:3b:00.0`."""
    domain, _, rest = text.strip().lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}"
    except ValueError:
        return text.strip().lower()


def _device(entry: Path) -> PciDevice | None:
    if not _BUS_ID.fullmatch(entry.name):
        return None
    parts = Path(os.path.realpath(entry)).parts
    above = [part for part in parts[:-1] if _ROOT.fullmatch(part) or _BUS_ID.fullmatch(part)]
    return PciDevice(
        bus_id=entry.name,
        kind=text_in(entry / "class"),
        vendor=text_in(entry / "vendor"),
        above=tuple(above),
        numa=numa_of(entry),
        cpus=text_in(entry / "local_cpulist") or None,
        speed_gts=number_in(entry / "current_link_speed") or None,
        width=_width(entry / "current_link_width"),
        max_speed_gts=number_in(entry / "max_link_speed") or None,
        max_width=_width(entry / "max_link_width"),
    )


def _width(path: Path) -> int | None:
    """Lanes; None for the 0 of virtual buses and the 255 of devices without a link."""
    width = number_in(path)
    return int(width) if width in _WIDTHS else None
