"""Distances and capacities for `check_certificate`, by plain searches over dictionaries."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import TypeVar

from topocomm.topology.links import assume
from topocomm.topology.model import ENDPOINT_KINDS, Topology

Label = TypeVar("Label")


class WitnessGraph:
    """Devices that hold ranks (by their endpoints) or forward, and the links between them; parallel links are one."""

    def __init__(self, topology: Topology, ranks: Sequence[str]) -> None:
        self.ends = set(ranks)
        self.devices = {d.id for d in topology.devices if d.kind not in ENDPOINT_KINDS or d.id in self.ends}
        self.links: dict[tuple[str, str], tuple[float, float, float]] = {}
        for link in topology.links:
            if link.src in self.devices and link.dst in self.devices:
                kind = assume(link.kind)
                latency = kind.latency_us if link.latency_us is None else link.latency_us
                rate = kind.gb_per_s * (link.lanes or 1) if link.gb_per_s is None else link.gb_per_s
                before = self.links.get((link.src, link.dst), (inf, 0.0, 0.0))
                gap = max(before[2], link.gap_us or 0.0)
                self.links[link.src, link.dst] = (min(before[0], latency), before[1] + rate, gap)
        self.after: dict[str, list[tuple[str, float]]] = {device: [] for device in self.devices}
        for (src, dst), (latency, _, _) in self.links.items():
            self.after[src].append((dst, latency))

    def relayed_us(self, src: str, dst: str) -> float:
        """Return the least latency from one endpoint to another, relays allowed."""
        return self._search(src, dst, by_hops=False)

    def hops(self, src: str, dst: str) -> int:
        """Return the least messages in a row from one endpoint to another."""
        return int(self._search(src, dst, by_hops=True))

    def _search(self, src: str, dst: str, *, by_hops: bool) -> float:
        """Search over all devices (Dijkstra); by hops, a link costs 1 if it leaves an endpoint."""
        best = {src: 0.0}
        heap = [(0.0, src)]
        while heap:
            cost, device = heapq.heappop(heap)
            if device == dst:
                return cost
            if cost > best[device]:
                continue
            for after, latency in self.after[device]:
                total = cost + (float(device in self.ends) if by_hops else latency)
                if total < best.get(after, inf):
                    best[after] = total
                    heapq.heappush(heap, (total, after))
        return inf

    def cheapest_us(self, labels: Mapping[str, Label]) -> float:
        """Return the least latency of a message between endpoints with different labels.

        One search from all endpoints at once visits every device from its two nearest labels.
        """
        visits: dict[str, list[Label]] = {device: [] for device in self.devices}
        order = sorted(labels)
        heap = [(latency, after, index) for index, end in enumerate(order) for after, latency in self.after[end]]
        heapq.heapify(heap)
        while heap:
            cost, device, index = heapq.heappop(heap)
            label = labels[order[index]]
            if device in self.ends:
                if labels[device] != label:
                    return cost
                continue
            if label in visits[device] or len(visits[device]) > 1:
                continue
            visits[device].append(label)
            for after, latency in self.after[device]:
                heapq.heappush(heap, (cost + latency, after, index))
        return inf

    def fastest_rates(self, end: str, *, into: bool) -> dict[str, float]:
        """Return, for each other endpoint, the GB/s of the slowest link of the fastest route to (from) it."""
        near: dict[str, list[tuple[str, float]]] = {device: [] for device in self.devices}
        for (src, dst), (_, rate, _) in self.links.items():
            tail, head = (dst, src) if into else (src, dst)
            near[tail].append((head, rate))
        best: dict[str, float] = {}
        heap = [(-rate, device) for device, rate in near[end]]
        heapq.heapify(heap)
        while heap:
            rate, device = heapq.heappop(heap)
            if device == end or device in best:
                continue
            best[device] = -rate
            if device not in self.ends:
                for after, onward in near[device]:
                    heapq.heappush(heap, (max(rate, -onward), after))
        return {device: rate for device, rate in best.items() if device in self.ends}

    def turn_us(self, ranks: Iterable[str]) -> float:
        """Return the least latency between two ranks of one endpoint, by a forwarding device; 0 without one."""
        out: dict[str, float] = {}
        into: dict[str, float] = {}
        back = set()
        for (src, dst), (latency, _, _) in self.links.items():
            if src in self.ends and dst not in self.ends:
                out[src] = min(out.get(src, inf), latency)
                back |= {src} if (dst, src) in self.links else set()
            if dst in self.ends and src not in self.ends:
                into[dst] = min(into.get(dst, inf), latency)
        shared = [end for end, count in Counter(ranks).items() if count > 1]
        return min((out[end] + into[end] if end in back else 0.0 for end in shared), default=inf)

    def least_gap_us(self) -> float:
        """Return a gap that every message has at least, as it leaves an endpoint and enters one."""
        leaving = [gap for (src, _), (_, _, gap) in self.links.items() if src in self.ends]
        entering = [gap for (_, dst), (_, _, gap) in self.links.items() if dst in self.ends]
        return max(min(leaving, default=0.0), min(entering, default=0.0))

    def borders(self, groups: Sequence[set[str]], *, into: bool) -> float:
        """Return the GB/s of the links that enter, or leave, each group of devices, in all."""
        member: dict[str, list[int]] = {device: [] for device in self.devices}
        for index, group in enumerate(groups):
            for device in sorted(group):
                member[device].append(index)
        total = 0.0
        for (src, dst), (_, rate, _) in self.links.items():
            outside, inside = (src, dst) if into else (dst, src)
            total += rate * sum(group not in member[outside] for group in member[inside])
        return total

    def fastest_leaving(self, groups: Sequence[set[str]]) -> float:
        """Return the GB/s of the fastest link that leaves one of the groups of devices."""
        group_of = {device: index for index, group in enumerate(groups) for device in group}
        return max(rate for (src, dst), (_, rate, _) in self.links.items() if _leaves(group_of, src, dst))

    def fastest_across(self, group: set[str], *, into: bool) -> float:
        """Return the GB/s of the fastest link that enters, or leaves, a group of devices."""
        between = ((src in group, dst in group, rate) for (src, dst), (_, rate, _) in self.links.items())
        return max(rate for *ends, rate in between if ends == [not into, into])

    def rates_at(self, device: str, *, into: bool) -> list[float]:
        """Return the GB/s of each link into, or out of, a device."""
        return [rate for (src, dst), (_, rate, _) in self.links.items() if device == (dst if into else src)]


def _leaves(group_of: Mapping[str, int], src: str, dst: str) -> bool:
    return src in group_of and group_of[src] != group_of.get(dst)
