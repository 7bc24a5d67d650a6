"""The topology of this host: from its drivers' libraries, else their tools, else sysfs."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from topocomm.errors import TopologyError
from topocomm.topology.discovery.amdsmi_library import find_amdsmi, read_amdsmi
from topocomm.topology.discovery.gpu_host import GpuFacts, gpu_host, pci_gpus
from topocomm.topology.discovery.gpu_tools import AMD_TOOLS, amd_tool, nvidia_tool
from topocomm.topology.discovery.nvml import find_nvml, read_nvml
from topocomm.topology.discovery.pci_sysfs import PciBus
from topocomm.topology.discovery.sysfs import cpu_host, entries, sysfs_cores, text_in
from topocomm.topology.inference.cpu_lists import core_facts
from topocomm.topology.merge.cluster import NETWORK
from topocomm.topology.model import Topology


def discover(
    *,
    sysfs: Path = Path("/sys"),
    proc: Path = Path("/proc"),
    dev: Path = Path("/dev"),
    usable: Collection[int] | None = None,
) -> Topology:
    """Return the topology of this host: its GPUs, or else its cores, NUMA nodes and NICs.

    Sources of GPUs are NVML, `nvidia-smi`, the module `amdsmi`, `amd-smi`, `rocm-smi` and sysfs, in this order. The
    first with a GPU is used. Warnings name the sources that failed and, without a GPU, those that were tried.

    The ranks of this host may run on the CPUs `usable`, by default those of this process. Tests give other roots.
    """
    host = os.uname().nodename if hasattr(os, "uname") else "localhost"
    bus = PciBus(sysfs)
    if usable is None:  # by the cgroup and affinity of this process
        usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    packages = sysfs_cores(sysfs, usable)
    cores = core_facts(packages) if packages else {}
    failures: list[str] = []
    for read in _sources(bus, sysfs, proc, dev, host):
        try:
            topology = read()
        except TopologyError as error:
            failures.append(str(error))
            continue
        if topology is not None:
            own = tuple(d if d.host == NETWORK.host else d._replace(host=host) for d in topology.devices)
            warnings = (*failures, *topology.warnings)
            return replace(topology, name=host, devices=own, warnings=warnings, facts={**topology.facts, **cores})
    topology = cpu_host(sysfs, host=host, usable=usable)
    return replace(topology, warnings=(_no_gpu(failures, bus, proc), *topology.warnings), facts=cores)


def _sources(bus: PciBus, sysfs: Path, proc: Path, dev: Path, host: str) -> Iterator[Callable[[], Topology | None]]:
    yield partial(_library, find_nvml, read_nvml, bus, sysfs, host)
    if tool := shutil.which("nvidia-smi"):
        yield partial(nvidia_tool, tool, bus, sysfs)
    if any(gpu.gpu_vendor == "AMD" for gpu in bus.gpus()):  # the module is slow, and complains without a driver
        yield partial(_library, find_amdsmi, read_amdsmi, bus, sysfs, host)
    for name in AMD_TOOLS:
        if tool := shutil.which(name):
            yield partial(amd_tool, name, tool, bus, sysfs)
    if usable := usable_gpus(bus, proc, dev, sysfs):
        text = (
            "GPUs read from sysfs alone, because no library and no tool of the driver shows them: their models and the "
            "links between them (NVLink, xGMI) are not known"
        )
        yield lambda: gpu_host(GpuFacts("sysfs", pci_gpus(bus, usable, host), warnings=(text,)), bus, sysfs, host)


def _library(
    find: Callable[[], Any], read: Callable[[Any, PciBus, str], GpuFacts | None], bus: PciBus, sysfs: Path, host: str
) -> Topology | None:
    module = find()
    gpu_facts = read(module, bus, host) if module else None
    return gpu_host(gpu_facts, bus, sysfs, host) if gpu_facts else None


def usable_gpus(bus: PciBus, proc: Path, dev: Path, sysfs: Path) -> list[str]:
    """Return addresses of the GPUs whose device files this process has; containers show all GPUs on PCI.

    NVIDIA's driver names the device file of a GPU in procfs, AMD's in sysfs.
    """
    usable = []
    for gpu in bus.gpus():
        if gpu.gpu_vendor == "NVIDIA":
            text = text_in(proc / f"driver/nvidia/gpus/{gpu.bus_id}/information")
            minors = [line.rpartition(":")[2].strip() for line in text.splitlines() if line.startswith("Device Minor")]
            files = [dev / f"nvidia{minor}" for minor in minors]
        else:
            names = [entry.name for entry in entries(sysfs / "bus/pci/devices" / gpu.bus_id / "drm")]
            files = [dev / "dri" / name for name in names if name.startswith("renderD")]
            files = files if (dev / "kfd").exists() else []
        if any(file.exists() for file in files):
            usable.append(gpu.bus_id)
    return usable


def _no_gpu(failures: list[str], bus: PciBus, proc: Path) -> str:
    """One line: the sources that were tried, and signs of GPUs."""
    if failures:
        return f"No GPU used: {'; '.join(failures)}"
    shown = Counter(gpu.gpu_vendor for gpu in bus.gpus())
    if shown or (proc / "driver/nvidia").exists():
        facts = [f"{count} {vendor} display device(s) on PCI" for vendor, count in shown.items()]
        facts += ["/proc/driver/nvidia is there"] * (proc / "driver/nvidia").exists()
        return f"No GPU used: no library or tool of a driver shows one (is nvidia-smi on PATH?); {'; '.join(facts)}"
    return "No GPU (looked at nvidia-smi, amd-smi, rocm-smi, /proc/driver/nvidia, PCI)"
