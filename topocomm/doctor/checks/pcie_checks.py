"""Checks of PCIe: slots narrower or slower than their siblings', and implausible trees."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import NamedTuple

from topocomm.doctor.checks.host_views import Host, hosts_of
from topocomm.doctor.finding import Finding
from topocomm.topology.draw.names import some
from topocomm.topology.inference.host_tree import LEVELS
from topocomm.topology.model import Device, Link, Topology

CHECK = "PCIe links"
ALIKE = 0.75
"""Share of its siblings' rate below which a link has lost a generation or half its lanes."""
SLOT_REMEDY = (
    "`lspci -vv -s BUS` shows LnkCap (can) and LnkSta (does); reseat the card or its riser, move it to an x16 slot, "
    "and see the BIOS for bifurcation and link speed; in a virtual machine the figures may be made up: give the "
    "provider's file, NCCL_TOPO_FILE"
)
PORT_REMEDY = "move the NIC to a slot of more lanes or a later generation; `lspci -vv -s BUS` shows LnkCap and LnkSta"
VM_REMEDY = (
    "in a virtual machine: give the provider's topology file to NCCL_TOPO_FILE, and to --input here; on bare metal: "
    "switch ACS off in the BIOS (`lspci -vvv | grep ACSCtl`), and boot with iommu=pt"
)
DISPLAY_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
NVIDIA, AMD = "0x10de", "0x1002"
GPU_VENDORS = (NVIDIA, AMD)
UNNAMED = ("NIC", "NET")
"""Names that sources give to NICs of unknown drivers."""
_SPEED = re.compile(r"(\d{1,3}(?:\.\d{1,2})?)\s*GT/s")
_BUS_ID = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])")
_WIDTH = re.compile(r"\bx(\d{1,2})\b")


class Slot(NamedTuple):
    """Current and greatest speed and width of a PCIe link; None if unknown."""

    gt_per_s: float | None = None
    width: int | None = None
    max_gt_per_s: float | None = None
    max_width: int | None = None


def check_pcie(topology: Topology) -> list[Finding]:
    """Find links of GPUs and NICs that are slower than their siblings', or than the NIC's own port.

    Siblings are the GPUs, and NICs with the same driver, by their names, and the same port rate.
    """
    findings: list[Finding] = []
    for host in hosts_of(topology):
        rates = _rates(host)
        nics = {nic.id for nic in host.nics}
        links = [link for link in host.links if link.kind == "network" and link.src in nics]
        ports = {link.src: link.gb_per_s for link in links if link.gb_per_s is not None}
        siblings: dict[object, list[str]] = {"GPU": [gpu.id for gpu in host.gpus]}
        for nic in host.nics:
            name, port = family(nic, host), ports.get(nic.id)
            if port is not None or name not in UNNAMED:
                siblings.setdefault((name, port), []).append(nic.id)
        own = []
        for names in siblings.values():
            known = {name: rates[name] for name in names if name in rates}
            best = max(known.values(), default=0.0)
            slow = [f"{host.local(name)} has {rate:g}" for name, rate in known.items() if rate < ALIKE * best]
            if slow:
                text = f"{some(slow)} GB/s, its siblings {best:g}: half the width, or trained down"
                own.append(host.finding("warn", CHECK, text, SLOT_REMEDY))
        slow = [
            f"{host.local(name)} has {rates[name]:g} GB/s for a port of {port:g}"
            for name, port in ports.items()
            if name in rates and rates[name] < ALIKE * port
        ]
        if slow:
            own.append(host.finding("warn", CHECK, f"slower than the port behind it: {some(slow)}", PORT_REMEDY))
        own += _reported(host)
        if not own and rates:
            own = [host.finding("ok", CHECK, f"no GPU or NIC is slower than its like ({len(rates)} looked at)")]
        findings += own
    return findings


