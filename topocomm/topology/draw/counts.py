"""What a topology has, counted."""

from __future__ import annotations

from collections import Counter

from topocomm.topology.draw.names import label, plural
from topocomm.topology.model import Topology

_SWITCHES = {
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
    words += [plural(switches[short], word) for short, word in _SWITCHES.items()]
    shown = ", ".join(word for word in words if not word.startswith("0 "))
    hosts = f" on {plural(len(topology.hosts), 'host')}" if len(topology.hosts) > 1 else ""
    gpus = {d.id for d in topology.devices if d.kind == "gpu"}
    codes = Counter(pair.code or "?" for pair in topology.pairs if pair.a in gpus and pair.b in gpus)
    pairs = ", ".join(f"{n} {code}" for code, n in codes.most_common())
    return f"{shown or 'no devices'}{hosts}" + (f"; GPU pairs: {pairs}" if pairs else "")


def _named_numas(topology: Topology) -> int:
    return len({(d.host, d.numa) for d in topology.devices if d.numa is not None})
