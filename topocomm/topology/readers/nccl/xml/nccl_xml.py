"""NCCL's topology XML, as NCCL_TOPO_DUMP_FILE writes it and NCCL_TOPO_FILE reads it; also RCCL's, version 2.

It describes a host, or the hosts of one NVLink domain. PCIe has the nominal GB/s of its speed and width, NVLink and
xGMI that of the generation that `sm` or `gcn` tells. Pair codes are derived by NCCL's rules (`nccl_paths`). GPUs are
numbered by `dev`, or in the order of the file where it has no `<gpu>`. Templates of clouds, which leave to NCCL what it
finds on the machine, are read as far as they go. Only the first `<system>` of a text counts.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from topocomm.topology.inference import nccl_paths
from topocomm.topology.inference.host_tree import merge_groups
from topocomm.topology.links import PATH_LATENCY_US
from topocomm.topology.model import Pair, Topology
from topocomm.topology.readers.nccl.xml.nccl_xml_devices import Cpu, Gpu, Notes, System
from topocomm.topology.readers.nccl.xml.nccl_xml_fabric import Fabric, gcn_of
from topocomm.topology.readers.nccl.xml.nccl_xml_graph import Graph
from topocomm.topology.readers.nccl.xml.nccl_xml_values import BRIDGE_IDS, IDS, cpu_words, mask_words
from topocomm.topology.readers.plain import safe_xml
from topocomm.topology.readers.plain.paste import same_or_all

SOURCE = "NCCL topology XML"

_SYSTEM = re.compile(r"<system\b[^<>]{0,500}>")
_CPU = re.compile(r"<cpu\b[^<>]{0,500}\bnumaid\s*=")
_ESCAPE = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")

Facts = dict[str, Any]
_MAY_BE_EMPTY = ("net_physical", "missing_pairs")
"""Facts that say something where they are empty."""


def matches(text: str) -> bool:
    """Return whether the text holds a `<system>` with a version or processors, or processors that lost it."""
    text = _unescaped(text)
    system = _SYSTEM.search(text)
    return (system is not None and ("version" in system[0] or "<cpu" in text)) or _CPU.search(text) is not None


def read(text: str, name: str) -> Topology:
    """Return the host, or the hosts of one NVLink domain, that a file describes."""
    document, second = _document(text)
    root = safe_xml.parse(document, name)
    notes = Notes(name)
    system = System(root, name, notes)
    if second is not None:
        place = safe_xml.Element("system", {}, second)
        notes.add("a second <system> starts here; only the first is read", place, "several files")
    graph = Graph(system, name, notes)
    links = Fabric(system, name, notes)
    stem = PurePath(name).stem
    bare = Topology(stem, SOURCE, (*graph.devices, *links.devices), (*links.links, *graph.links))
    virtual = {nic.id: {cpu.device for cpu in nic.cpus} for nic in system.nics if len(nic.cpus) > 1}
    home = {gpu.id: gpu.pci.cpu.device for gpu in system.gpus}
    pairs = []
    for pair in nccl_paths.pairs(bare):
        if pair.b in virtual:  # a NIC without PCI device under several processors is near to the GPUs of each
            code = "PHB" if home[pair.a] in virtual[pair.b] else "SYS"
            pair = pair._replace(code=code, latency_us=PATH_LATENCY_US[code], latency_us_source="assumed")
        pairs.append(pair)
    facts: Facts = {  # in the words of the file
        "xml_version": system.version,
        "numa_nodes": len(system.cpus),
        "gpu_tags": system.gpu_elements,
        "nics": len({nic.pci or nic for nic in system.nics}),
        **_gpu_facts(system.gpus),
        **_nic_facts(system),
        **_pci_facts(system),
        **_cpu_facts(system.cpus),
        **_fabric_facts(system.gpus, links, pairs),
        "links_note": "GPU numbers by order in the file" if not system.gpu_elements and system.gpus else None,
        "slow_ports": graph.slow_ports,
    }
    facts = {key: value for key, value in facts.items() if value not in (None, [], {}) or key in _MAY_BE_EMPTY}
    if not system.gpus:
        notes.add("no GPU: nothing has a <gpu> or a GPU's class; NCCL finds out on the machine", root, "<system>")
    return replace(bare, pairs=tuple(pairs), facts=facts, warnings=notes.warnings())


def _unescaped(text: str) -> str:
    """Return the text with angle brackets where a copy of a web page's source spells them out."""
    return html.unescape(text) if "<" not in text and "&lt;system" in text else text


