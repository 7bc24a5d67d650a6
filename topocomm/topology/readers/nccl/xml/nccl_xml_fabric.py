"""The NVLinks, xGMI links and C2C links in NCCL's topology XML."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import chain

from topocomm.errors import TopologyError
from topocomm.topology.links import KINDS, NVSWITCH_HOP_US, both_ways, kind_of
from topocomm.topology.model import Device, Link
from topocomm.topology.readers.nccl.xml.nccl_xml_devices import Gpu, Notes, System
from topocomm.topology.readers.nccl.xml.nccl_xml_values import bus_key, is_hidden, whole
from topocomm.topology.readers.plain.safe_xml import Element

NVSWITCH_CLASS, NPU_CLASS = "0x0680", "0x068001"
"""PCI classes of link targets: an NVSwitch; POWER9's own NVLink port, which stands for the processor."""

HIDDEN = "fffffff:ffff:ff"
"""Target of links into a switch that shows no bus id."""

_NVLS_FROM_SM = 90
RATE = "gb_per_s"
"""Attribute that topocomm adds to a link whose generation `sm` or `gcn` does not tell; NCCL passes it over."""

_RATE = re.compile(r"\d{1,4}(?:\.\d{1,12})?")

_MAX_COUNT = 64
"""Links to one target; no GPU has more than 18."""


def gcn_of(gpu: Gpu) -> str | None:
    """Return `910` or `gfx942`, as the file has it; None for GPUs that are not AMD's."""
    return None if gpu.element is None else gpu.element.attributes.get("gcn")


class Fabric:
    """The links that are not PCIe, all switches folded into one, as NCCL does; counts of links by GPU and by target.

    Raises:
        TopologyError: A link without target or with a wrong count.
    """

    def __init__(self, system: System, file: str, notes: Notes) -> None:
        self.system, self.file, self.notes = system, file, notes
        self.by_bus = {(gpu.pci.cpu.host, bus_key(gpu.pci.bus_id)): gpu for gpu in system.gpus}
        self.direct: dict[tuple[str, str], int] = defaultdict(int)
        self.to_switch: dict[str, int] = defaultdict(int)
        self.to_cpu: dict[str, int] = defaultdict(int)
        self.totals = dict.fromkeys((gpu.id for gpu in system.gpus), 0)
        """Links of a GPU without those to itself."""
        self.loops: dict[str, int] = {}
        """Links of a GPU to itself, as some virtual machines write them."""
        self.switches: dict[str, dict[str, int]] = {}
        """By bus id of an NVSwitch: links by GPU."""
        self.kinds: dict[str, tuple[str, float | None]] = {}
        """By GPU the row of `links.KINDS` or the family, and GB/s of one link where topocomm wrote it."""
        self.tags: set[str] = set()
        """Elements of the file: `nvlink`, `xgmi`."""
        c2c: list[Link] = []
        cpus = {gpu.id: gpu.pci.cpu.device for gpu in system.gpus}
        for gpu in system.gpus:
            for element in [] if gpu.element is None else gpu.element.children:
                if element.tag in ("nvlink", "xgmi"):
                    self._count(gpu, element)
                elif element.tag == "c2c":  # to the processor: `bw` is MB/s of one of `count` links
                    lanes = whole(element, "count", file, most=_MAX_COUNT)
                    rate = whole(element, "bw", file, most=10**7)
                    gb_per_s = lanes * rate / 1000 if lanes and rate else None
                    pair = both_ways(gpu.id, cpus[gpu.id], "c2c", lanes=lanes or None, gb_per_s=gb_per_s)
                    c2c += (link._replace(latency_us=KINDS["nvlink4"].latency_us) for link in pair)
        to_switch = [self._join(gpu, "nvswitch0", n, NVSWITCH_HOP_US) for gpu, n in self.to_switch.items()]
        to_cpu = [self._join(gpu, cpus[gpu], n) for gpu, n in self.to_cpu.items()]
        self.links = [*self._direct(), *chain(*to_switch, *to_cpu), *c2c]
        self.devices: list[Device] = []
        if self.to_switch:
            switched = [gpu for gpu in system.gpus if gpu.id in self.to_switch]
            sms = [sm for gpu in switched if (sm := self._sm(gpu)) is not None]
            nvls = bool(sms) and min(sms) >= _NVLS_FROM_SM
            host = switched[0].pci.cpu.host
            self.devices.append(Device("nvswitch0", "switch", host, "NVSwitch", in_network="nvls" if nvls else None))

    def _count(self, gpu: Gpu, element: Element) -> None:
        target = element.attributes.get("target", "").strip()
        count = whole(element, "count", self.file, most=_MAX_COUNT)
        if not target or count is None:
            lacks = "count" if target else "target"
            raise TopologyError(
                f"{self.file}:{element.line}: <{element.tag}> of {gpu.id} has no {lacks}; "
                "expected target, count and tclass; dump the file again with NCCL_TOPO_DUMP_FILE"
            )
        if not count:
            return
        self.tags.add(element.tag)
        rate = element.attributes.get(RATE)
        if rate is not None and (_RATE.fullmatch(rate) is None or float(rate) == 0):
            words = f'{RATE}="{rate[:40]}": expected GB/s of one link, such as 25'
            raise TopologyError(f"{self.file}:{element.line}: {words}")
        kind = kind_of(element.tag, self._sm(gpu), gcn_of(gpu)) if rate is None else element.tag
        self.kinds.setdefault(gpu.id, (kind, None if rate is None else float(rate)))
        peer = self.by_bus.get((gpu.pci.cpu.host, bus_key(target)))
        if peer is gpu:
            self.loops[gpu.id] = self.loops.get(gpu.id, 0) + count
            self.notes.add("NVLinks of a GPU to itself say nothing of its peers; passed over", element, gpu.id)
            return
        self.totals[gpu.id] += count
        target_class = element.attributes.get("tclass", "").strip().lower()
        if peer is not None:
            self.direct[gpu.id, peer.id] += count
        elif target_class.startswith(NPU_CLASS):
            self.to_cpu[gpu.id] += count
        elif target_class.startswith(NVSWITCH_CLASS) or is_hidden(target):
            self.to_switch[gpu.id] += count
            by_gpu = self.switches.setdefault(target, {})
            by_gpu[gpu.id] = by_gpu.get(gpu.id, 0) + count
        else:
            words = "links to a device that is not in the file, passed over"
            self.notes.add(words, element, f"{gpu.id} to {target[:40]}")

    def _sm(self, gpu: Gpu) -> int | None:
        if gpu.element is None or gcn_of(gpu) is not None:
            return None
        return whole(gpu.element, "sm", self.file, most=10**4)

    def _join(self, a: str, b: str, lanes: int, latency_us: float | None = None) -> tuple[Link, Link]:
        kind, rate = self.kinds[a]
        figure = None if rate is None else rate * lanes
        return both_ways(a, b, kind, lanes=lanes, gb_per_s=figure, latency_us=latency_us)

    def _direct(self) -> list[Link]:
        """Return links between GPUs; links that one end does not list are taken from the other."""
        lines = {gpu.id: gpu.element for gpu in self.system.gpus if gpu.element is not None}
        links: list[Link] = []
        for (a, b), lanes in self.direct.items():
            back = self.direct.get((b, a), 0)
            if not back:
                self.notes.add("only the first lists its links to the other; the mirror is added", lines[a], f"{a}-{b}")
                links += self._join(a, b, lanes)
                continue
            if back != lanes:
                self.notes.add("the two list different numbers of links; the pair has no code", lines[a], f"{a}-{b}")
            links.append(self._join(a, b, lanes)[0])
        return links
