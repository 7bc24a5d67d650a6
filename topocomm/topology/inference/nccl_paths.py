"""Pair codes from devices and links, by the rules of NCCL's `src/graph/paths.cc`.

NVLink and xGMI come first: `NV4` and `XGMI2` count the links between two GPUs, or of a GPU into a switch. Other paths
lead over PCIe and processors: the best type wins, then the most bandwidth, then the fewest links. One PCIe switch on
the path is PIX, several are PXB, a processor PHB, two processors SYS. No path leads through a GPU or a NIC, so hosts
that only a network joins have no code.

nvidia-smi differs in one code: between host bridges of one NUMA node it says NODE, where NCCL, which has no host
bridges, says PHB. Two cores of one NUMA node, of which it has no ranks, are `CORES`.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations, count, product
from math import inf
from typing import Literal, NamedTuple, TypeVar

from topocomm.topology.inference.host_tree import NODE, PHB, PIX, PXB, SYS
from topocomm.topology.links import PATH_LATENCY_US
from topocomm.topology.model import Device, FigureSource, Link, Pair, Topology

Wording = Literal["nccl", "nvidia-smi"]

CORES = "NUMA"
"""Code of two cores of one NUMA node, between which there is no PCIe; NCCL has no ranks on cores."""
_CODES = ("PIX", "PXB", "PHB", "NODE", "SYS")
ADAPTER = "network adapter"
"""Name of the device of a network card with several ports; it is no PCIe switch."""
PORT = "network port"
"""Prefix of the names of such a card's further ports; the first is the NIC, so that cards can be counted."""

_FABRICS = {"nvlink": ("NV", "NVL"), "xgmi": ("XGMI", "XGMI")}
"""Code with a number of links, and without."""

_DOUBT: dict[FigureSource | None, int] = {"measured": 0, "read": 1, "table": 2, "assumed": 3, None: 4}
_NODE_FROM_US = (PATH_LATENCY_US["PHB"] + PATH_LATENCY_US["NODE"]) / 2
"""Latency above which a path over a NUMA node is taken to cross two host bridges."""


_OF_ROLE = {"host": SYS, "numa": PHB, "bridge": PHB, "switches": PXB, "switch": PIX, "adapter": PIX, "end": PIX}
_LEVELS = {ends: max(_OF_ROLE[ends[0]], _OF_ROLE[ends[1]]) for ends in product(_OF_ROLE, repeat=2)}
_LEVELS |= {("numa", "numa"): SYS, ("numa", "bridge"): NODE, ("bridge", "numa"): NODE, ("switch", "switch"): PXB}
"""Least level of a path with a link between devices of two roles."""
_NO_PATH = Link("", "", "", None, inf, 0.0, None, "measured", "measured")
"""Figures of a path without links. As a link, a path has the GB/s of its slowest link and the sum of the latencies;
None once a link lacks its own."""
_N = TypeVar("_N", int, float)


class _Label(NamedTuple):
    """A path to a device; paths compare by type, bandwidth, number of links, order of discovery."""

    level: int
    minus_gb_per_s: float
    hops: int
    order: int
    device: str
    figures: Link
    over_numa: bool


def code(topology: Topology, a: str, b: str, *, wording: Wording = "nccl") -> str | None:
    """Return the code of two endpoints (GPU, CPU or NIC) by the links of a topology; None where no path joins them."""
    return _Paths(topology, wording).pair(a, b).code


def is_port(device: Device) -> bool:
    """Return whether the device is a NIC, or a further port of one."""
    return device.kind == "nic" or (device.name or "").startswith(PORT)


