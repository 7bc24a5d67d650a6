"""NVLink and xGMI from hwloc's distance matrices; matrices of other distances are passed over.

`NVLinkBandwidth` is a sum over links, 20,000 MB/s each for the first NVLink and 25,000 for later ones
(hwloc/topology-nvml.c), so it counts them; its objects are GPUs, NVSwitches and, on POWER, CPU packages.
`XGMIBandwidth` is 100,000 MB/s for every pair that has xGMI at all (hwloc/topology-rsmi.c): it counts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any, NamedTuple

from topocomm.topology.inference.host_tree import merge_groups
from topocomm.topology.inference.nvlink import MAX_LINKS_PER_GPU
from topocomm.topology.links import KINDS, NVSWITCH_HOP_US, both_ways
from topocomm.topology.model import Device, InNetworkKind, Link, Pair
from topocomm.topology.readers.hwloc.hwloc_devices import Gpu
from topocomm.topology.readers.hwloc.hwloc_objects import HwlocObject
from topocomm.topology.readers.plain.paste import same_or_all

MAX_SWITCHES = 64


class Matrix(NamedTuple):
    """A matrix: its name, its objects (None for those that the source does not show) and its values by row."""

    name: str
    objects: tuple[HwlocObject | None, ...]
    values: tuple[int, ...]

    def value(self, i: int, j: int) -> int:
        """Return the figure between two objects; the larger one where the two directions differ."""
        count = len(self.objects)
        return max(self.values[i * count + j], self.values[j * count + i])


@dataclass(slots=True)
class Fabric:
    """Content of the matrices: switches, links, pairs by ids in GPU order, facts and warnings."""

    devices: list[Device] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    pairs: dict[tuple[str, str], Pair] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def read_matrices(gpus: Sequence[Gpu], matrices: Sequence[Matrix], near_cpu: Mapping[int, str]) -> Fabric:
    """Return the links of GPUs; `near_cpu` has the NUMA node device by `id` of objects with CPUs of one node."""
    fabric = Fabric()
    by_object = {id(device): gpu.id for gpu in gpus for device in (gpu.holder, *gpu.os_devices)}
    for matrix in matrices:
        if matrix.name == "NVLinkBandwidth":
            _NVLink(matrix, gpus, by_object, near_cpu, fabric).read()
    _read_xgmi(gpus, matrices, by_object, fabric)
    return fabric


class _NVLink:
    def __init__(
        self, matrix: Matrix, gpus: Sequence[Gpu], by_object: Mapping[int, str], near_cpu: Mapping[int, str], to: Fabric
    ) -> None:
        self.matrix, self.fabric, self.near_cpu = matrix, to, near_cpu
        self.models = " ".join(gpu.model or "" for gpu in gpus)
        self.order = {gpu.id: i for i, gpu in enumerate(gpus)}
        self.gpus = {i: by_object[id(o)] for i, o in enumerate(matrix.objects) if id(o) in by_object}
        self.others = {i: o for i, o in enumerate(matrix.objects) if o is not None and i not in self.gpus}
        self.total = dict.fromkeys(self.order, 0)

    def read(self) -> None:
        rates = {self.matrix.value(i, j) for i in self.gpus for j in (*self.gpus, *self.others) if i != j} - {0}
        if not rates:
            return
        units = [50000] if any(name in self.models for name in ("B100", "B200", "B300")) else []
        self.unit = next((unit for unit in (*units, 25000, 20000) if not any(rate % unit for rate in rates)), None)
        if self.unit is None:
            shown = ", ".join(map(str, sorted(rates)[:4]))
            self.fabric.warnings.append(f"NVLinkBandwidth {shown} MB/s: no multiple of one known NVLink; not counted")
            return
        self.fabric.facts["nvlink_bw_mb_per_s"] = sorted(rates) if len(rates) > 1 else min(rates)
        self._direct()
        self._cpus()
        self._switched([i for i, other in self.others.items() if other.type == "PCIDev"])
        self.fabric.facts["nvlink_total_per_gpu"] = self.total
        if over := [gpu for gpu, count in self.total.items() if count > MAX_LINKS_PER_GPU]:
            words = f"{over[0]} {self.total[over[0]]} links; no GPU has so many"
            self.fabric.warnings.append(f"NVLinkBandwidth gives {words}")

    def _lanes(self, i: int, j: int) -> int:
        return self.matrix.value(i, j) // (self.unit or 1)

    def _direct(self) -> None:
        for i, j in combinations(self.gpus, 2):
            lanes = self._lanes(i, j)
            a, b = sorted((self.gpus[i], self.gpus[j]), key=self.order.__getitem__)
            if lanes and a != b:
                rate = self.matrix.value(i, j) / 1000
                self.fabric.links += both_ways(a, b, "nvlink", lanes=lanes, gb_per_s=rate)
                latency_us = KINDS["nvlink4"].latency_us
                self.fabric.pairs[a, b] = Pair(a, b, f"NV{lanes}", rate, latency_us, "read", "assumed")
                self.total[a] += lanes
                self.total[b] += lanes

    def _cpus(self) -> None:
        """Add NVLinks between GPU and CPU, on POWER8 and POWER9."""
        codes = {}
        for i, gpu in self.gpus.items():
            for j, cpu in self.others.items():
                lanes = self._lanes(i, j)
                if not lanes or cpu.type == "PCIDev":
                    continue
                codes[f"{gpu}-{cpu.type}{'' if cpu.os_index is None else cpu.os_index}"] = f"NV{lanes}"
                self.total[gpu] += lanes
                if id(cpu) in self.near_cpu:
                    rate = self.matrix.value(i, j) / 1000
                    self.fabric.links += both_ways(gpu, self.near_cpu[id(cpu)], "nvlink", lanes=lanes, gb_per_s=rate)
        if codes:
            self.fabric.facts["gpu_cpu_links"] = codes

    def _switched(self, switches: Sequence[int]) -> None:
        """Fold NVSwitches that share GPUs into one device, as NCCL does."""
        if len(switches) > MAX_SWITCHES:
            self.fabric.warnings.append(f"{len(switches)} NVSwitches; expected at most {MAX_SWITCHES}: not read")
            return
        reach = {gpu: {s: lanes for s in switches if (lanes := self._lanes(i, s))} for i, gpu in self.gpus.items()}
        names = [gpu for gpu in self.order if reach.get(gpu)]
        first: dict[int, str] = {}
        joined = [(first.setdefault(s, gpu), gpu) for gpu in names for s in reach[gpu]]
        islands = merge_groups([(gpu,) for gpu in names], [(a, b) for a, b in joined if a != b])
        boards = []
        for island in islands:
            through = [s for s in switches if any(s in reach[gpu] for gpu in island)]
            boards.append([self.others[s].bus_id for s in through])
            self._island(island, reach)
        if boards:
            folded = {f"board{i}": board for i, board in enumerate(boards)}
            self.fabric.facts["nvswitches"] = folded if len(boards) > 1 else boards[0]
        for left, right in combinations(islands, 2):
            for ends in product(left, right):
                a, b = sorted(ends, key=self.order.__getitem__)
                lanes = min(sum(reach[a].values()), sum(reach[b].values()))
                self.fabric.pairs[a, b] = Pair(a, b, f"NV{lanes}?")
        if len(islands) > 1:  # by links from switch to switch, which hwloc does not ask for
            self.fabric.warnings.append(
                f"{len(islands)} groups of NVSwitches; what joins them is not in the source: pairs across are marked "
                "`?` and have the way through the CPUs alone"
            )

    def _island(self, island: Sequence[str], reach: Mapping[str, Mapping[int, int]]) -> None:
        most = max(sum(reach[gpu].values()) for gpu in island)
        in_network: InNetworkKind | None = "nvls" if most == MAX_LINKS_PER_GPU else None
        switch = Device(f"nvswitch{len(self.fabric.devices)}", "switch", name="NVSwitch", in_network=in_network)
        self.fabric.devices.append(switch)
        unit = (self.unit or 0) / 1000
        for gpu in island:
            lanes = sum(reach[gpu].values())
            self.total[gpu] += lanes
            self.fabric.links += both_ways(
                gpu, switch.id, "nvlink", lanes=lanes, gb_per_s=lanes * unit, latency_us=NVSWITCH_HOP_US
            )
        for a, b in combinations(island, 2):
            lanes = sum(min(count, reach[b].get(s, 0)) for s, count in reach[a].items())
            if lanes:
                latency_us = 2 * NVSWITCH_HOP_US
                self.fabric.pairs[a, b] = Pair(a, b, f"NV{lanes}", lanes * unit, latency_us, "read", "assumed")


def _read_xgmi(gpus: Sequence[Gpu], matrices: Sequence[Matrix], by_object: Mapping[int, str], fabric: Fabric) -> None:
    order = {gpu.id: i for i, gpu in enumerate(gpus)}
    by_name = {device.name: i for i, gpu in enumerate(gpus) for device in gpu.os_devices}
    joined: set[tuple[str, str]] = set()
    for i, gpu in enumerate(gpus):  # the info that old hwloc has instead of a matrix
        peers = " ".join(device.infos.get("XGMIPeers", "") for device in gpu.os_devices).split()
        for j in {by_name.get(peer, i) for peer in peers} - {i}:
            joined.add((gpus[min(i, j)].id, gpus[max(i, j)].id))
    for matrix in matrices:
        if matrix.name not in ("XGMIBandwidth", "XGMIHops"):
            continue
        values: dict[tuple[str, str], int] = {}
        ends = [(i, by_object[id(o)]) for i, o in enumerate(matrix.objects) if id(o) in by_object]
        for (i, a), (j, b) in combinations(ends, 2):
            if a != b and matrix.value(i, j):
                a, b = sorted((a, b), key=order.__getitem__)
                values[a, b] = matrix.value(i, j)
        if matrix.name == "XGMIBandwidth":
            joined |= values.keys()
        if values:
            fact = "xgmi_bw_mb_per_s_reported" if matrix.name == "XGMIBandwidth" else "xgmi_hops_reported"
            by_pair = {f"{a}-{b}": value for (a, b), value in values.items()}
            fabric.facts[fact] = same_or_all(by_pair)
    for a, b in sorted(joined, key=lambda pair: (order[pair[0]], order[pair[1]])):
        fabric.links += both_ways(a, b, "xgmi")
        fabric.pairs[a, b] = Pair(a, b, "XGMI", None, KINDS["xgmi-mi300"].latency_us, None, "assumed")
    if joined:
        fabric.warnings.append("xGMI: hwloc says which GPUs have it, not over how many links; GB/s is not known")
