"""Processors, PCIe bridges and GPUs of hwloc in the words of NCCL's topology XML, so that it can be written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from topocomm.topology.inference.gpu_vendor import VENDOR
from topocomm.topology.readers.hwloc.hwloc_devices import AMD, Gpu, family, number
from topocomm.topology.readers.hwloc.hwloc_objects import HwlocObject, Place
from topocomm.topology.readers.nccl.xml.nccl_xml_facts import BRIDGE_IDS, IDS

_ARCH = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "arm64", "arm64": "arm64", "ppc64": "ppc64"}
_ARCH |= {"ppc64le": "ppc64"}
_PAIR = re.compile(r"\[?([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\]?")
_OLD_FAMILIES = 15
"""The processor says what is beyond it in a second field, which NCCL adds sixteenfold: 25 becomes 175."""


def hardware(root: HwlocObject, gpus: Sequence[Gpu], places: Sequence[Place]) -> dict[str, Any]:
    """The facts `cpus`, `bridge_ids`, `gpu_dev` (the driver's numbers) and the GPUs' vendor, each where it is said."""
    objects = list(root.walk())
    packages = [o for o in objects if o.type == "Package"]
    cpus = []
    for place in places:
        own = [package for package in packages if package.cpuset & place.cpuset] or packages
        given = _cpu({**root.infos, **(own[0].infos if own else {})})
        if place.numa is not None and given:
            cpus.append({"numaid": str(place.numa), **given})
    bridges = {o.bus_id: _ids(o.infos.get("pci_ids", "")) for o in objects if o.type == "PCIBridge" and o.bus_id}
    found: dict[str, Any] = {"cpus": cpus, BRIDGE_IDS: {bus_id: ids for bus_id, ids in bridges.items() if ids}}
    for driver in ("nvml", "rsmi"):
        numbers = [[number(d.name) for d in gpu.os_devices if family(d.name) == driver] for gpu in gpus]
        if gpus and all(len(each) == 1 and len(each[0]) == 1 for each in numbers):
            found["gpu_dev"] = {gpu.id: each[0][0] for gpu, each in zip(gpus, numbers, strict=True)}
    if any(gpu.holder.vendor == AMD or any(family(d.name) == "rsmi" for d in gpu.os_devices) for gpu in gpus):
        found[VENDOR] = "AMD"
    return {key: value for key, value in found.items() if value}


def _cpu(infos: dict[str, str]) -> dict[str, str]:
    """Architecture, vendor and model; only processors with CPUID have a vendor of this name."""
    vendor = infos.get("CPUVendor")
    arch = _ARCH.get(infos.get("Architecture", ""), "x86_64" if vendor in ("GenuineIntel", "AuthenticAMD") else None)
    found = {} if arch is None else {"arch": arch}
    if arch != "x86_64" or not vendor:
        return found
    found["vendor"] = vendor
    numbers = [infos.get(key, "") for key in ("CPUFamilyNumber", "CPUModelNumber")]
    if all(re.fullmatch(r"\d{1,4}", text) for text in numbers):
        own, model = map(int, numbers)
        own = own if own < _OLD_FAMILIES else _OLD_FAMILIES + 16 * (own - _OLD_FAMILIES)
        found |= {"familyid": str(own), "modelid": str(model)}
    return found


def _ids(text: str) -> dict[str, str]:
    """Of `[1000:c010] [1000:a096]`, device and subsystem, or of `1000:c010`."""
    parts = [part for pair in _PAIR.findall(text) for part in pair]
    return {key: f"0x{part.lower()}" for key, part in zip(IDS, parts, strict=False)}
