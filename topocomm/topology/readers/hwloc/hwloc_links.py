"""NVLink and xGMI from hwloc's distance matrices; matrices of other distances are passed over.

`NVLinkBandwidth` is a sum over links, 20,000 MB/s each for the first NVLink and 25,000 for later ones
(hwloc/topology-nvml.c), so it counts them; its objects are GPUs, NVSwitches and, on POWER, CPU packages.
`XGMIBandwidth` is 100,000 MB/s for every pair that has xGMI at all (hwloc/topology-rsmi.c): it counts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any, NamedTuple

from topocomm.topology.inference.host_tree import PairKey, merge_groups
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


class GpuLinks:
    """Links of GPUs by the matrices: switches, links, pairs by ids in GPU order, facts and warnings.

    `near_cpu` has the NUMA node device by `id` of objects with CPUs of one node.
    """

    def __init__(self, gpus: Sequence[Gpu], matrices: Sequence[Matrix], near_cpu: Mapping[int, str]) -> None:
        self.gpus, self.near_cpu = gpus, near_cpu
        self.devices: list[Device] = []
        self.links: list[Link] = []
        self.pairs: dict[PairKey, Pair] = {}
        self.facts: dict[str, Any] = {}
        self.warnings: list[str] = []
        self.order = {gpu.id: i for i, gpu in enumerate(gpus)}
        self.by_object = {id(device): gpu.id for gpu in gpus for device in (gpu.holder, *gpu.os_devices)}
        for matrix in matrices:
            if matrix.name == "NVLinkBandwidth":
                self._nvlink(matrix)
        self._xgmi(matrices)

    def _ends(self, matrix: Matrix) -> dict[int, str]:
        return {i: self.by_object[id(o)] for i, o in enumerate(matrix.objects) if id(o) in self.by_object}

    def _nvlink(self, matrix: Matrix) -> None:
        ends = self._ends(matrix)
        others = {i: o for i, o in enumerate(matrix.objects) if o is not None and i not in ends}
        rates = {matrix.value(i, j) for i in ends for j in (*ends, *others) if i != j} - {0}
        if not rates:
            return
        models = " ".join(gpu.model or "" for gpu in self.gpus)
        units = [50000] if any(name in models for name in ("B100", "B200", "B300")) else []
        unit = next((unit for unit in (*units, 25000, 20000) if not any(rate % unit for rate in rates)), None)
        if unit is None:
            shown = ", ".join(map(str, sorted(rates)[:4]))
            self.warnings.append(f"NVLinkBandwidth {shown} MB/s: no multiple of one known NVLink; not counted")
            return
        self.facts["nvlink_bw_mb_per_s"] = sorted(rates) if len(rates) > 1 else min(rates)
        self.lane_gb_per_s = unit / 1000
        self.total = dict.fromkeys(self.order, 0)
        lanes_of = {(i, j): matrix.value(i, j) // unit for i in ends for j in (*ends, *others)}
        for i, j in combinations(ends, 2):
            a, b = sorted((ends[i], ends[j]), key=self.order.__getitem__)
            if (lanes := lanes_of[i, j]) and a != b:
                self._join(a, b, lanes)
                self._pair(a, b, lanes, KINDS["nvlink4"].latency_us)
                self.total[b] += lanes
        codes = {}
        for (i, j), lanes in lanes_of.items():  # between GPU and CPU, on POWER8 and POWER9
            if lanes and j in others and others[j].type != "PCIDev":
                cpu = others[j]
                codes[f"{ends[i]}-{cpu.type}{'' if cpu.os_index is None else cpu.os_index}"] = f"NV{lanes}"
                self._join(ends[i], self.near_cpu.get(id(cpu)), lanes)
        if codes:
            self.facts["gpu_cpu_links"] = codes
        switches = {j: other.bus_id for j, other in others.items() if other.type == "PCIDev"}
        if len(switches) > MAX_SWITCHES:
            self.warnings.append(f"{len(switches)} NVSwitches; expected at most {MAX_SWITCHES}: not read")
        else:
            reach = {gpu: {s: lanes for s in switches if (lanes := lanes_of[i, s])} for i, gpu in ends.items()}
            self._switched(switches, reach)
        self.facts["nvlink_total_per_gpu"] = self.total
        if over := [gpu for gpu, count in self.total.items() if count > MAX_LINKS_PER_GPU]:
            words = f"{over[0]} {self.total[over[0]]} links; no GPU has so many"
            self.warnings.append(f"NVLinkBandwidth gives {words}")

    def _join(self, gpu: str, other: str | None, lanes: int, latency_us: float | None = None) -> None:
        """Count NVLinks of a GPU, and add them where the other end is a device."""
        self.total[gpu] += lanes
        if other is not None:
            rate = lanes * self.lane_gb_per_s
            self.links += both_ways(gpu, other, "nvlink", lanes=lanes, gb_per_s=rate, latency_us=latency_us)

    def _pair(self, a: str, b: str, lanes: int, latency_us: float) -> None:
        self.pairs[a, b] = Pair(a, b, f"NV{lanes}", lanes * self.lane_gb_per_s, latency_us, "read", "assumed")

    def _switched(self, switches: Mapping[int, str | None], reach: Mapping[str, Mapping[int, int]]) -> None:
        """Fold NVSwitches that share GPUs into one device, as NCCL does. Bus ids, and links of each GPU, by switch."""
        total = {gpu: sum(reach[gpu].values()) for gpu in self.order if reach.get(gpu)}
        first: dict[int, str] = {}
        joined = [(first.setdefault(s, gpu), gpu) for gpu in total for s in reach[gpu]]
        islands = merge_groups([(gpu,) for gpu in total], [(a, b) for a, b in joined if a != b])
        boards = []
        for island in islands:
            boards.append([bus_id for s, bus_id in switches.items() if any(s in reach[gpu] for gpu in island)])
            most = max(total[gpu] for gpu in island)
            in_network: InNetworkKind | None = "nvls" if most == MAX_LINKS_PER_GPU else None
            switch = Device(f"nvswitch{len(self.devices)}", "switch", name="NVSwitch", in_network=in_network)
            self.devices.append(switch)
            for gpu in island:
                self._join(gpu, switch.id, total[gpu], NVSWITCH_HOP_US)
            for a, b in combinations(island, 2):
                if lanes := sum(min(count, reach[b].get(s, 0)) for s, count in reach[a].items()):
                    self._pair(a, b, lanes, 2 * NVSWITCH_HOP_US)
        if boards:
            folded = {f"board{i}": board for i, board in enumerate(boards)}
            self.facts["nvswitches"] = folded if len(boards) > 1 else boards[0]
        for left, right in combinations(islands, 2):
            for ends in product(left, right):
                a, b = sorted(ends, key=self.order.__getitem__)
                self.pairs[a, b] = Pair(a, b, f"NV{min(total[a], total[b])}?")
        if len(islands) > 1:  # by links from switch to switch, which hwloc does not ask for
            self.warnings.append(
                f"{len(islands)} groups of NVSwitches; what joins them is not in the source: pairs across are marked "
                "`?` and have the way through the CPUs alone"
            )

    def _xgmi(self, matrices: Sequence[Matrix]) -> None:
        by_name = {device.name: i for i, gpu in enumerate(self.gpus) for device in gpu.os_devices}
        joined: set[PairKey] = set()
        for i, gpu in enumerate(self.gpus):  # the info that old hwloc has instead of a matrix
            peers = " ".join(device.infos.get("XGMIPeers", "") for device in gpu.os_devices).split()
            for j in {by_name.get(peer, i) for peer in peers} - {i}:
                joined.add((self.gpus[min(i, j)].id, self.gpus[max(i, j)].id))
        facts = {"XGMIBandwidth": "xgmi_bw_mb_per_s_reported", "XGMIHops": "xgmi_hops_reported"}
        for matrix in matrices:
            values: dict[PairKey, int] = {}
            for (i, a), (j, b) in combinations(self._ends(matrix).items() if matrix.name in facts else (), 2):
                if a != b and matrix.value(i, j):
                    a, b = sorted((a, b), key=self.order.__getitem__)
                    values[a, b] = matrix.value(i, j)
            if matrix.name == "XGMIBandwidth":
                joined |= values.keys()
            if values:
                self.facts[facts[matrix.name]] = same_or_all({f"{a}-{b}": value for (a, b), value in values.items()})
        for a, b in sorted(joined, key=lambda pair: (self.order[pair[0]], self.order[pair[1]])):
            self.links += both_ways(a, b, "xgmi")
            self.pairs[a, b] = Pair(a, b, "XGMI", None, KINDS["xgmi-mi300"].latency_us, None, "assumed")
        if joined:
            self.warnings.append("xGMI: hwloc says which GPUs have it, not over how many links; GB/s is not known")
