"""Catalogue systems for simulation in NCCL or RCCL, with made-up bus ids, ranks and processors.

NCCL's graph code, linked without a GPU, plans from a topology file alone, as in RCCL's `tools/topo_expl`.
"""

from __future__ import annotations

from typing import Any

from topocomm.errors import TopologyError
from topocomm.topology.catalog.reference_hosts import Host
from topocomm.topology.catalog.systems import SYSTEMS, reference_host
from topocomm.topology.inference.host_tree import LEVELS, host_tree
from topocomm.topology.links import KINDS
from topocomm.topology.model import Device, Link, Topology

SIMULATED = "simulated"
"""The fact that marks such a topology."""

_INTEL = {"arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6"}
_AMD = {"arch": "x86_64", "vendor": "AuthenticAMD"}
_BROADWELL, _SKYLAKE = {**_INTEL, "modelid": "79"}, {**_INTEL, "modelid": "85"}
_CASCADE_LAKE = _SKYLAKE  # one model number, told apart by steppings
_SAPPHIRE, _EMERALD = {**_INTEL, "modelid": "143"}, {**_INTEL, "modelid": "207"}
_ROME, _MILAN = {**_AMD, "familyid": "143", "modelid": "49"}, {**_AMD, "familyid": "175", "modelid": "1"}

CPUS: dict[str, dict[str, str]] = {
    "dgx-1-v100": _BROADWELL,
    "dgx-1-p100": _BROADWELL,
    "dgx-2": _SKYLAKE,
    "v100-4": _SKYLAKE,
    "p3dn": _SKYLAKE,
    "hgx-a100-4": _ROME,
    "dgx-a100": _ROME,
    "p4d": _CASCADE_LAKE,
    "a100-pcie-2": _ROME,
    "a100-pcie-4": _ROME,
    "dgx-h100": _SAPPHIRE,
    "dgx-h100-taper2": _SAPPHIRE,
    "dgx-h200": _SAPPHIRE,
    "dgx-b200": _EMERALD,
    "gb200-nvl72": {"arch": "arm64"},
    "mi100-8": _ROME,
    "mi250x": {**_AMD, "familyid": "175", "modelid": "48"},
    "rtx4090-pcie-4": _MILAN,
    "rtx4090-pcie-4-2-socket": _MILAN,
    "rtx4090-pcie-8": _MILAN,
    "rtx4090-pcie-8-1-socket": _MILAN,
}
"""Processors in the words of NCCL's XML: those of NVIDIA's user guides (Xeon E5-2698 v4, Platinum 8168, EPYC 7742, Xeon
8480C, Xeon 8570, Grace), of JUWELS Booster (EPYC 7402) and of RCCL's model files; EPYC as the catalogue says. The rest
of its systems names none."""

_SM = {"dgx-1-p100": 60, "dgx-1-v100": 70, "dgx-2": 70, "hgx-a100-4": 80, "dgx-a100": 80, "dgx-h100": 90}
_SM |= {"dgx-h100-taper2": 90, "dgx-h200": 90, "dgx-b200": 100, "gb200-nvl72": 100, "rtx3090-pair": 86}
_SM |= {"v100-4": 70, "p3dn": 70, "p4d": 80, "a100-pcie-2": 80, "a100-pcie-4": 80}
_SM |= dict.fromkeys((name for name in SYSTEMS if name.startswith("rtx4090")), 89)
_GCN = {"mi100-8": ("gfx908", 120), "mi250x": ("gfx90a", 110), "mi300x-8": ("gfx942", 304)}
_GCN["mi325x-8"] = _GCN["mi300x-8"]
"""Architecture and compute units of one GPU."""


def simulated(name: str) -> Topology:
    """Return one host of a catalogue system with bus ids, for `export.nccl_xml_writer`.

    Raises:
        TopologyError: No such system, or it has no GPU.
    """
    host = reference_host(name)
    ends = []
    for device in host.devices:
        if device.kind in ("gpu", "nic"):  # GPUs on every 8th bus from 0x10, NICs on every 4th from 0x90, by number
            number = int(device.id[3:])
            bus = 0x10 + 8 * number if device.kind == "gpu" else 0x90 + 4 * number
            ends.append(device._replace(bus_id=f"0000:{bus:02x}:00.0", name=device.name or device.id))
    if all(device.kind != "gpu" for device in ends):
        raise TopologyError(f"system {name}: no GPU, so there is nothing for NCCL to plan; name one that has GPUs")
    tree, links = _tree(host, ends)
    gpus, nics = ({d.id: int(d.id[3:]) for d in ends if d.kind == kind} for kind in ("gpu", "nic"))
    facts: dict[str, Any] = {
        SIMULATED: True,
        "gpu_dev": gpus,
        "gpu_rank": gpus,
        "net_dev": nics,
        "net_speed_mbps": round(KINDS[host.port].gb_per_s * 8000),
    }
    if name in _SM:
        facts["sm"] = _SM[name]
    if name in _GCN:
        facts["gcn"], facts["compute_units"] = _GCN[name]
    if name in CPUS:
        facts["cpus"] = [{"numaid": str(d.numa), **CPUS[name]} for d in tree if d.kind == "numa"]
    if host.trays > 1:
        facts["trays"] = host.trays
    return Topology(name, "catalogue", (*ends, *tree), links, host.pairs, facts=facts)


def _tree(host: Host, ends: list[Device]) -> tuple[tuple[Device, ...], tuple[Link, ...]]:
    """The catalogue's PCIe tree where it joins all GPUs and NICs, else one from pair codes and uplinks."""
    rest = tuple(device for device in host.devices if device.kind not in ("gpu", "nic"))
    joined = {link.src for link in host.links if link.kind == "pcie"}
    if all(device.id in joined for device in ends):
        return rest, host.links
    rates = {link.gb_per_s for link in host.uplinks}
    row = next((name for name, kind in KINDS.items() if kind.family == "pcie" and kind.gb_per_s in rates), "pcie")
    codes = {(pair.a, pair.b): pair.code for pair in host.pairs if pair.code in LEVELS}
    derived = host_tree(ends, codes, pcie=row)
    inside = {device.id for device in ends}
    fabric = tuple(link for link in host.links if link.kind in ("nvlink", "xgmi"))
    kept = {end for link in fabric for end in link[:2]} - inside
    tree = tuple(device for device in derived.devices if device.id not in inside)
    return (*tree, *(device for device in rest if device.id in kept)), (*fabric, *derived.links)
