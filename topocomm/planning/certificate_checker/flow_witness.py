"""The bound of a flow witness with plain dictionaries: what `bounds/flow_over_time.py` proves, computed apart."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf

from topocomm.errors import PlanError
from topocomm.planning.certificate_checker.witness_graph import WitnessGraph

Weights = Sequence[tuple[str, str, float]]
"""(source, destination, weight) of links; (endpoint, "in" or "out", weight) of ports."""


def least_flow_us(
    graph: WitnessGraph, ends: tuple[str, str], links: Weights, ports: Weights, at_once: int, value_us: float
) -> float:
    """Return the least T at which by weight the windows of links and ports have room for the value.

    `value_us` is what the value takes at a GB/s; the weights are scaled such that no way costs less than 1 a byte.
    """
    weight = {(src, dst): each for src, dst, each in links}
    held = {(end, side): each for end, side, each in ports}
    if not weight.keys() <= graph.links.keys() or min([0.0, *weight.values(), *held.values()]) < 0:
        raise PlanError("certificate: flow witness: expected links of the topology, and weights of at least 0")
    if any(end not in graph.ends or side not in ("in", "out") for end, side in held):
        raise PlanError("certificate: flow witness: expected ports of endpoints with ranks")
    costs = {
        (src, dst): (weight.get((src, dst), 0.0) + held.get((src, "out"), 0.0) + held.get((dst, "in"), 0.0)) / rate
        for (src, dst), (_, rate, _) in graph.links.items()
    }
    cheapest = _least(costs, {ends[0]: 0.0}, set())[ends[1]]
    if not cheapest > 0:
        raise PlanError("certificate: flow witness: some way holds nothing of what has a weight")
    offsets = _Offsets(graph, ends)
    windows = [(offsets.link(src, dst), each) for (src, dst), each in weight.items()]
    windows += [(offsets.port(end, side), each * at_once) for (end, side), each in held.items()]
    low, high = 0.0, max(offset for offset, each in windows if each) + 1.0

    def room(us: float) -> float:
        return sum(each * max(0.0, us - offset) for offset, each in windows)

    while room(high) < value_us * cheapest:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if room(middle) >= value_us * cheapest else (middle, high)
    return high


def _least(costs: Mapping[tuple[str, str], float], starts: Mapping[str, float], stops: set[str]) -> dict[str, float]:
    """Return the least cost to every device from the starts; those of `stops` that it comes to do not pass it on."""
    after: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for (src, dst), cost in costs.items():
        after[src].append((dst, cost))
    best = defaultdict[str, float](lambda: inf, {} if stops else starts)
    heap = [(cost + more, dst) for device, cost in starts.items() for dst, more in after[device]]
    heapq.heapify(heap)
    while heap:
        cost, device = heapq.heappop(heap)
        if cost >= best[device]:
            continue
        best[device] = cost
        if device not in stops:
            for dst, more in after[device]:
                heapq.heappush(heap, (cost + more, dst))
    return best


class _Offsets:
    """By how much the windows of links and ports are shorter than the time."""

    def __init__(self, graph: WitnessGraph, ends: tuple[str, str]) -> None:
        self.latency_us = {link: latency for link, (latency, _, _) in graph.links.items()}
        back = {(dst, src): latency for (src, dst), latency in self.latency_us.items()}
        come_us = _least(self.latency_us, {ends[0]: 0.0}, set())
        self.onward_us = _least(back, {ends[1]: 0.0}, set())
        own = {end: come_us[end] for end in graph.ends}
        at_once = dict.fromkeys(self.latency_us, 0.0)
        # When a message whose route passes a device begins at the earliest, and its latency until there.
        self.begins_us = {**_least(at_once, own, graph.ends), **own}
        self.passed_us = {
            **_least(self.latency_us, dict.fromkeys(graph.ends, 0.0), graph.ends),
            **dict.fromkeys(graph.ends, 0.0),
        }

    def link(self, src: str, dst: str) -> float:
        """Return that of a link."""
        return self._of(self.begins_us, src) + self._of(self.passed_us, src) + self._onward(src, dst)

    def port(self, end: str, side: str) -> float:
        """Return that of a port: of its messages the earliest begin, and the least after the bytes of one."""
        links = [link for link in self.latency_us if link[side == "in"] == end]
        if not links:
            raise PlanError(f"certificate: flow witness: {end} has no link {side}")
        first_us = min(self._of(self.begins_us, src) for src, _ in links)
        return first_us + min(self._of(self.passed_us, src) + self._onward(src, dst) for src, dst in links)

    def _onward(self, src: str, dst: str) -> float:
        return self.latency_us[src, dst] + self.onward_us[dst]

    def _of(self, times: Mapping[str, float], device: str) -> float:
        return times.get(device, inf)
