"""Processors, PCIe switches and GPUs of an NCCL log in the words of NCCL's topology XML, so that it can be written."""

from __future__ import annotations

import re
from typing import Any

from topocomm.topology.inference.gpu_vendor import VENDOR
from topocomm.topology.readers.nccl.log.nccl_log_comms import Communicator
from topocomm.topology.readers.nccl.log.nccl_log_fabric import address, numa_of
from topocomm.topology.readers.nccl.log.nccl_log_lines import Part
from topocomm.topology.readers.nccl.log.nccl_log_machines import Machine
from topocomm.topology.readers.nccl.xml.nccl_xml_values import BRIDGE_IDS, IDS

_AMD = re.compile(r"\bRCCL\b|\+hip\d|\blibrccl|\bXGMI\b|\bROCm\b|\brocm_smi|\bHIP\b|\bgfx\d{3}|\bnRanks \d\d busId")
"""What RCCL writes and NCCL does not; the last behind rings and trees."""

_ARCH = {1: "x86_64", 2: "ppc64", 3: "arm64"}
_VENDOR = {1: "GenuineIntel", 2: "AuthenticAMD", 3: "CentaurHauls"}
_INTEL_MODEL = {1: 0x4F, 2: 0x55, 3: 0x8F, 4: 0xCF}
"""Numbers of `src/include/graph.h`. Of Intel's model a log names only the class: here the first model of it."""


def hardware(comm: Communicator, machines: list[Machine], parts: list[Part]) -> dict[str, Any]:
    """The facts `cpus`, `bridge_ids`, `gpu_dev` (the driver's numbers) and `gpu_rank` of one machine.

    A log of several machines gives the vendor of the GPUs alone, because the numbers of NUMA nodes repeat.
    """
    found: dict[str, Any] = {VENDOR: "AMD"} if any(_AMD.search(part.text) for part in parts) else {}
    if len(machines) != 1:
        return found
    machine = machines[0]
    tree = machine.system
    ranks = [] if machine.guessed else sorted(machine.members)
    found["gpu_rank"] = {f"GPU{rank}": rank for rank in ranks}
    devs = {s.rank: s.nvml_dev for s in comm.sessions if s.rank is not None and s.nvml_dev is not None}
    if ranks and set(ranks) <= set(devs):
        found["gpu_dev"] = {f"GPU{rank}": devs[rank] for rank in ranks}
    if tree is not None:
        cpus = [(numa_of(machine, cpu), _cpu(tree.about.get(cpu, ""))) for cpu in dict.fromkeys(tree.roots)]
        found["cpus"] = [{"numaid": str(numa), **given} for numa, given in cpus if numa is not None and given]
        bridges = {address(node.id): _ids(text) for node, text in tree.about.items() if node.type == "PCI"}
        found[BRIDGE_IDS] = {bus_id: ids for bus_id, ids in bridges.items() if bus_id is not None and ids}
    return {key: value for key, value in found.items() if value}


def _cpu(about: str) -> dict[str, str]:
    """Architecture, vendor and model of `1/2/-1`, as far as they are known."""
    numbers = re.fullmatch(r"(-?\d{1,3})/(-?\d{1,3})/(-?\d{1,3})", about)
    if numbers is None:
        return {}
    arch, vendor, model = map(int, numbers.groups())
    found = {"arch": _ARCH[arch]} if arch in _ARCH else {}
    if arch == 1 and vendor in _VENDOR:
        found["vendor"] = _VENDOR[vendor]
        if vendor == 1 and model in _INTEL_MODEL:
            found |= {"familyid": "6", "modelid": str(_INTEL_MODEL[model])}
    return found


def _ids(text: str) -> dict[str, str]:
    """Vendor, device, and those of the subsystem, 16 bits each; nothing for an id that is not known."""
    if re.fullmatch(r"[0-9a-fA-F]{1,16}", text) is None or int(text, 16) == 0:
        return {}
    number = int(text, 16)
    return {key: f"0x{number >> shift & 0xFFFF:04x}" for key, shift in zip(IDS, (48, 32, 16, 0), strict=True)}