def check_slots(topology: Topology, sysfs: Path = Path("/sys")) -> list[Finding]:
    """Compare width and speed of this machine's GPUs and NICs with the limits of card and slot.

    NICs without a bus id are passed over; GPUs are found on the bus.
    """
    nics = {d.bus_id: d.id for d in topology.devices if d.kind == "nic" and d.bus_id}
    findings: list[Finding] = []
    gpus = {bus_id: f"GPU at {bus_id}" for bus_id in pci_gpus(sysfs)}
    for bus_id, name in {**nics, **gpus}.items():
        findings += _trained(name, bus_id not in nics, _read_slot(sysfs, bus_id))
    return findings


def pci_gpus(sysfs: Path) -> dict[str, str]:
    """Return the vendor of each GPU on this machine's PCI bus by bus id."""
    found = {}
    for folder in sorted((sysfs / "bus/pci/devices").glob("*")):
        try:
            kind, vendor = ((folder / name).read_text("ascii", "replace").strip() for name in ("class", "vendor"))
        except OSError:
            continue
        if kind[:6] in DISPLAY_CLASSES and vendor in GPU_VENDORS:
            found[folder.name] = vendor
    return found


def check_flat_tree(topology: Topology) -> list[Finding]:
    """Find machines whose many devices all meet at the host bridge, as with virtual machines and ACS."""
    found = []
    for host in hosts_of(topology):
        codes = {code for code in host.codes.values() if code in LEVELS}
        several = len(host.gpus) >= 4 or (len(host.gpus) >= 2 and len(host.nics) >= 2)
        if not several or codes not in ({"PHB"}, {"SYS"}):
            continue
        numas = {gpu.id: gpu.numa for gpu in host.gpus}
        pairs = [pair for pair, code in host.codes.items() if code in LEVELS and numas.keys() >= set(pair)]
        # GPUs that meet only between NUMA nodes, though they are listed on one node, or on none
        is_odd = any(numas[a] == numas[b] is not None for a, b in pairs)
        if not any(isinstance(numa, int) for numa in numas.values()):
            is_odd = not host.lanes() and bool(pairs)
        if codes == {"PHB"} or is_odd:
            text = f"every PCIe pair is {codes.pop()}: a virtual machine or ACS hides the switches between the devices"
            found.append(host.finding("info", "PCIe tree", text, VM_REMEDY))
    return found


def _rates(host: Host) -> dict[str, float]:
    """Return GB/s of the narrowest known PCIe link between each GPU or NIC and the CPU.

    Without a known path to the CPU the device's own link counts.
    """
    up: dict[str, list[Link]] = {}
    for link in host.links:
        if link.kind == "pcie":
            up.setdefault(link.src, []).append(link)
    found: dict[str, float] = {}
    for device in (*host.gpus, *host.nics):
        rate = _way_to_cpu(device.id, up, host)
        if rate is None:
            rate = max((link.gb_per_s for link in up.get(device.id, ()) if link.gb_per_s is not None), default=inf)
        if rate < inf:
            found[device.id] = rate
    return found


def _way_to_cpu(start: str, up: Mapping[str, list[Link]], host: Host) -> float | None:
    """Return GB/s of the narrowest known link on the path to a NUMA node or the host; None without a path."""
    least = {start: inf}
    heads = [start]
    for name in heads:  # it grows: breadth first, and PCIe is a tree
        for link in up.get(name, ()):
            kind = host.kinds.get(link.dst)
            if link.dst in least or kind not in ("switch", "numa", "host"):
                continue
            least[link.dst] = min(least[name], inf if link.gb_per_s is None else link.gb_per_s)
            if kind != "switch":
                return least[link.dst]
            heads.append(link.dst)
    return None


def family(nic: Device, host: Host) -> str:
    """Return the name of a NIC without its number: `mlx5_`, `bnxt_re`."""
    return re.sub(r"\d.*", "", nic.name or host.local(nic.id))


