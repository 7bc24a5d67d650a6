"""Cheapest routes between endpoints: least latency, then most bandwidth, then lowest ids.

Messages travel through devices that are no endpoints only. A figure that the topology does not know is taken
from the table of link kinds and remembered in `PathFinder.assumed`, so that a plan can say what it assumed.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import PlanError
from topocomm.topology import links as link_table
from topocomm.topology.model import ENDPOINT_KINDS, Link, Topology

Edge = tuple[str, str]


class NoRouteError(PlanError):
    """No path leads from one endpoint to another through devices that forward."""


@dataclass(frozen=True)
class Route:
    """One way from endpoint to endpoint."""

    devices: tuple[str, ...]
    latency_us: float
    gb_per_s: float
    gap_us: float

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """The directed links of the route."""
        return tuple(pairwise(self.devices))


@dataclass(frozen=True)
class Figures:
    """What the planner reckons with for one directed link."""

    latency_us: float
    gb_per_s: float
    gap_us: float


class PathFinder:
    """Routes on one topology, found by Dijkstra from each source once and kept."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.assumed: dict[str, str] = {}
        """What had to be assumed, by link kind, in words."""
        self.links: dict[Edge, Figures] = {}
        self._next: dict[str, list[str]] = {}
        for link in topology.links:
            self._add(link.src, link.dst, self._figures(link))
        self._ends = {d.id for d in topology.devices if d.kind in ENDPOINT_KINDS}
        self._from: dict[str, dict[str, Route]] = {}

    def cheapest(self, src: str, dst: str) -> Route:
        """The cheapest route between two endpoints.

        Two ranks of one endpoint talk through its nearest forwarding device and back; an endpoint without one
        (direct links only) reaches itself at no cost.

        Raises:
            NoRouteError: There is none, or one of them is no endpoint of the topology.
        """
        if src == dst and src in self._ends:
            return self._hairpin(src)
        if src not in self._from:
            self._from[src] = self._search(src)
        route = self._from[src].get(dst)
        if route is None:
            known = src in self._ends and dst in self._ends
            why = "no path leads there through switches, NICs and NUMA nodes" if known else "not an endpoint"
            raise NoRouteError(f"topology {self.topology.name!r}: {src} -> {dst}: {why}")
        return route

    def latency_us(self, src: str, dst: str) -> float:
        """Latency of the cheapest route, infinite where there is none."""
        try:
            return self.cheapest(src, dst).latency_us
        except NoRouteError:
            return inf

    def latencies_us(self, sources: Sequence[str], targets: Sequence[str]) -> NDArray[np.float64]:
        """Latencies of the cheapest routes, pair by pair; infinite where there is none."""
        return np.array([self.latency_us(a, b) for a, b in zip(sources, targets, strict=True)])

    def explicit(self, devices: Sequence[str], src: str, dst: str) -> Route:
        """The route along the given devices, checked link by link.

        Raises:
            PlanError: It does not lead from src to dst, uses a missing link, or passes through an endpoint.
        """
        edges = tuple(pairwise(devices))
        missing = [edge for edge in edges if edge not in self.links]
        if not edges or devices[0] != src or devices[-1] != dst or missing or self._ends & set(devices[1:-1]):
            raise PlanError(f"path {' -> '.join(devices)} does not lead from {src} to {dst} over existing links")
        return self._route(tuple(devices))

    def _hairpin(self, end: str) -> Route:
        turns = [d for d in self._next.get(end, ()) if d not in self._ends and (d, end) in self.links]
        routes = [self._route((end, turn, end)) for turn in turns]
        nothing = Route((end,), 0.0, inf, 0.0)
        return min(routes, key=lambda r: (r.latency_us, -r.gb_per_s, r.devices), default=nothing)

    def _figures(self, link: Link) -> Figures:
        latency, bandwidth = link.latency_us, link.gb_per_s
        if latency is None or bandwidth is None:
            kind = link_table.assume(link.kind)
            if latency is None:
                latency = kind.latency_us
                self.assumed.setdefault(f"{link.kind} latency", f"{link.kind} latency {latency} us ({kind.source})")
            if bandwidth is None:
                bandwidth = kind.gb_per_s * (link.lanes or 1)
                self.assumed.setdefault(f"{link.kind} GB/s", f"{link.kind} {kind.gb_per_s} GB/s a lane ({kind.source})")
        if latency < 0 or bandwidth <= 0:
            raise PlanError(
                f"topology {self.topology.name!r}: link {link.src} -> {link.dst} has {bandwidth} GB/s and "
                f"{latency} us; expected a positive bandwidth and a latency of at least 0"
            )
        return Figures(latency, bandwidth, link.gap_us or 0.0)

    def _add(self, src: str, dst: str, new: Figures) -> None:
        known = self.links.get((src, dst))
        if known is None:
            self._next.setdefault(src, []).append(dst)
            self.links[src, dst] = new
        else:  # parallel links: bandwidths add up
            self.links[src, dst] = Figures(
                min(known.latency_us, new.latency_us),
                known.gb_per_s + new.gb_per_s,
                max(known.gap_us, new.gap_us),
            )

    def _search(self, src: str) -> dict[str, Route]:
        found: dict[str, Route] = {}
        done: set[str] = set()
        heap: list[tuple[float, float, tuple[str, ...]]] = [(0.0, -inf, (src,))]
        while heap:
            latency, negative_bandwidth, path = heapq.heappop(heap)
            device = path[-1]
            if device in done:
                continue
            done.add(device)
            if device != src and device in self._ends:
                found[device] = self._route(path)
                continue
            for after in self._next.get(device, ()):
                if after not in done:
                    edge = self.links[device, after]
                    width = max(negative_bandwidth, -edge.gb_per_s)
                    heapq.heappush(heap, (latency + edge.latency_us, width, (*path, after)))
        return found

    def _route(self, devices: tuple[str, ...]) -> Route:
        edges = [self.links[edge] for edge in pairwise(devices)]
        return Route(
            devices,
            sum(edge.latency_us for edge in edges),
            min(edge.gb_per_s for edge in edges),
            max(edge.gap_us for edge in edges),
        )
