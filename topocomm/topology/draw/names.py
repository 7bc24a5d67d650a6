"""Short names of devices, links and lists of them, in the form of NCCL's system tree: `TYPE[GB/s] - NODE/id`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from topocomm.topology.inference.nccl_paths import is_port
from topocomm.topology.model import Device, Link, Topology

_TYPES = {
    "nvlink": "NVL",
    "xgmi": "XGMI",
    "xgmi-cpu": "XGMI",
    "pcie": "PCI",
    "smp": "SMP",
    "network": "NET",
    "shared-memory": "SHM",
}
_PREFIXES = ("nvswitch", "pcie", "bridge", "adapter", "card", "domain", "host", "numa", "gpu", "nic", "cpu")
_SWITCHES = {"nvswitch": "NVS", "pcie": "PCI", "bridge": "HB", "adapter": "ADP", "card": "ADP"}


def figure(link: Link) -> str:
    """Type and GB/s of a link: `NVL[450]`; a question mark where GB/s is not known."""
    rate = "?" if link.gb_per_s is None else f"{link.gb_per_s:.4g}"
    return f"{_TYPES.get(link.kind, link.kind.upper())}[{rate}]"


def label(device: Device) -> str:
    """Kind and number of a device, without its host: `GPU/0`, `NIC/mlx5_0`, `NUMA/?` where the number is unknown."""
    local = device.id.rsplit("/", 1)[-1]
    split = re.fullmatch(rf"({'|'.join(_PREFIXES)})(\d+)", local, re.IGNORECASE)
    stem, ident = (split[1].lower(), split[2]) if split else ("", local)
    if device.kind == "numa":
        ident = "?" if device.numa is None else str(device.numa)
    return f"{_kind(device, stem)}/{ident}"


def _kind(device: Device, stem: str) -> str:
    if device.kind != "switch":
        return device.kind.upper()
    return "PORT" if is_port(device) else _SWITCHES.get(stem, "SW")


def named(device: Device) -> str:
    """The label, with the device's own name where it has another."""
    text = label(device)
    if device.kind == "nic" and device.name and device.name not in text:
        text += f" {device.name}"
    return text


def ranges(names: Iterable[str]) -> str:
    """Names with numbers drawn together: GPU/0 GPU/1 GPU/2 GPU/5 is `GPU/0-2,5`; others stay as they are."""
    runs: dict[str, list[list[int]]] = {}
    for name in names:
        split = re.fullmatch(r"(.*?)(\d{1,9})", name)
        if split is None:
            runs.setdefault(name, [])
            continue
        stem, number = split[1], int(split[2])
        mine = runs.setdefault(stem, [])
        if mine and mine[-1][1] == number - 1:
            mine[-1][1] = number
        else:
            mine.append([number, number])
    return ", ".join(stem + ",".join(str(a) if a == b else f"{a}-{b}" for a, b in mine) for stem, mine in runs.items())


def listed(devices: Sequence[Device]) -> str:
    """Devices in one phrase, by ranges; with their own names where they have such and it stays short."""
    full = ", ".join(map(named, devices))
    short = ranges(map(label, devices))
    return full if len(full) <= 44 and any(named(d) != label(d) for d in devices) else short


def plural(count: int, word: str) -> str:
    """`1 GPU`, `8 GPUs`, `2 switches`."""
    return f"{count} {word}" + ("" if count == 1 else "es" if word.endswith("ch") else "s")


_SWITCH_WORDS = {
    "NVS": "NVSwitch",
    "PCI": "PCIe switch",
    "HB": "host bridge",
    "ADP": "network card",
    "PORT": "further NIC port",
    "SW": "network switch",
}


def counts(topology: Topology) -> str:
    """`8 GPUs, 4 NICs, 2 NUMA nodes on 2 hosts; GPU pairs: 28 NV18`."""
    kinds = Counter(d.kind for d in topology.devices)
    words = [plural(kinds["gpu"], "GPU"), plural(kinds["cpu"], "core")]
    words += [plural(kinds["nic"], "NIC"), plural(kinds["numa"] or _named_numas(topology), "NUMA node")]
    switches = Counter(label(d).split("/")[0] for d in topology.devices if d.kind == "switch")
    words += [plural(switches[short], word) for short, word in _SWITCH_WORDS.items()]
    shown = ", ".join(word for word in words if not word.startswith("0 "))
    hosts = f" on {plural(len(topology.hosts), 'host')}" if len(topology.hosts) > 1 else ""
    gpus = {d.id for d in topology.devices if d.kind == "gpu"}
    codes = Counter(pair.code or "?" for pair in topology.pairs if pair.a in gpus and pair.b in gpus)
    pairs = ", ".join(f"{n} {code}" for code, n in codes.most_common())
    return f"{shown or 'no devices'}{hosts}" + (f"; GPU pairs: {pairs}" if pairs else "")


def _named_numas(topology: Topology) -> int:
    return len({(d.host, d.numa) for d in topology.devices if d.numa is not None})
