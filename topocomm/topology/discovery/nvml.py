"""The NVIDIA GPUs of this host from the driver's library, NVML, through the module `pynvml` (`nvidia-ml-py`).

The module is a parameter, so that tests can play any machine. Facts that a driver, a container or a virtual machine
withholds are left out, with a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import combinations
from typing import Any

from topocomm.errors import TopologyError
from topocomm.topology.discovery.gpu_host import DriverModule, GpuFacts
from topocomm.topology.discovery.pci_sysfs import NVSWITCH_CLASS, PciBus, short_bus_id
from topocomm.topology.inference.cpu_lists import cpu_ranges
from topocomm.topology.inference.nvlink import GpuFabric, nvlink_fabric
from topocomm.topology.links import kind_of
from topocomm.topology.model import Device

SOURCE = "NVML"
MAX_GPUS = 256
MAX_LINKS = 36
"""Number of links that are asked for, more than any GPU has."""

_ABSENT = ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded")
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t; 0 is two GPUs of one board."""
_P2P = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS"}
"""nvmlGpuP2PStatus_t in the words of `nvidia-smi topo -p2p`."""
_READ = 0
_SWITCH_END = 2
"""NVML_NVLINK_DEVICE_TYPE_SWITCH."""
_GTS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_REDUCING = ("nvlink4", "nvlink5")
"""Generations whose NVSwitches can reduce."""

Ends = Sequence[tuple[str | None, bool]]
"""The other ends of links: bus id as NVML prints it, and whether it is a switch."""


def find_nvml() -> Any | None:
    """Return the module, or None where it is not installed."""
    try:
        return import_module("pynvml")
    except ImportError:
        return None


