"""The topology of this host: from its drivers' libraries, else their tools, else sysfs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from topocomm.errors import TopologyError
from topocomm.topology.discovery.gpu_host import Found, gpu_host, pci_gpus
from topocomm.topology.discovery.gpu_tools import AMD_TOOLS, amd_tool, nvidia_tool
from topocomm.topology.discovery.pci_sysfs import PciBus
from topocomm.topology.discovery.sysfs import cpu_host, entries, sysfs_cores, text_in
from topocomm.topology.inference.cpu_lists import core_facts
from topocomm.topology.merge.cluster import NETWORK, merge_hosts
from topocomm.topology.model import Topology

__all__ = ["discover", "merge_hosts"]


def discover(
    *,
    sysfs: Path = Path("/sys"),
    proc: Path = Path("/proc"),
    dev: Path = Path("/dev"),
    usable: Collection[int] | None = None,
) -> Topology:
    """The topology of this host: its GPUs if anything shows them, else its cores, NUMA nodes and NICs.

    GPUs are looked for with NVML, `nvidia-smi`, the module `amdsmi`, `amd-smi`, `rocm-smi` and in sysfs, in this order;
    the first that shows some is believed, and what failed before is said in the warnings. Without a GPU, the first
    warning says what was looked at.

    Args:
        sysfs: Root of sysfs; another one for tests.
        proc: Root of procfs.
        dev: Root of the device files.
        usable: CPUs that the ranks of this host may run on; None takes those of this process.
    """
    host = os.uname().nodename if hasattr(os, "uname") else "localhost"
    bus = PciBus(sysfs)
    cpus = _usable_cpus() if usable is None else usable
    troubles: list[str] = []
    for look in _ways(bus, sysfs, proc, dev, host):
        try:
            found = look()
        except TopologyError as error:
            troubles.append(str(error))
            continue
        if found is not None:
            own = tuple(d if d.host == NETWORK.host else d._replace(host=host) for d in found.devices)
            facts = {**found.facts, **_core_facts(sysfs, cpus)}
            return replace(found, name=host, devices=own, warnings=(*troubles, *found.warnings), facts=facts)
    cores = cpu_host(sysfs, host=host, usable=cpus)
    return replace(cores, warnings=(_no_gpu(troubles, bus, proc), *cores.warnings), facts=_core_facts(sysfs, cpus))


def _core_facts(sysfs: Path, usable: Collection[int]) -> dict[str, Any]:
    packages = sysfs_cores(sysfs, usable)
    return core_facts(packages) if packages else {}


def _ways(bus: PciBus, sysfs: Path, proc: Path, dev: Path, host: str) -> Iterator[Callable[[], Topology | None]]:
    yield partial(_nvml, bus, sysfs, host)
    if tool := shutil.which("nvidia-smi"):
        yield partial(nvidia_tool, tool, bus, sysfs)
    yield partial(_amdsmi, bus, sysfs, host)
    for name in AMD_TOOLS:
        if tool := shutil.which(name):
            yield partial(amd_tool, name, tool, bus, sysfs)
    usable = usable_gpus(bus, proc, dev, sysfs)
    if usable:
        yield partial(_pci, bus, sysfs, host, usable)


def _nvml(bus: PciBus, sysfs: Path, host: str) -> Topology | None:
    from topocomm.topology.discovery.nvml import find_nvml, read_nvml

    module = find_nvml()
    found = read_nvml(module, bus, host) if module else None
    return gpu_host(found, bus, sysfs, host) if found else None


def _amdsmi(bus: PciBus, sysfs: Path, host: str) -> Topology | None:
    if not any(gpu.gpu_vendor == "AMD" for gpu in bus.gpus()):
        return None  # the module takes its time, and complains where there is no driver
    from topocomm.topology.discovery.amdsmi_library import find_amdsmi, read_amdsmi

    module = find_amdsmi()
    found = read_amdsmi(module, bus, host) if module else None
    return gpu_host(found, bus, sysfs, host) if found else None


def _pci(bus: PciBus, sysfs: Path, host: str, usable: Collection[str]) -> Topology:
    text = (
        "GPUs read from sysfs alone, because no library and no tool of the driver shows them: their models and the "
        "links between them (NVLink, xGMI) are not known"
    )
    return gpu_host(Found("sysfs", pci_gpus(bus, usable, host), warnings=(text,)), bus, sysfs, host)


def usable_gpus(bus: PciBus, proc: Path, dev: Path, sysfs: Path) -> list[str]:
    """Addresses of the GPUs whose device files this process has: containers show all of them on PCI.

    Args:
        bus: The PCI bus.
        proc: Root of procfs, where NVIDIA's driver tells which device file is whose.
        dev: Root of the device files.
        sysfs: Root of sysfs, where AMD's driver tells it.
    """
    found = []
    for gpu in bus.gpus():
        if gpu.gpu_vendor == "NVIDIA":
            told = text_in(proc / f"driver/nvidia/gpus/{gpu.bus_id}/information")
            minors = [line.rpartition(":")[2].strip() for line in told.splitlines() if line.startswith("Device Minor")]
            files = [dev / f"nvidia{minor}" for minor in minors]
        else:
            names = [entry.name for entry in entries(sysfs / "bus/pci/devices" / gpu.bus_id / "drm")]
            files = [dev / "dri" / name for name in names if name.startswith("renderD")]
            files = files if (dev / "kfd").exists() else []
        if any(file.exists() for file in files):
            found.append(gpu.bus_id)
    return found


def _usable_cpus() -> set[int]:
    """What cgroups and the affinity of this process leave it."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _no_gpu(troubles: list[str], bus: PciBus, proc: Path) -> str:
    """One line: what was looked at, and what was seen there."""
    if troubles:
        return f"No GPU used: {'; '.join(troubles)}"
    seen: dict[str, int] = {}
    for gpu in bus.gpus():
        seen[gpu.gpu_vendor or ""] = seen.get(gpu.gpu_vendor or "", 0) + 1
    if seen or (proc / "driver/nvidia").exists():
        facts = [f"{count} {vendor} display device(s) on PCI" for vendor, count in seen.items()]
        facts += ["/proc/driver/nvidia is there"] * (proc / "driver/nvidia").exists()
        return f"No GPU used: no library or tool of a driver shows one (is nvidia-smi on PATH?); {'; '.join(facts)}"
    return "No GPU (looked at nvidia-smi, amd-smi, rocm-smi, /proc/driver/nvidia, PCI)"