def pairs(topology: Topology, *, wording: Wording = "nccl") -> tuple[Pair, ...]:
    """Return every GPU-GPU and GPU-NIC pair, in the order of the devices: code, GB/s of the slowest link, latency.

    A figure is None where a link of the path lacks it; its source is that of the least certain one. The topology's own
    pairs are ignored. NVIDIA's wording has NODE, NCCL's has not.
    """
    paths = _Paths(topology, wording)
    gpus = [d.id for d in topology.devices if d.kind == "gpu"]
    nics = [d.id for d in topology.devices if is_port(d)]
    ends: Iterator[tuple[str, str]] = chain(combinations(gpus, 2), ((gpu, nic) for gpu in gpus for nic in nics))
    return tuple(paths.pair(a, b) for a, b in ends)


class _Paths:
    def __init__(self, topology: Topology, wording: Wording) -> None:
        self.devices = topology.by_id
        self.wording = wording
        self.ends = {d.id for d in topology.devices if d.kind in ("gpu", "cpu") or is_port(d)}
        self.fabric: dict[str, dict[str, list[Link]]] = defaultdict(lambda: defaultdict(list))
        self.pcie_links: dict[str, list[Link]] = defaultdict(list)
        links_in = Counter[str]()
        # NVLink to a processor (POWER9) is a path through it, not to another GPU.
        processors = {d.id for d in topology.devices if d.kind in ("numa", "host", "cpu")}
        for link in topology.links:
            if link.kind in _FABRICS and processors.isdisjoint(link[:2]):
                self.fabric[link.src][link.dst].append(link)
            else:
                self.pcie_links[link.src].append(link)
                links_in[link.dst] += 1
        pcie_links = (link for links in self.pcie_links.values() for link in links)
        self.only_link = {link.dst: link for link in pcie_links if link.dst in self.ends and links_in[link.dst] == 1}
        self.roles = {d.id: _role(d) for d in topology.devices}
        self.searches: dict[str, dict[str, _Label]] = {}

    def pair(self, a: str, b: str) -> Pair:
        """Return the pair with its figures."""
        if a in self.fabric and b in self.fabric and (over_fabric := self._over_fabric(a, b)) is not None:
            return over_fabric
        last = self.only_link.get(b)
        if last is None or a == b:
            label = self._search(a).get(b)
        elif last.src != a and last.src in self.ends:
            label = None
        else:
            before = self._search(a).get(last.src)
            label = before and self._further(before, last, 0)
        if label is None:
            return Pair(a, b, None)
        level, figures = label.level, label.figures
        # `host_tree` leaves out host bridges with one device or switch below. Where a NUMA node joins two devices
        # directly, only the latency shows whether there are one or two host bridges.
        if level == PHB and label.over_numa and (figures.latency_us or 0.0) > _NODE_FROM_US:
            level = NODE
        if level == PHB and self.devices[a].kind == self.devices[b].kind == "cpu":
            return _pair(a, b, CORES, figures)
        return _pair(a, b, _CODES[PHB if level == NODE and self.wording == "nccl" else level], figures)

    def _over_fabric(self, a: str, b: str) -> Pair | None:
        """Direct links, else the sum over common switches; of two ends the one with fewer links counts."""
        from_a, from_b = self.fabric[a], self.fabric[b]
        if b in from_a and a in from_b:
            forth, back = _bundle(from_a[b]), _bundle(from_b[a])
            slower = min(forth, back, key=_rate_or_none)
            if None not in (forth.lanes, back.lanes) and forth.lanes != back.lanes:
                return _pair(a, b, None, slower)  # the two GPUs contradict each other
            return _pair(a, b, _fabric_code(forth.kind, forth.lanes), slower)
        common = [switch for switch in from_a if switch in from_b and self.devices[switch].kind == "switch"]
        if not common:
            return None
        paths = [[_bundle(from_a[switch]), _bundle(from_b[switch])] for switch in common]
        every = [ends for path in paths for ends in path]
        figures = every[0]._replace(
            lanes=_total([_least([ends.lanes for ends in path]) for path in paths]),
            gb_per_s=_total([min(path, key=_rate_or_none).gb_per_s for path in paths]),
            latency_us=_total([ends.latency_us for ends in paths[0]]),
            gb_per_s_source=_least_certain(ends.gb_per_s_source for ends in every),
            latency_us_source=_least_certain(ends.latency_us_source for ends in every),
        )
        return _pair(a, b, _fabric_code(figures.kind, figures.lanes), figures)

    def _search(self, source: str) -> dict[str, _Label]:
        """The best path to every other device, save to those with one link in."""
        if source in self.searches:
            return self.searches[source]
        best: dict[str, _Label] = {}
        order = count()
        heap = [_Label(PIX, -inf, 0, next(order), source, _NO_PATH, over_numa=False)]
        while heap:
            label = heapq.heappop(heap)
            if label.device in best:
                continue
            best[label.device] = label
            if label.device != source and label.device in self.ends:
                continue
            for link in self.pcie_links[label.device]:
                if link.dst not in best and link.dst not in self.only_link:
                    heapq.heappush(heap, self._further(label, link, next(order)))
        self.searches[source] = best
        return best

    def _further(self, label: _Label, link: Link, order: int) -> _Label:
        rate = inf if link.gb_per_s is None else link.gb_per_s
        path = label.figures
        role = self.roles[link.dst]
        rate_source = max(path.gb_per_s_source, link.gb_per_s_source, key=_DOUBT.__getitem__)
        latency_source = max(path.latency_us_source, link.latency_us_source, key=_DOUBT.__getitem__)
        slowest = None if path.gb_per_s is None or link.gb_per_s is None else min(path.gb_per_s, link.gb_per_s)
        latency_us = None if path.latency_us is None or link.latency_us is None else path.latency_us + link.latency_us
        figures = Link("", "", "", None, slowest, latency_us, None, rate_source, latency_source)
        return _Label(
            max(label.level, _LEVELS[self.roles[link.src], role]),
            max(label.minus_gb_per_s, -rate),
            label.hops + 1,
            order,
            link.dst,
            figures,
            label.over_numa or role == "numa",
        )


