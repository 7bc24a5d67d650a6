"""Links of a machine of several captures: one capture's PCIe tree, one's fabric, and the figures of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any

from topocomm.topology.inference.host_tree import PairKey, group_words
from topocomm.topology.inference.nvlink import MAX_LINKS_PER_GPU
from topocomm.topology.links import NVSWITCH_HOP_US, both_ways
from topocomm.topology.merge.capture_numa import with_numa_nodes
from topocomm.topology.merge.capture_sources import RANK, SWITCH, Clashes, LinkSource, better_figures, between
from topocomm.topology.merge.device_matching import bus_key, label
from topocomm.topology.model import Device, InNetworkKind, Link, Pair

_REMOTE = "nvidia-smi nvlink -R"


class JoinedLinks:
    """Forwarding devices, links and pairs of a machine of several captures; pairs get the rates that a capture read.

    The fabric has the shape that one capture or `nvidia-smi nvlink -R` shows, and the lanes of all.
    """

    def __init__(self, sources: Sequence[LinkSource], devices: Sequence[Device], pairs: Mapping[PairKey, Pair]) -> None:
        self.sources, self.ends, self.pairs = sources, devices, dict(pairs)
        self.gpus = [device.id for device in devices if device.kind == "gpu"]
        self.clashes = Clashes()
        self.rates: dict[str, float] = {}
        """GB/s of one NVLink by GPU, from the first capture that read it."""
        for source in sources:
            common = source.facts.get("link_gb_per_s")
            by_gpu = _mapping(source.facts.get("link_gb_per_s_per_gpu"))
            shown = _mapping(source.facts.get("links_per_gpu"))
            for gpu in self.gpus:
                rate = by_gpu.get(gpu, common if gpu in shown else None)
                if isinstance(rate, float):
                    self.rates.setdefault(gpu, rate)
        tree_devices, tree_links, self.warnings = _tree(sources, devices)
        switches, links = self._fabric({device.id for device in (*devices, *tree_devices)})
        links = self._rated(links)
        self.devices = (*tree_devices, *switches)
        self.links = (*links, *tree_links)
        for key, lanes in list(self._coded()):
            rate = self._rate(key, lanes)
            if rate is not None:
                figure = Pair(*key, None, rate, gb_per_s_source="read")
                self.pairs[key], _ = better_figures(self.pairs[key], figure)
        ranks = [RANK[link.gb_per_s_source] for link in links if link.kind == "nvlink"]
        self.rates_read = bool(ranks) and min(ranks) >= RANK["read"]
        """Whether all rates of NVLinks were read or measured."""

    def _fabric(self, taken: set[str]) -> tuple[tuple[Device, ...], list[Link]]:
        base = max(self.sources, key=lambda s: (len({e for key in s.lanes for e in key} - {SWITCH}), bool(s.lanes)))
        remote = next((s for s in self.sources if s.topology.source == _REMOTE), None)
        switched = None if remote is None else self._is_switched(remote)
        if remote is not None and switched is not None:
            reshaped = self._reshaped(base, remote, switched, _unused("nvswitch0", set(taken)))
            if reshaped is not None:
                return reshaped
        if not base.lanes:
            return (), []
        names = {device.id: _unused(device.id, taken) for device in base.switches}
        links = [
            link._replace(src=names.get(link.src, link.src), dst=names.get(link.dst, link.dst)) for link in base.fabric
        ]
        links = [self._completed(link, base, set(names.values())) for link in links]
        self._check_totals(base)
        self.warnings += self.clashes.texts()
        return tuple(device._replace(id=names[device.id]) for device in base.switches), links

    def _is_switched(self, remote: LinkSource) -> bool | None:
        """Whether NVLinks lead to switches, by the reader's facts or the addresses of the machine's GPUs."""
        count = remote.facts.get("nvswitches")
        if isinstance(count, int):
            return count > 0
        known = [bus_key(device.bus_id) for device in self.ends if device.kind == "gpu"]
        ends = {bus_key(end) for ends in _mapping(remote.facts.get("remote")).values() for end in _mapping(ends)}
        if None in known or not ends:
            return None
        return True if not ends & set(known) else False if ends <= set(known) else None

    def _reshaped(
        self, base: LinkSource, remote: LinkSource, switched: bool, free: str
    ) -> tuple[tuple[Device, ...], list[Link]] | None:
        """The fabric in the shape that far ends show; None where the base has this shape."""
        if base.lanes and any(SWITCH in key for key in base.lanes) == switched:
            return None
        counts = self._switch_counts(remote) if switched else self._direct_counts(remote)
        if not counts:
            return None
        if base.lanes and base is not remote:
            shape = "into NVSwitches" if switched else "between GPUs"
            was = "between GPUs" if switched else "into NVSwitches"
            self.warnings.append(
                f"NVLinks lead {shape} ({label(remote.topology)}); {label(base.topology)} was read as links {was}"
            )
        old = base.lanes or remote.lanes
        links: list[Link] = []
        for (a, b), lanes in counts.items():
            b, latency_us = (free, NVSWITCH_HOP_US) if b == SWITCH else (b, None)
            link, _ = both_ways(a, b, "nvlink", lanes=lanes, latency_us=latency_us)
            per_lane = [x for key, x in old.items() if a in key and x.lanes and x.gb_per_s is not None]
            if per_lane:
                rate = (per_lane[0].gb_per_s or 0) / (per_lane[0].lanes or 1) * lanes
                link = link._replace(gb_per_s=rate, gb_per_s_source=per_lane[0].gb_per_s_source)
            links += (link, link._replace(src=b, dst=a))
        full: InNetworkKind | None = "nvls" if all(lanes == MAX_LINKS_PER_GPU for lanes in counts.values()) else None
        switch = Device(free, "switch", name="NVSwitch", in_network=full)
        return ((switch,) if switched else ()), links

    def _switch_counts(self, remote: LinkSource) -> dict[PairKey, int]:
        """Links into switches by GPU: the count of far ends, else the largest in the GPU's codes."""
        totals = _mapping(remote.facts.get("nvlink_total_per_gpu"))
        counts = {(gpu, SWITCH): n for gpu in self.gpus if isinstance(n := totals.get(gpu), int) and n}
        for (a, b), lanes in self._coded():
            for gpu in (a, b):
                if gpu not in totals:
                    counts[gpu, SWITCH] = max(lanes, counts.get((gpu, SWITCH), 0))
        return counts

    def _direct_counts(self, remote: LinkSource) -> dict[PairKey, int]:
        """Links between GPUs by pair, from far ends with the addresses of the GPUs, else from codes."""
        gpu_at = {bus_key(d.bus_id): d.id for d in self.ends if d.kind == "gpu" and d.bus_id}
        counts: dict[PairKey, int] = {}
        for gpu, ends in _mapping(remote.facts.get("remote")).items():
            for end, lanes in _mapping(ends).items():
                peer = gpu_at.get(bus_key(end))
                if peer is not None and (peer, gpu) not in counts and gpu in self.gpus and isinstance(lanes, int):
                    counts[gpu, peer] = lanes
        return counts or dict(self._coded())

    def _coded(self) -> Iterator[tuple[PairKey, int]]:
        for key, pair in self.pairs.items():
            if pair.code and pair.code[:2] == "NV" and pair.code[2:].isdigit() and set(key) <= set(self.gpus):
                yield key, int(pair.code[2:])

    def _completed(self, link: Link, base: LinkSource, switches: set[str]) -> Link:
        """A link of the fabric with the lanes and figures of other captures."""
        a, b = (SWITCH if end in switches else end for end in link[:2])
        if len(switches) > 1 and SWITCH in (a, b):
            return link  # its share of a sum is not known
        for source in self.sources:
            other = source.lanes.get((a, b))
            if source is base or other is None:
                continue
            if None not in (link.lanes, other.lanes) and link.lanes != other.lanes:
                words = [f"{link.lanes} links against {other.lanes}"]
            else:
                link = link._replace(lanes=link.lanes if link.lanes is not None else other.lanes)
                link, words = better_figures(link, other)
            self.clashes.add(base.topology, source.topology, (f"{between(a, b)} {w}" for w in words))
        return link

    def _check_totals(self, base: LinkSource) -> None:
        total: Counter[str] = Counter()
        for (src, _), link in base.lanes.items():
            if link.kind == "nvlink":
                total[src] += link.lanes or 0
        for source in self.sources:
            counted = _mapping(source.facts.get("nvlink_total_per_gpu"))
            odd = [
                f"{gpu} {total[gpu]} NVLinks against {n}"
                for gpu in self.gpus
                if source is not base and isinstance(n := counted.get(gpu), int) and total[gpu] and n != total[gpu]
            ]
            self.clashes.add(base.topology, source.topology, odd)

    def _rate(self, ends: Sequence[str], lanes: int | None) -> float | None:
        """Lanes times the rate of one link, the slower end's."""
        rates = [self.rates.get(end) for end in ends if end in self.gpus]
        if not lanes or not rates or None in rates:
            return None
        return round(lanes * min(rate for rate in rates if rate is not None), 6)

    def _rated(self, links: Sequence[Link]) -> list[Link]:
        rated = []
        odd: dict[str, None] = {}
        for link in links:
            rate = self._rate(link[:2], link.lanes) if link.kind == "nvlink" else None
            if rate is not None:
                figure = link._replace(gb_per_s=rate, gb_per_s_source="read", latency_us=None)
                link, words = better_figures(link, figure)
                odd |= dict.fromkeys(f"{between(link.src, link.dst)} {w}" for w in words)
            rated.append(link)
        if odd:
            differ = "rates of links that two captures read differ; the first kept"
            self.warnings.append(f"{group_words(list(odd))}: {differ}")
        return rated


