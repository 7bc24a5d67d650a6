"""Pair codes from devices and links alone, by the rules of NCCL's `src/graph/paths.cc`.

NVLink and xGMI come first: `NV4` and `XGMI2` count the links between two GPUs, and behind a switch the links of a GPU
into it. Any other way leads over PCIe and the processors: the best type wins, then the most bandwidth, then the fewest
links. One PCIe switch on the way makes PIX, several make PXB, a processor PHB, two of them SYS. No way leads through a
GPU or a NIC, so two hosts that meet in a network only have no code.

nvidia-smi's wording differs in one code: what meets between the host bridges of one NUMA node is NODE, where NCCL,
which knows no host bridges, says PHB.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, combinations, count
from math import inf
from typing import Literal, NamedTuple

from topocomm.topology.inference.host_tree import NODE, PHB, PIX, PXB, SYS
from topocomm.topology.links import PATH_LATENCY_US
from topocomm.topology.model import Device, FigureSource, Link, Pair, Topology

Wording = Literal["nccl", "nvidia-smi"]

_CODES = ("PIX", "PXB", "PHB", "NODE", "SYS")
ADAPTER = "network adapter"
"""Name of the device that stands for a network card with several ports; it is no PCIe switch."""
PORT = "network port"
"""Begins the names of devices for such a card's ports but the first, which is the NIC: so cards can be counted."""

_FABRICS = {"nvlink": ("NV", "NVL"), "xgmi": ("XGMI", "XGMI")}
"""Code before a number of links, and where the number is not known."""

_SOURCES: tuple[FigureSource | None, ...] = ("measured", "read", "table", "assumed", None)
_DOUBT = {source: place for place, source in enumerate(_SOURCES)}
_NODE_FROM_US = (PATH_LATENCY_US["PHB"] + PATH_LATENCY_US["NODE"]) / 2


class _Figures(NamedTuple):
    """Of a way so far: GB/s of its slowest link and the sum of latencies, None once a link does not say its own."""

    gb_per_s: float | None = inf
    latency_us: float | None = 0.0
    gb_per_s_doubt: int = 0
    latency_us_doubt: int = 0
    """Index in `_SOURCES` of the least certain figure; the last entry is 'not said'."""

    def after(self, link: Link) -> _Figures:
        """With one more link."""
        rate, latency = self.gb_per_s, self.latency_us
        return _Figures(
            None if rate is None or link.gb_per_s is None else min(rate, link.gb_per_s),
            None if latency is None or link.latency_us is None else latency + link.latency_us,
            max(self.gb_per_s_doubt, _DOUBT[link.gb_per_s_source]),
            max(self.latency_us_doubt, _DOUBT[link.latency_us_source]),
        )


class _Label(NamedTuple):
    """A way to a device; ways compare by type, then bandwidth, then number of links, then who was found first."""

    level: int
    minus_gb_per_s: float
    hops: int
    order: int
    device: str
    figures: _Figures
    over_numa: bool


def code(topology: Topology, a: str, b: str, *, wording: Wording = "nccl") -> str | None:
    """The code of two endpoints of a topology (GPU, CPU or NIC); None where no way joins them.

    Args:
        topology: Its pairs do not count.
        a: One device id.
        b: The other.
        wording: Whose codes: NCCL has no NODE.
    """
    return _Paths(topology, wording).pair(a, b).code


def is_port(device: Device) -> bool:
    """Whether it is a NIC, or a further port of one."""
    return device.kind == "nic" or (device.name or "").startswith(PORT)