def _document(text: str) -> tuple[str, int | None]:
    """Return the first `<system>` alone, on its own lines, and the line of a second one.

    Comments, terminal escapes, and the text around it are removed.
    """
    escaped = _ESCAPE.sub("", _unescaped(text))
    parts = []
    done = 0  # a comment may hold a `<system>` of its own, or hyphens that XML forbids
    while (start := escaped.find("<!--", done)) >= 0 and (end := escaped.find("-->", start)) >= 0:
        parts += [escaped[done:start], "\n" * escaped.count("\n", start, end)]
        done = end + 3
    text = "".join([*parts, escaped[done:]])
    first = _SYSTEM.search(text)
    if first is None:
        return text, None
    start, close = first.start(), "</system>"
    end = first.end() if first[0].endswith("/>") else text.find(close, first.end()) + len(close)
    if end < first.end():
        end = len(text)
    column = start - (text.rfind("\n", 0, start) + 1)
    again = _SYSTEM.search(text, end)
    second = None if again is None else text.count("\n", 0, again.start()) + 1
    return "\n" * text.count("\n", 0, start) + " " * column + text[start:end], second


def _gpu_facts(gpus: Sequence[Gpu]) -> Facts:
    tags = {gpu.id: gpu.element.attributes for gpu in gpus if gpu.element is not None}

    def numbers(key: str) -> dict[str, int | str]:
        return {gpu: _number(attributes[key]) for gpu, attributes in tags.items() if key in attributes}

    gcns = {gpu.id: gcn for gpu in gpus if (gcn := gcn_of(gpu)) is not None}
    sms, gdr = numbers("sm"), numbers("gdr")
    return {
        "gpu_dev": numbers("dev"),
        "gpu_rank": numbers("rank"),
        "sm": same_or_all({gpu: sm for gpu, sm in sms.items() if gpu not in gcns}),
        "compute_units": same_or_all({gpu: sm for gpu, sm in sms.items() if gpu in gcns}),
        "gcn": same_or_all(gcns),
        "gdr_gpus": sum(1 for value in gdr.values() if value) if gdr else None,
    }


def _nic_facts(system: System) -> Facts:
    ports = [nic for nic in system.nics if nic.is_net]
    alone = [nic for nic in system.nics if len(nic.cpus) == 1 and nic.cpus[0].numa is not None]
    speeds = {nic.id: _number(nic.element.attributes["speed"]) for nic in ports if "speed" in nic.element.attributes}
    of_ports: Facts = {
        "net_names": [nic.id for nic in ports],
        "net_ports": len(ports),
        "net_elements": system.net_elements,
        "net_physical": [nic.id for nic in ports if nic.pci is not None],
    }
    return {
        "nic_busids": list(dict.fromkeys(p.bus_id for p in system.pcis if p.kind == "nic")),
        **(of_ports if ports else {}),
        "nic_numa": {nic.id: nic.cpus[0].numa for nic in alone},
        "net_speed_mbps": same_or_all(speeds),
    }