def _role(device: Device) -> str:
    """Role of a device: host, numa, bridge (host bridge), switches (several in one), switch, adapter or end."""
    if device.kind in ("host", "numa"):
        return device.kind
    if device.kind != "switch" or is_port(device):
        return "end"
    name = device.name or ""
    if "host bridge" in name:
        return "bridge"
    return "adapter" if name == ADAPTER else "switches" if name == "PCIe switches" else "switch"


def _bundle(links: Sequence[Link]) -> Link:
    """Return parallel links of one direction as one."""
    return links[0]._replace(
        lanes=_total([link.lanes for link in links]),
        gb_per_s=_total([link.gb_per_s for link in links]),
        gb_per_s_source=_least_certain(link.gb_per_s_source for link in links),
        latency_us_source=_least_certain(link.latency_us_source for link in links),
    )


def _least_certain(sources: Iterable[FigureSource | None]) -> FigureSource | None:
    return max(sources, key=_DOUBT.__getitem__)


def _rate_or_none(link: Link) -> float:
    """Sort key with unknown rates first, as the slower end is then unknown."""
    return -1.0 if link.gb_per_s is None else link.gb_per_s


def _fabric_code(kind: str, lanes: int | None) -> str:
    words, bare = _FABRICS[kind]
    return bare if lanes is None else f"{words}{lanes:.0f}"


def _pair(a: str, b: str, code: str | None, path: Link) -> Pair:
    rate = None if path.gb_per_s == inf else path.gb_per_s
    latency = None if path.latency_us is None else round(path.latency_us, 6)
    rate_source = None if rate is None else path.gb_per_s_source
    return Pair(a, b, code, rate, latency, rate_source, None if latency is None else path.latency_us_source)


def _total(figures: Sequence[_N | None]) -> _N | None:
    """The sum; None where a figure is unknown."""
    known = [figure for figure in figures if figure is not None]
    return sum(known) if len(known) == len(figures) else None


def _least(figures: Sequence[_N | None]) -> _N | None:
    known = [figure for figure in figures if figure is not None]
    return min(known) if known and len(known) == len(figures) else None