def _reported(host: Host) -> list[Finding]:
    """Check the slots in a source's facts, by device or bus id: `16 GT/s x8`, sysfs's texts, or numbers."""
    reported = host.facts.get("pcie")
    if not isinstance(reported, dict):
        return []
    gpus = {host.local(gpu.id) for gpu in host.gpus}
    devices = {device.bus_id: host.local(device.id) for device in (*host.gpus, *host.nics) if device.bus_id}
    slots = {devices.get(str(name), str(name)): _slot(value) for name, value in reported.items()}
    findings = [finding for name, slot in slots.items() for finding in _trained(name, name in gpus, slot)]
    widths = {name: slot.width for name, slot in slots.items() if name in gpus and slot.width}
    most = max(widths.values(), default=0)
    narrow = [f"{name} has x{width}" for name, width in widths.items() if width < most]
    if narrow and not findings:
        text = f"{some(narrow)}, its siblings x{most}: half the width"
        findings.append(Finding("warn", CHECK, text, SLOT_REMEDY))
    return [host.finding(*finding) for finding in findings]


def _slot(value: object) -> Slot:
    if isinstance(value, str):
        return Slot(_speed(value), _width(value))
    if not isinstance(value, dict):
        return Slot()
    if "width" in value or "speed_gts" in value:
        keys = ("speed_gts", "width", "max_speed_gts", "max_width")
        figures = [figure if type(figure) in (int, float) else None for figure in map(value.get, keys)]
        return Slot(*figures)
    speeds = [_speed(str(value.get(key, ""))) for key in ("link_speed", "max_link_speed")]
    widths = [_width(f"x{str(value.get(key, '')).lstrip('x')}") for key in ("link_width", "max_link_width")]
    return Slot(speeds[0], widths[0], speeds[1], widths[1])


def _speed(text: str) -> float | None:
    match = _SPEED.search(text)
    return float(match[1]) or None if match else None


def _width(text: str) -> int | None:
    """Parse lanes; None for 0, which a virtual bus has."""
    match = _WIDTH.search(text)
    return int(match[1]) or None if match else None


def _read_slot(sysfs: Path, bus_id: str) -> Slot:
    """Read a slot from sysfs; its greatest speed is the lesser of the card's and of the port above it."""
    numbers = _BUS_ID.fullmatch(bus_id.lower())
    if numbers is None:
        return Slot()
    card = (sysfs / "bus/pci/devices" / f"{int(numbers[1], 16):04x}:{numbers[2]}").resolve()

    def word(name: str, folder: Path = card) -> str:
        try:
            return (folder / name).read_text("ascii", "replace").strip()
        except OSError:
            return ""

    speeds = (_speed(word("max_link_speed", folder)) for folder in (card, card.parent))
    most = min((speed for speed in speeds if speed), default=None)
    widths = [_width(f"x{word(name)}") for name in ("current_link_width", "max_link_width")]
    return Slot(_speed(word("current_link_speed")), widths[0], most, widths[1])


def _trained(name: str, gpu: bool, slot: Slot) -> list[Finding]:
    findings = []
    if slot.width and slot.max_width and slot.width < slot.max_width:
        text = f"{name} runs x{slot.width} of x{slot.max_width}: lanes are lost, or the slot has fewer"
        findings.append(Finding("warn", CHECK, text, SLOT_REMEDY))
    if slot.gt_per_s and slot.max_gt_per_s and slot.gt_per_s < slot.max_gt_per_s:
        text = f"{name} runs {slot.gt_per_s:g} of {slot.max_gt_per_s:g} GT/s"
        if gpu:  # the driver slows the links of idle GPUs down
            text += ": idle GPUs do, to save power"
            remedy = "look again while it computes: `nvidia-smi -q | grep -A4 'GPU Link Info'`"
            findings.append(Finding("info", CHECK, text, remedy))
        else:
            findings.append(Finding("warn", CHECK, f"{text}: trained down", SLOT_REMEDY))
    return findings