def _pci_facts(system: System) -> Facts:
    unknown = [pci for pci in system.pcis if pci.kind == "other" and "class" not in pci.element.attributes]
    bridges = [pci for pci in system.pcis if pci.kind == "bridge"]
    ids = {pci.bus_id: {key: v for key in IDS if (v := pci.element.attributes.get(key))} for pci in bridges}
    below = [list(top.all()) for cpu in system.cpus for top in cpu.children if top.kind == "bridge"]
    groups = [[pci.bus_id for kind in ("gpu", "nic") for pci in group if pci.kind == kind] for group in below]
    speeds = {pci.element.attributes.get("link_speed") for pci in system.pcis}
    widths = {pci.element.attributes.get("link_width") for pci in system.pcis}
    speed, width = (next(iter(values)) if len(values) == 1 else None for values in (speeds, widths))
    return {
        "pci_devices": len(system.pcis),
        "busids_file_order": [pci.bus_id for pci in unknown],
        "numa_by_busid": {pci.bus_id: pci.cpu.numa for pci in unknown},
        "bridges": [pci.bus_id for pci in bridges],
        BRIDGE_IDS: {bus_id: values for bus_id, values in ids.items() if values},
        "pcie_groups": [ends for ends in groups if ends],
        "link_speed": speed,
        "link_width": None if width is None else _number(width),
        "pcie": f"{speed.removesuffix(' PCIe')} x{width}" if speed and width else None,
    }


def _cpu_facts(cpus: Sequence[Cpu]) -> Facts:
    keys = ("numaid", "arch", "vendor", "familyid", "modelid", "affinity")
    processors = [{key: cpu.element.attributes[key] for key in keys if key in cpu.element.attributes} for cpu in cpus]
    models = {tuple(attributes.get(key, "") for key in ("vendor", "familyid", "modelid")) for attributes in processors}
    words = None
    if len(models) == 1:
        vendor, *rest = models.pop()
        family, model = map(_number, rest)
        if vendor and isinstance(family, int) and isinstance(model, int):
            words = cpu_words(vendor, family, model)
    return {"cpus": processors, "cpu": words, "affinity_typo": _mask_typos(cpus)}


def _mask_typos(cpus: Sequence[Cpu]) -> dict[str, str]:
    """Return masks whose first word is shorter than those of the other processors, and how many CPUs that loses."""
    masks = {id(cpu): mask_words(cpu.element.attributes.get("affinity")) for cpu in cpus}
    lengths = [len(words[0]) for words in masks.values() if words]
    counts = Counter(n for words in masks.values() if words for word in words if (n := int(word, 16).bit_count()))
    usual = counts.most_common(1)[0][0] if counts else 0
    typos = {}
    for cpu in cpus:
        words = masks[id(cpu)]
        if words and len(words[0]) < max(lengths):
            got = int(words[0], 16).bit_count()
            typos[f"cpu {cpu.numa}"] = f"{words[0]},... ({len(words[0])} hex digits: {got} CPUs instead of {usual})"
    return typos


def _fabric_facts(gpus: Sequence[Gpu], fabric: Fabric, pairs: Sequence[Pair]) -> Facts:
    facts: Facts = {}
    if any(gpu.element is not None for gpu in gpus):
        amd = any(gcn_of(gpu) is not None for gpu in gpus)
        key = "xgmi" if amd or fabric.tags == {"xgmi"} else "nvlink"
        facts[f"{key}_total_per_gpu"] = dict(fabric.totals)
    if fabric.loops:
        facts["self_nvlinks"] = dict(fabric.loops)
    if fabric.switches:
        facts["nvswitch"] = True
        facts["nvswitch_busids"] = {switch: same_or_all(counts) for switch, counts in sorted(fabric.switches.items())}
    order = {gpu.id: i for i, gpu in enumerate(gpus)}
    direct = [(link.src, link.dst) for link in fabric.links if link.kind in ("nvlink", "xgmi")]
    direct = [pair for pair in direct if set(pair) <= set(order)]
    if direct:
        islands = merge_groups([(name,) for name in order], direct)
        components = [[int(name[3:]) for name in island] for island in islands]
        facts["xgmi_components" if "xgmi" in fabric.tags else "nvlink_components"] = components
        missing = {(pair.a, pair.b) for pair in pairs if pair.b in order} - set(direct)
        in_order = sorted(missing, key=lambda pair: (order[pair[0]], order[pair[1]]))
        facts["missing_pairs"] = [f"{a}-{b}" for a, b in in_order]
    return facts


def _number(text: str) -> int | str:
    """Return a number of the file; the text where it is none."""
    try:
        return int(text, 16 if text.strip().lower().startswith("0x") else 10)
    except ValueError:
        return text
