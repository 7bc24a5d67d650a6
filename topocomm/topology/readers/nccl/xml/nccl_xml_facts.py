"""What NCCL's topology XML says beyond devices, links and pairs, as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from topocomm.topology.inference.host_tree import merge_groups
from topocomm.topology.model import Pair
from topocomm.topology.readers.nccl.xml.nccl_xml_devices import Cpu, Gpu, System
from topocomm.topology.readers.nccl.xml.nccl_xml_fabric import Fabric, gcn_of
from topocomm.topology.readers.nccl.xml.nccl_xml_values import BRIDGE_IDS, IDS, cpu_words, mask_words

Facts = dict[str, Any]


def facts(system: System, fabric: Fabric, pairs: Sequence[Pair]) -> Facts:
    """Numbers, names and places by the words of the file; a key is absent where the file does not say it."""
    found = {
        "xml_version": system.version,
        "numa_nodes": len(system.cpus),
        "gpu_tags": system.gpu_elements,
        "nics": len({nic.pci or nic for nic in system.nics}),
        **_gpu_facts(system.gpus),
        **_nic_facts(system),
        **_pci_facts(system),
        **_cpu_facts(system.cpus),
        **_fabric_facts(system.gpus, fabric, pairs),
    }
    if not system.gpu_elements and system.gpus:
        found["links_note"] = "GPU numbers by order in the file"
    return found


def _gpu_facts(gpus: Sequence[Gpu]) -> Facts:
    tags = {gpu.id: gpu.element.attributes for gpu in gpus if gpu.element is not None}
    found: Facts = {}
    for key, fact in (("dev", "gpu_dev"), ("rank", "gpu_rank")):
        if numbers := {name: _number(given[key]) for name, given in tags.items() if key in given}:
            found[fact] = numbers
    amd = {gpu.id for gpu in gpus if gcn_of(gpu) is not None}
    sms = {name: _number(given["sm"]) for name, given in tags.items() if "sm" in given and name not in amd}
    units = {name: _number(tags[name]["sm"]) for name in tags if name in amd and "sm" in tags[name]}
    gcns = {gpu.id: gcn for gpu in gpus if (gcn := gcn_of(gpu)) is not None}
    for key, values in (("sm", sms), ("compute_units", units), ("gcn", gcns)):
        if values:
            found[key] = _one(values)
    gdr = [_number(given["gdr"]) for given in tags.values() if "gdr" in given]
    if gdr:
        found["gdr_gpus"] = sum(1 for value in gdr if value)
    return found


def _nic_facts(system: System) -> Facts:
    ports = [nic for nic in system.nics if nic.is_net]
    found: Facts = {}
    adapters = list(dict.fromkeys(p.bus_id for p in system.pcis if p.kind == "nic"))
    if adapters:
        found["nic_busids"] = adapters
    if ports:
        found["net_names"] = [nic.id for nic in ports]
        found["net_ports"] = len(ports)
        found["net_elements"] = system.net_elements
        found["net_physical"] = [nic.id for nic in ports if nic.pci is not None]
    numas = {nic.id: nic.cpus[0].numa for nic in system.nics if len(nic.cpus) == 1 and nic.cpus[0].numa is not None}
    if numas:
        found["nic_numa"] = numas
    speeds = {nic.id: _number(nic.element.attributes["speed"]) for nic in ports if "speed" in nic.element.attributes}
    if speeds:
        found["net_speed_mbps"] = _one(speeds)
    return found


def _pci_facts(system: System) -> Facts:
    found: Facts = {"pci_devices": len(system.pcis)}
    unknown = [pci for pci in system.pcis if pci.kind == "other" and "class" not in pci.element.attributes]
    if unknown:
        found["busids_file_order"] = [pci.bus_id for pci in unknown]
        found["numa_by_busid"] = {pci.bus_id: pci.cpu.numa for pci in unknown}
    bridges = [pci for pci in system.pcis if pci.kind == "bridge"]
    if bridges:
        found["bridges"] = [pci.bus_id for pci in bridges]
    given = {pci.bus_id: {k: v for k in IDS if (v := pci.element.attributes.get(k))} for pci in bridges}
    if ids := {bus_id: values for bus_id, values in given.items() if values}:
        found[BRIDGE_IDS] = ids
    groups = []
    for top in (top for cpu in system.cpus for top in cpu.children if top.kind == "bridge"):
        below = list(top.all())
        ends = [pci.bus_id for kind in ("gpu", "nic") for pci in below if pci.kind == kind]
        groups += [ends] if ends else []
    if groups:
        found["pcie_groups"] = groups
    speeds = {pci.element.attributes.get("link_speed") for pci in system.pcis}
    widths = {pci.element.attributes.get("link_width") for pci in system.pcis}
    speed, width = (next(iter(values)) if len(values) == 1 else None for values in (speeds, widths))
    if speed is not None:
        found["link_speed"] = speed
    if width is not None:
        found["link_width"] = _number(width)
    if speed and width:
        found["pcie"] = f"{speed.removesuffix(' PCIe')} x{width}"
    return found


def _cpu_facts(cpus: Sequence[Cpu]) -> Facts:
    found: Facts = {}
    keys = ("numaid", "arch", "vendor", "familyid", "modelid", "affinity")
    found["cpus"] = [
        {key: cpu.element.attributes[key] for key in keys if key in cpu.element.attributes} for cpu in cpus
    ]
    models = {tuple(cpu.element.attributes.get(key) for key in ("vendor", "familyid", "modelid")) for cpu in cpus}
    if len(models) == 1:
        vendor, family, model = models.pop()
        numbers = _number(family or ""), _number(model or "")
        if vendor and isinstance(numbers[0], int) and isinstance(numbers[1], int):
            found["cpu"] = cpu_words(vendor, numbers[0], numbers[1])
    typos = _mask_typos(cpus)
    if typos:
        found["affinity_typo"] = typos
    return found


def _mask_typos(cpus: Sequence[Cpu]) -> dict[str, str]:
    """Masks whose first word is shorter than those of the other processors, and what that loses."""
    masks = {id(cpu): mask_words(cpu.element.attributes.get("affinity")) for cpu in cpus}
    lengths = [len(words[0]) for words in masks.values() if words]
    counts = Counter(n for words in masks.values() if words for word in words if (n := int(word, 16).bit_count()))
    found = {}
    for cpu in cpus:
        words = masks[id(cpu)]
        if words and len(words[0]) < max(lengths):
            usual = counts.most_common(1)[0][0] if counts else 0
            mine = int(words[0], 16).bit_count()
            found[f"cpu {cpu.numa}"] = f"{words[0]},... ({len(words[0])} hex digits: {mine} CPUs instead of {usual})"
    return found


def _fabric_facts(gpus: Sequence[Gpu], fabric: Fabric, pairs: Sequence[Pair]) -> Facts:
    found: Facts = {}
    if any(gpu.element is not None for gpu in gpus):
        amd = any(gcn_of(gpu) is not None for gpu in gpus)
        key = "xgmi" if amd or fabric.tags == {"xgmi"} else "nvlink"
        found[f"{key}_total_per_gpu"] = dict(fabric.totals)
    if fabric.loops:
        found["self_nvlinks"] = dict(fabric.loops)
    if fabric.switches:
        found["nvswitch"] = True
        found["nvswitch_busids"] = {switch: _one(counts) for switch, counts in sorted(fabric.switches.items())}
    names = [gpu.id for gpu in gpus]
    direct = [(link.src, link.dst) for link in fabric.links if link.kind in ("nvlink", "xgmi")]
    direct = [pair for pair in direct if set(pair) <= set(names)]
    if direct:
        islands = merge_groups([(name,) for name in names], direct)
        found["xgmi_components" if "xgmi" in fabric.tags else "nvlink_components"] = [
            [int(name[3:]) for name in island] for island in islands
        ]
        inside = set(names)
        ends = {(pair.a, pair.b) for pair in pairs if pair.b in inside}
        found["missing_pairs"] = [f"{a}-{b}" for a, b in sorted(ends - set(direct), key=_order(names))]
    return found


def _order(names: Sequence[str]) -> Callable[[tuple[str, str]], tuple[int, int]]:
    place = {name: i for i, name in enumerate(names)}
    return lambda pair: (place[pair[0]], place[pair[1]])


def _one(values: dict[str, Any]) -> Any:
    """The value that all have, else the values by name."""
    first = next(iter(values.values()))
    return first if all(value == first for value in values.values()) else values


def _number(text: str) -> int | str:
    """A number of the file; the text where it is none."""
    try:
        return int(text, 16 if text.strip().lower().startswith("0x") else 10)
    except ValueError:
        return text
