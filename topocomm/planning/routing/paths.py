"""Cheapest routes between endpoints: least latency, then most bandwidth, then lowest ids.

Messages travel only through devices that are no endpoints. A figure that the topology does not know is taken from the
table of link kinds and noted in `PathFinder.assumed`. Hosts that look alike are searched once (`route_search`), so a
cluster of thousands needs no table of pairs.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import PlanError
from topocomm.planning.routing.host_classes import NETWORK, HostClasses, host_classes
from topocomm.planning.routing.route_search import (
    ELSEWHERE,
    Label,
    Neighbours,
    RouteTemplates,
    Template,
    along,
    neighbours,
    spread,
)
from topocomm.planning.routing.routes import Edge, Floats, Ints, Routes, link_figures
from topocomm.planning.schedule.schedule import spans
from topocomm.topology.model import Topology

MOST_KEPT_ENDPOINTS = 256
"""Endpoints of the largest machine whose routes a thread keeps for its next plan."""
_NO_ROUTE = Template(np.inf, 0.0, 0.0, (), ())


class NoRouteError(PlanError):
    """No path leads from one endpoint to another through devices that forward."""


@dataclass(frozen=True)
class Route:
    """One route from endpoint to endpoint."""

    devices: tuple[str, ...]
    latency_us: float
    gb_per_s: float
    gap_us: float

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """The directed links of the route."""
        return tuple(pairwise(self.devices))


class PathFinder:
    """Routes on one topology, each searched once and kept.

    Attributes:
        links: The figures of every directed link.
        assumed: Assumptions on unknown figures in words, by link kind.

    Raises:
        PlanError: A link has an impossible figure; the message names it.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.links, self.assumed = link_figures(topology)
        self._routes: dict[Edge, Route] = {}
        self._explicit: dict[tuple[str, ...], Route] = {}
        self._labels: dict[str, dict[str, Label]] = {}
        self._of_code: dict[int, Template] = {}
        self._placed: tuple[tuple[str, ...], Ints] | None = None

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """The directed links by number."""
        return tuple(self.links)

    @cached_property
    def link_gb_per_s(self) -> NDArray[np.float64]:
        """float64 [links]: GB/s of every directed link, by number."""
        return np.array([figures.gb_per_s for figures in self.links.values()], dtype=float)

    @cached_property
    def link_ends(self) -> tuple[Ints, Ints]:
        """int64 [links] twice: source and destination device of every directed link."""
        index = self.classes.index
        src, dst = ([index[edge[side]] for edge in self.links] for side in (0, 1))
        return np.array(src, dtype=np.int64), np.array(dst, dtype=np.int64)

    @cached_property
    def link_nics(self) -> Ints:
        """int64 [links]: number of the NIC that every directed link leads to; -1 for other devices."""
        nics = [device.id for device in self.topology.devices if device.kind == "nic"]
        number = {name: nic for nic, name in enumerate(nics)}
        return np.array([number.get(dst, -1) for _, dst in self.links], dtype=np.int64)

    @cached_property
    def classes(self) -> HostClasses:
        """The classes of hosts that look alike."""
        return host_classes(self.topology, self.links)

    def cheapest(self, src: str, dst: str) -> Route:
        """Return the cheapest route between two endpoints.

        Two ranks of one endpoint communicate through its nearest forwarding device and back; an endpoint without one
        (direct links only) reaches itself at no cost.

        Raises:
            NoRouteError: There is none, or one of them is no endpoint of the topology.
        """
        if (src, dst) in self._routes:
            return self._routes[src, dst]
        if src not in self._ends or dst not in self._ends:
            raise NoRouteError(f"topology {self.topology.name!r}: {src} -> {dst}: not an endpoint")
        classes = self.classes
        a, b = classes.index[src], classes.index[dst]
        template = self._template(a, b)
        if template is _NO_ROUTE:
            why = "no path leads there through switches, NICs and NUMA nodes"
            raise NoRouteError(f"topology {self.topology.name!r}: {src} -> {dst}: {why}")
        groups = int(classes.group[a]), int(classes.group[b]), NETWORK
        devices = tuple(classes.id_at(groups[owner], place) for owner, place in template.devices)
        if not devices:
            devices = self.between(src, dst) or ()
        route = self._routes[src, dst] = Route(devices, *along(devices, self.links))
        return route

    def latencies_us(self, sources: Sequence[str], targets: Sequence[str]) -> Floats:
        """Return float64 [n]: latency of the cheapest route from each source to its target, infinite without one."""
        ranks = np.arange(len(sources))
        return self.message_latencies_us([*sources, *targets], ranks, ranks + len(sources))

    def message_latencies_us(
        self, endpoints: Sequence[str], src: NDArray[np.integer], dst: NDArray[np.integer]
    ) -> Floats:
        """Return float64 [n]: the latencies of `routes`."""
        device = self._devices(endpoints)
        templates, inverse = self._templates_of(device[src], device[dst])
        latency_us: Floats = np.array([template.latency_us for template in templates], dtype=float)[inverse]
        return latency_us

    def routes(self, endpoints: Sequence[str], src: NDArray[np.integer], dst: NDArray[np.integer]) -> Routes:
        """Return the cheapest routes of n messages from ranks `src` to `dst`; of infinite latency without one."""
        classes, device = self.classes, self._devices(endpoints)
        a, b = device[src], device[dst]
        templates, inverse = self._templates_of(a, b)
        figures = np.array([template[:3] for template in templates], dtype=float).reshape(-1, 3)[inverse]
        latency_us, gb_per_s, gap_us = figures.T
        hops = np.array([len(template.links) for template in templates], dtype=np.int64)
        links = np.array([link for template in templates for link in template.links], dtype=np.int64)
        starts, places = spans((np.cumsum(hops) - hops)[inverse], hops[inverse])
        owner, position = links.reshape(-1, 2)[places].T
        begin = np.stack([*(classes.link_start[classes.group[end] + 1] for end in (a, b)), np.zeros_like(a)])
        of = np.repeat(np.arange(len(a)), hops[inverse])
        return Routes(latency_us, gb_per_s, gap_us, starts, classes.links[begin[owner, of] + position])

    def routes_of_all(self, endpoints: Sequence[str], src: NDArray[np.integer], dst: NDArray[np.integer]) -> Routes:
        """Return `routes`, of which every message must have one.

        Raises:
            NoRouteError: One of these messages has no route.
        """
        routes = self.routes(endpoints, src, dst)
        lost = np.flatnonzero(~np.isfinite(routes.latency_us))
        if len(lost):
            ends = f"{endpoints[src[lost[0]]]} -> {endpoints[dst[lost[0]]]}"
            raise NoRouteError(f"topology {self.topology.name!r}: {ends}: no route")
        return routes

    def explicit(self, devices: Sequence[str], src: str, dst: str) -> Route:
        """Return the route along the given devices, checked link by link.

        Raises:
            PlanError: It does not lead from src to dst, uses a missing link, or passes through an endpoint.
        """
        known = self._explicit.get(tuple(devices))
        if known is not None and (devices[0], devices[-1]) == (src, dst):
            return known
        edges = tuple(pairwise(devices))
        missing = [edge for edge in edges if edge not in self.links]
        if not edges or devices[0] != src or devices[-1] != dst or missing or self._ends & set(devices[1:-1]):
            raise PlanError(f"path {' -> '.join(devices)} does not lead from {src} to {dst} over existing links")
        route = self._explicit[tuple(devices)] = Route(tuple(devices), *along(devices, self.links))
        return route

    def between(self, src: str, dst: str) -> tuple[str, ...] | None:
        """Return the devices of the cheapest way from one device to another, past no endpoint; None without one."""
        if src not in self._labels:
            self._labels[src] = spread([(0.0, -np.inf, (src,))], self._after, self._ends)
        label = self._labels[src].get(dst)
        return None if label is None else label[2]

    def columns(self, routes: Sequence[Route]) -> Routes:
        """Return the given routes as columns."""
        number = self._number
        links = [number[edge] for route in routes for edge in route.edges]
        return Routes(
            np.array([route.latency_us for route in routes], dtype=float),
            np.array([route.gb_per_s for route in routes], dtype=float),
            np.array([route.gap_us for route in routes], dtype=float),
            np.cumsum([0, *(len(route.edges) for route in routes)]),
            np.array(links, dtype=np.int64),
        )

    def _devices(self, endpoints: Sequence[str]) -> Ints:
        """int64 [ranks]: the device of each rank, -1 for unknown ids; cached for the last tuple of endpoints."""
        if self._placed is None or self._placed[0] is not endpoints:
            index = self.classes.index
            devices = np.array([index.get(name, -1) for name in endpoints], dtype=np.int64)
            if not isinstance(endpoints, tuple):
                return devices
            self._placed = endpoints, devices
        return self._placed[1]

    @cached_property
    def _ends(self) -> frozenset[str]:
        return frozenset(self.classes.ids[device] for device in self.classes.is_end.nonzero()[0].tolist())

    @cached_property
    def _templates(self) -> RouteTemplates:
        return RouteTemplates(self.classes, self.links)

    @cached_property
    def _after(self) -> Neighbours:
        return neighbours(self.links, self.links)

    @cached_property
    def _number(self) -> dict[Edge, int]:
        return {edge: number for number, edge in enumerate(self.links)}

    @cached_property
    def _position(self) -> Ints:
        """int64 [links]: position of each link in `classes.links`."""
        position = np.empty_like(self.classes.links)
        position[self.classes.links] = np.arange(len(position))
        return position

    def _templates_of(self, a: Ints, b: Ints) -> tuple[list[Template], Ints]:
        """The templates of pairs of devices, each once, and the index of each pair's."""
        codes, first, inverse = np.unique(self._codes(a, b), return_index=True, return_inverse=True)
        known, templates = self._of_code, []
        for code, *pair in zip(codes.tolist(), a[first].tolist(), b[first].tolist(), strict=True):
            if code not in known:
                known[code] = self._template(*pair)
            templates.append(known[code])
        return templates, inverse

    def _codes(self, a: Ints, b: Ints) -> Ints:
        """int64 [n]: equal for pairs of devices with one template; -1 where one is no endpoint."""
        classes = self.classes
        alike = classes.alike[a], classes.alike[b]
        kinds = int(classes.alike.max(initial=-1)) + 1
        code = (alike[0] * kinds + alike[1]) * 2 + (classes.group[a] == classes.group[b])
        ends = (a >= 0) & (b >= 0) & (alike[0] >= 0) & (alike[1] >= 0)
        _, first, inverse = np.unique(alike[0][ends], return_index=True, return_inverse=True)
        alone = np.zeros(len(a), dtype=bool)
        alone[ends] = np.array([not self.has_template(end) for end in a[ends][first].tolist()], dtype=bool)[inverse]
        code = np.where(alone & (a != b), -2 - (a * len(classes.ids) + b), code)
        return np.where(ends, code, -1)

    def has_template(self, end: int) -> bool:
        """Whether the routes of a device's class hold for the device, given by its place in `classes.ids`."""
        classes = self.classes
        return self._templates.exact(int(classes.class_of[classes.group[end]]), int(classes.place[end]))

    def _template(self, a: int, b: int) -> Template:
        """The route between two devices, by their classes if possible."""
        classes = self.classes
        if min(a, b) < 0 or not (classes.is_end[a] and classes.is_end[b]):
            return _NO_ROUTE
        if a == b or self.has_template(a):
            kind, other = (int(classes.class_of[classes.group[end]]) for end in (a, b))
            same = bool(classes.group[a] == classes.group[b])
            places = int(classes.place[a]), int(classes.place[b])
            return self._templates.template(kind, places[0], other, places[1], same) or _NO_ROUTE
        devices = self.between(classes.ids[a], classes.ids[b])
        if devices is None:
            return _NO_ROUTE
        numbers = [self._number[edge] for edge in pairwise(devices)]
        links = tuple((ELSEWHERE, int(self._position[number])) for number in numbers)
        return Template(*along(devices, self.links), (), links)


class LastPaths(threading.local):
    """The routes of the machine that this thread planned for last."""

    paths: PathFinder | None = None

    def of(self, topology: Topology) -> PathFinder:
        """Return the routes of a machine, with those searched before; of large machines none are kept."""
        if len(topology.endpoints) > MOST_KEPT_ENDPOINTS:
            return PathFinder(topology)
        if self.paths is None or self.paths.topology is not topology:
            self.paths = PathFinder(topology)
        return self.paths


last_paths = LastPaths()