def pairs(topology: Topology, *, wording: Wording = "nccl") -> tuple[Pair, ...]:
    """Every GPU-GPU and GPU-NIC pair, in the order of the devices: code, GB/s of the slowest link, latency.

    A figure is None where a link on the way does not say it, and as certain as the least certain one.

    Args:
        topology: Its pairs do not count.
        wording: Whose codes: NCCL has no NODE.
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
        self.roads: dict[str, list[Link]] = defaultdict(list)
        ways_in = Counter[str]()
        for link in topology.links:
            if link.kind in _FABRICS and not self._is_root(link.src) and not self._is_root(link.dst):
                self.fabric[link.src][link.dst].append(link)
            else:
                self.roads[link.src].append(link)
                ways_in[link.dst] += 1
        roads = (link for links in self.roads.values() for link in links)
        self.only_way = {link.dst: link for link in roads if link.dst in self.ends and ways_in[link.dst] == 1}
        self.roles = {d.id: _role(d) for d in topology.devices}
        self.searched: dict[str, dict[str, _Label]] = {}

    def pair(self, a: str, b: str) -> Pair:
        """The pair with its figures."""
        found = self._over_fabric(a, b) if a in self.fabric and b in self.fabric else None
        return found or self._over_pcie(a, b)

    def _is_root(self, device: str) -> bool:
        """True for processors: a GPU's NVLink to one (POWER9) is a way through it, not to another GPU."""
        return self.devices[device].kind in ("numa", "host", "cpu")

    def _over_fabric(self, a: str, b: str) -> Pair | None:
        """Direct links, else the switches that both reach, which add up; the end with fewer links counts."""
        mine, other = self.fabric[a], self.fabric[b]
        if b in mine and a in other:
            # Direct links that the two GPUs count differently are a contradiction: such a pair has no code.
            there, back = _bundle(mine[b]), _bundle(other[a])
            kind, lanes = mine[b][0].kind, there.lanes
            name = None if None not in (lanes, back.lanes) and lanes != back.lanes else _fabric_code(kind, lanes)
            slower = min(there, back, key=_rate_or_none)
            return _pair(a, b, name, slower.figures)
        common = [switch for switch in mine if switch in other and self.devices[switch].kind == "switch"]
        if not common:
            return None
        ways = [[_bundle(mine[switch]), _bundle(other[switch])] for switch in common]
        narrow = [min(way, key=_rate_or_none) for way in ways]
        lanes = _total([_least([ends.lanes for ends in way]) for way in ways])
        latency = _total([ends.figures.latency_us for ends in ways[0]])
        every = [ends.figures for way in ways for ends in way]
        figures = _Figures(
            _total([ends.figures.gb_per_s for ends in narrow]),
            latency,
            max(f.gb_per_s_doubt for f in every),
            max(f.latency_us_doubt for f in every),
        )
        return _pair(a, b, _fabric_code(mine[common[0]][0].kind, lanes), figures)

    def _over_pcie(self, a: str, b: str) -> Pair:
        label = self._best(a, b)
        if label is None:
            return Pair(a, b, None)
        level, figures = label.level, label.figures
        # `host_tree` puts no device in for a host bridge with one device or switch below, so where a NUMA node joins
        # two of them directly, only the latency tells one host bridge from two.
        if level == PHB and label.over_numa and (figures.latency_us or 0.0) > _NODE_FROM_US:
            level = NODE
        return _pair(a, b, _CODES[PHB if level == NODE and self.wording == "nccl" else level], figures)

    def _best(self, a: str, b: str) -> _Label | None:
        last = self.only_way.get(b)
        if last is None or a == b:
            return self._search(a).get(b)
        if last.src != a and last.src in self.ends:
            return None
        label = self._search(a).get(last.src)
        return None if label is None else self._further(label, last, 0)

    def _search(self, source: str) -> dict[str, _Label]:
        """The best way from a device to every other that it reaches, save for those that have only one way in."""
        if source in self.searched:
            return self.searched[source]
        best: dict[str, _Label] = {}
        order = count()
        heap = [_Label(PIX, -inf, 0, next(order), source, _Figures(), over_numa=False)]
        while heap:
            label = heapq.heappop(heap)
            if label.device in best:
                continue
            best[label.device] = label
            if label.device != source and label.device in self.ends:
                continue
            for link in self.roads[label.device]:
                if link.dst not in best and link.dst not in self.only_way:
                    heapq.heappush(heap, self._further(label, link, next(order)))
        self.searched[source] = best
        return best

    def _further(self, label: _Label, link: Link, order: int) -> _Label:
        rate = inf if link.gb_per_s is None else link.gb_per_s
        return _Label(
            max(label.level, self._level(link.src, link.dst)),
            max(label.minus_gb_per_s, -rate),
            label.hops + 1,
            order,
            link.dst,
            label.figures.after(link),
            label.over_numa or self.roles[link.dst] == "numa",
        )

    def _level(self, a: str, b: str) -> int:
        """What a step between two devices makes of a way at least."""
        one, other = self.roles[a], self.roles[b]
        if one == "host" or other == "host" or one == other == "numa":
            return SYS
        if one == "numa" or other == "numa":
            return NODE if one == "bridge" or other == "bridge" else PHB
        if one == "bridge" or other == "bridge":
            return PHB
        return PXB if one == "switches" or other == "switches" or one == other == "switch" else PIX


def _role(device: Device) -> str:
    """`host`, `numa`, `bridge` (to the processor), `switches` (several in one device), `switch`, `adapter` or `end`."""
    if device.kind in ("host", "numa"):
        return device.kind
    if device.kind != "switch" or is_port(device):
        return "end"
    name = device.name or ""
    if "host bridge" in name:
        return "bridge"
    return "adapter" if name == ADAPTER else "switches" if name == "PCIe switches" else "switch"


class _Bundle(NamedTuple):
    """Parallel links of one direction as one."""

    lanes: float | None
    figures: _Figures


def _bundle(links: Sequence[Link]) -> _Bundle:
    return _Bundle(
        _total([link.lanes for link in links]),
        _Figures(
            _total([link.gb_per_s for link in links]),
            links[0].latency_us,
            max(_DOUBT[link.gb_per_s_source] for link in links),
            max(_DOUBT[link.latency_us_source] for link in links),
        ),
    )


def _rate_or_none(ends: _Bundle) -> float:
    """Sorts what is not known first: the slower end of a way is then not known either."""
    return -1.0 if ends.figures.gb_per_s is None else ends.figures.gb_per_s


def _fabric_code(kind: str, lanes: float | None) -> str:
    words, bare = _FABRICS[kind]
    return bare if lanes is None else f"{words}{lanes:.0f}"


def _pair(a: str, b: str, code: str | None, figures: _Figures) -> Pair:
    rate = None if figures.gb_per_s == inf else figures.gb_per_s
    latency = None if figures.latency_us is None else round(figures.latency_us, 6)
    return Pair(
        a,
        b,
        code,
        rate,
        latency,
        None if rate is None else _SOURCES[figures.gb_per_s_doubt],
        None if latency is None else _SOURCES[figures.latency_us_doubt],
    )


def _total(figures: Sequence[float | None]) -> float | None:
    """The sum; None where one is not known."""
    known = [figure for figure in figures if figure is not None]
    return sum(known) if len(known) == len(figures) else None


def _least(figures: Sequence[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return min(known) if known and len(known) == len(figures) else None