def read_nvml(nvml: Any, bus: PciBus, host: str) -> GpuFacts | None:
    """Return the GPUs that NVML shows, in its order; None without a driver or a GPU.

    Raises:
        TopologyError: NVML fails.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if type(error).__name__ in _ABSENT:
            return None
        raise TopologyError(f"NVML does not start: {error}") from None
    try:
        count = nvml.nvmlDeviceGetCount()
        if count > MAX_GPUS:
            raise TopologyError(f"NVML: {count} GPUs; expected at most {MAX_GPUS} in one host")
        return _Reader(nvml, bus, host, count).read() if count else None
    except nvml.NVMLError as error:
        raise TopologyError(f"NVML fails: {error}") from None
    finally:
        nvml.nvmlShutdown()


class _Reader(DriverModule):
    def __init__(self, nvml: Any, bus: PciBus, host: str, count: int) -> None:
        super().__init__(nvml, nvml.NVMLError, map(nvml.nvmlDeviceGetHandleByIndex, range(count)))
        self.bus, self.host = bus, host
        infos = {name: self.ask("nvmlDeviceGetPciInfo", handle) for name, handle in self.handles.items()}
        self.bus_ids = {name: info and short_bus_id(_text(info.busId) or "") for name, info in infos.items()}
        self.warnings: list[str] = []

    def read(self) -> GpuFacts:
        gpus = tuple(map(self._gpu, self.handles))
        uuids = {name: _text(self.ask("nvmlDeviceGetUUID", handle)) for name, handle in self.handles.items()}
        ends = {name: self._link_ends(name) for name in self.handles}
        fabric = self._fabric(ends)
        facts: dict[str, Any] = {
            "pcie": self._slots(),
            "gpu_dev": {name: index for index, name in enumerate(self.handles)},
            "uuids": {name: uuid for name, uuid in uuids.items() if uuid},
            "active_links_per_gpu": {name: len(links) for name, links in ends.items() if links is not None},
            "remote": {name: dict(Counter(end for end, _ in links if end)) for name, links in ends.items() if links},
        }
        statuses = self.ask_pairs("nvmlDeviceGetP2PStatus", _READ)  # whether GPUs may read each other's memory
        if p2p := {f"{a}-{b}": _P2P.get(s, "U") for (a, b), s in statuses.items() if s is not None}:
            facts |= {"capability": "r", "p2p": p2p}
        facts = {key: value for key, value in facts.items() if value}
        modes = {name: self.ask("nvmlDeviceGetMigMode", handle) for name, handle in self.handles.items()}
        if cut := [name for name, mode in modes.items() if mode and mode[0] == 1]:
            self.warnings.append(f"{', '.join(cut)}: cut into MIG instances; whole GPUs are shown")
        levels = self.ask_pairs("nvmlDeviceGetTopologyCommonAncestor")
        codes = {pair: _LEVELS[level] for pair, level in levels.items() if level in _LEVELS}
        return GpuFacts(SOURCE, gpus, fabric, codes, facts, tuple(self.warnings))

    def _gpu(self, name: str) -> Device:
        handle, bus_id = self.handles[name], self.bus_ids[name]
        shown = self.bus.devices.get(bus_id or "")
        numa = shown.numa if shown else None
        cpus = _bits(self.ask("nvmlDeviceGetCpuAffinity", handle, 16))
        affinity = cpu_ranges(cpus) if cpus else shown.cpus if shown else None
        if numa is None:
            nodes = _bits(self.ask("nvmlDeviceGetMemoryAffinity", handle, 1, 0))
            numa = nodes[0] if len(nodes) == 1 else None
        return Device(name, "gpu", self.host, _text(self.ask("nvmlDeviceGetName", handle)), numa, affinity, bus_id)

    def _slots(self) -> dict[str, dict[str, Any]]:
        """Current and greatest figures of the PCIe links by bus id: NVML's, else those of sysfs."""
        slots = {}
        for name, handle in self.handles.items():
            bus_id = self.bus_ids[name]
            figures = {
                "speed_gts": _GTS.get(self.ask("nvmlDeviceGetCurrPcieLinkGeneration", handle)),
                "width": self.ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
                "max_speed_gts": _GTS.get(self.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle)),
                "max_width": self.ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
            }
            own = self.bus.link_facts(bus_id) | {key: value for key, value in figures.items() if value}
            if bus_id and own:
                slots[bus_id] = own
        return slots

    def _link_ends(self, name: str) -> Ends | None:
        """The other ends of the active NVLinks; None where the GPU has no NVLink."""
        handle = self.handles[name]
        states = {link: self.ask("nvmlDeviceGetNvLinkState", handle, link) for link in range(MAX_LINKS)}
        if set(states.values()) == {None}:
            return None
        ends: list[tuple[str | None, bool]] = []
        for link in (link for link, state in states.items() if state == 1):
            info = self.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            end = _text(info.busId) if info is not None else None
            kind = self.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            shown = self.bus.devices.get(short_bus_id(end or ""))
            switch = kind == _SWITCH_END or (shown is not None and shown.kind.startswith(NVSWITCH_CLASS))
            ends.append((end, switch))
        return ends

    def _fabric(self, ends: Mapping[str, Ends | None]) -> GpuFabric:
        names = {bus_id: name for name, bus_id in self.bus_ids.items() if bus_id}
        into: Counter[str] = Counter()
        counts: Counter[tuple[str, str]] = Counter()
        hidden: Counter[str] = Counter()
        for name, links in ends.items():
            for end, switch in links or ():
                peer = names.get(short_bus_id(end or ""))
                if switch:
                    into[name] += 1
                elif peer is not None:  # a link to itself, as some virtual machines show, makes no pair
                    counts[name, peer] += 1
                else:
                    hidden[name] += 1
        if hidden:
            words = ", ".join(f"{n} of {name}" for name, n in hidden.items())
            self.warnings.append(f"NVLinks to what is not shown here are left out: {words}")
        kinds = {}
        for name, handle in self.handles.items():
            major, minor = self.ask("nvmlDeviceGetCudaComputeCapability", handle) or (0, 0)
            kinds[name] = kind_of("nvlink", 10 * major + minor, None)
        agreed = {}
        for a, b in combinations(self.handles, 2):
            of_a, of_b = counts[a, b], counts[b, a]
            if of_a != of_b:
                self.warnings.append(f"{a} has {of_a} active NVLinks to {b}, which has {of_b}: the less counts")
            if min(of_a, of_b):
                agreed[a, b] = min(of_a, of_b)
        return nvlink_fabric(
            kinds, into, agreed, reduces={kinds[name] for name in into} <= set(_REDUCING), host=self.host
        )


def _bits(words: Any) -> list[int]:
    """Numbers of the set bits in a list of 64-bit words."""
    return [64 * i + bit for i, word in enumerate(words or ()) for bit in range(64) if int(word) >> bit & 1]


def _text(value: Any) -> str | None:
    """A text, which older versions of the module give in bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else None if value is None else str(value)