def _tree(sources: Sequence[LinkSource], devices: Sequence[Device]) -> tuple[tuple[Device, ...], list[Link], list[str]]:
    """The tree of one capture, with the figures of slots from all: forwarding devices, links, warnings.

    A tree that joins all GPUs and NICs with their addresses is preferred to one made of codes, which knows no bridges;
    then the tree of most devices; then the one of most figures.
    """
    gpus, nics = ({device.id for device in devices if device.kind == kind} for kind in ("gpu", "nic"))
    without_nics = not any(nics & source.covered for source in sources)
    base = max(
        sources,
        key=lambda s: (
            gpus <= (known := s.covered & s.addressed) and (without_nics or bool(nics & known)),
            len(s.covered),
            sum(link.gb_per_s is not None for link in s.tree),
        ),
    )
    clashes = Clashes()
    links = []
    for link in base.tree:
        ends = [end for end in link[:2] if end in base.covered]
        if len(ends) == 1 and link.kind == "pcie":  # of a GPU or NIC to its slot
            for source in sources:
                slots = source.slots.get(ends[0], ())
                if source is not base and len(slots) == 1:
                    link, words = better_figures(link, slots[0]._replace(latency_us=None))
                    clashes.add(base.topology, source.topology, (f"PCIe link of {ends[0]} {w}" for w in words))
        links.append(link)
    covered = {device.id: device for device in devices if device.id in base.covered}
    missing = [device.id for device in devices if device.id not in base.covered]
    warnings = clashes.texts()
    if base.covered and missing:
        warnings.append(f"{group_words(missing)}: not in the tree of {label(base.topology)}; no PCIe links")
    return *with_numa_nodes(base.tree_devices, links, covered), warnings


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _unused(name: str, taken: set[str]) -> str:
    names = chain([name], (f"nvswitch{number}" for number in count()))
    taken.add(free := next(new for new in names if new not in taken))
    return free
