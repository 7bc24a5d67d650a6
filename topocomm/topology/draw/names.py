"""Short names of devices, links and lists of them, as in NCCL's system tree (`TYPE[GB/s] - NODE/id`), and counts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from topocomm.topology.inference.cpu_lists import number_ranges
from topocomm.topology.inference.nccl_paths import is_port
from topocomm.topology.model import Device, Link, Topology

_LINKS = {
    "nvlink": ("NVL", "NVLink"),
    "xgmi": ("XGMI", "xGMI"),
    "xgmi-cpu": ("XGMI", "xGMI to the CPU"),
    "pcie": ("PCI", "PCIe"),
    "smp": ("SMP", "between NUMA nodes (SMP)"),
    "network": ("NET", "network"),
    "shared-memory": ("SHM", "shared memory"),
}
"""Short and full name of each kind of link."""
_PREFIXES = ("nvswitch", "pcie", "bridge", "adapter", "card", "domain", "host", "numa", "gpu", "nic", "cpu")
_SWITCHES = {"nvswitch": "NVS", "pcie": "PCI", "bridge": "HB", "adapter": "ADP", "card": "ADP"}
_SWITCH_WORDS = {
    "NVS": "NVSwitch",
    "PCI": "PCIe switch",
    "HB": "host bridge",
    "ADP": "network card",
    "PORT": "further NIC port",
    "SW": "network switch",
}


def figure(link: Link) -> str:
    """Return type and GB/s of a link: `NVL[450]`, or `NVL[?]` where GB/s is unknown."""
    rate = "?" if link.gb_per_s is None else f"{link.gb_per_s:.4g}"
    short, _ = _LINKS.get(link.kind, (link.kind.upper(), ""))
    return f"{short}[{rate}]"


def rate_words(gb_per_s: float | None) -> str:
    """Return a rate in words, to three digits: 449.9999 and 450 are both `450 GB/s`."""
    return "GB/s not known" if gb_per_s is None else f"{rounded(gb_per_s)} GB/s"


def rounded(figure: float) -> str:
    """Return a figure to three digits, or whole where it has more before the point."""
    return f"{figure:.0f}" if abs(figure) >= 999.5 else f"{figure:.3g}"


def kind_words(kind: str) -> str:
    """Return the display name of a kind of link."""
    return _LINKS[kind][1] if kind in _LINKS else kind


def label(device: Device) -> str:
    """Return kind and number of a device, without its host: `GPU/0`, `NIC/mlx5_0`, `NUMA/?` without a number."""
    local_id = device.id.rsplit("/", 1)[-1]
    split = re.fullmatch(rf"({'|'.join(_PREFIXES)})(\d+)", local_id, re.IGNORECASE)
    prefix, ident = (split[1].lower(), split[2]) if split else ("", local_id)
    if device.kind == "numa":
        ident = "?" if device.numa is None else str(device.numa)
    kind = device.kind.upper()
    if device.kind == "switch":
        kind = "PORT" if is_port(device) else _SWITCHES.get(prefix, "SW")
    return f"{kind}/{ident}"


def named(device: Device) -> str:
    """Return the label of a device, followed by the operating system's name of a NIC where that differs."""
    text = label(device)
    return f"{text} {device.name}" if device.kind == "nic" and device.name and device.name not in text else text


def ranges(names: Iterable[str]) -> str:
    """Join names and draw their numbers together: GPU/0 GPU/1 GPU/2 GPU/5 is `GPU/0-2,5`."""
    numbers_of: dict[str, list[int]] = {}
    for name in names:
        split = re.fullmatch(r"(.*?)(\d{1,9})", name)
        numbers = numbers_of.setdefault(split[1] if split else name, [])
        if split:
            numbers.append(int(split[2]))
    return ", ".join(prefix + number_ranges(numbers) for prefix, numbers in numbers_of.items())


def some(names: Sequence[str], limit: int = 4) -> str:
    """Return the first names as a phrase, and the number of the others."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def listed(devices: Sequence[Device]) -> str:
    """Return devices in one phrase, by ranges; with their own names where the phrase stays short."""
    full = ", ".join(map(named, devices))
    return full if len(full) <= 44 and any(named(d) != label(d) for d in devices) else ranges(map(label, devices))


def plural(count: int, word: str) -> str:
    """Return `1 GPU`, `8 GPUs`, `2 switches`."""
    return f"{count} {word}" + ("" if count == 1 else "es" if word.endswith("ch") else "s")


def counts(topology: Topology) -> str:
    """Count devices and pair codes: `8 GPUs, 4 NICs, 2 NUMA nodes on 2 hosts; GPU pairs: 28 NV18`."""
    kinds = Counter(d.kind for d in topology.devices)
    numas = kinds["numa"] or len({(d.host, d.numa) for d in topology.devices if d.numa is not None})
    words = [plural(kinds["gpu"], "GPU"), plural(kinds["cpu"], "core")]
    words += [plural(kinds["nic"], "NIC"), plural(numas, "NUMA node")]
    switches = Counter(label(d).split("/")[0] for d in topology.devices if d.kind == "switch")
    words += [plural(switches[short], word) for short, word in _SWITCH_WORDS.items()]
    shown = ", ".join(word for word in words if not word.startswith("0 "))
    hosts = f" on {plural(len(topology.hosts), 'host')}" if len(topology.hosts) > 1 else ""
    gpus = {d.id for d in topology.devices if d.kind == "gpu"}
    codes = Counter(pair.code or "?" for pair in topology.pairs if pair.a in gpus and pair.b in gpus)
    pairs = ", ".join(f"{n} {code}" for code, n in codes.most_common())
    return f"{shown or 'no devices'}{hosts}" + (f"; GPU pairs: {pairs}" if pairs else "")
