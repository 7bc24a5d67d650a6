"""Cheapest routes by Dijkstra, on the whole machine or, for hosts that look alike, once for all of them.

A *label* is (latency, minus bandwidth, device ids): the least one of a device is its cheapest route, and ties go to the
lowest ids. `RouteTemplates` searches the routes of a pair of hosts on these two and the network alone. That is exact
if a path through a third host (or back through the first) never reaches a network device as early as the path that
stays in the network, which is checked for each source. Routes between hosts of one class are the same up to ids, since
the order of ids is part of the class (`host_classes`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple, TypeVar

from topocomm.planning.routing.host_classes import NETWORK, HostClasses
from topocomm.planning.routing.routes import Edge, Figures

Label = tuple[float, float, tuple[str, ...]]
AnyLabel = TypeVar("AnyLabel", bound=tuple[Any, ...])
Neighbours = Mapping[str, Sequence[tuple[str, Figures]]]

SAME_US = 1e-9
"""Difference below which latencies count as equal: sums in another order."""
SOURCE, DESTINATION, ELSEWHERE = 0, 1, 2
"""Owner of a template's links: the source's group, the destination's, or neither (positions count all links)."""


def nearest_first(
    heap: list[AnyLabel], device_of: Callable[[AnyLabel], Hashable], onward: Callable[[AnyLabel], Iterable[AnyLabel]]
) -> None:
    """Call `onward` once for every device that is reached, with its least label, in rising order (Dijkstra 1959).

    `heap` has the initial labels in any order and is emptied; `onward` returns labels of the next devices, none less.
    """
    heapq.heapify(heap)
    reached = set[Hashable]()
    while heap:
        label = heapq.heappop(heap)
        device = device_of(label)
        if device not in reached:
            reached.add(device)
            for following in onward(label):
                heapq.heappush(heap, following)


def spread(heap: list[Label], after: Neighbours, ends: Container[str]) -> dict[str, Label]:
    """Return the least label of every device reached from the initial labels, passing through no device of `ends`."""
    least: dict[str, Label] = {}

    def onward(label: Label) -> Iterator[Label]:
        latency, width, path = label
        device = path[-1]
        least[device] = label
        if device in ends and len(path) > 1:
            return
        for following, edge in after.get(device, ()):
            if following not in least:
                yield latency + edge.latency_us, max(width, -edge.gb_per_s), (*path, following)

    nearest_first(heap, lambda label: label[2][-1], onward)
    return least


def neighbours(links: Mapping[Edge, Figures], edges: Iterable[Edge]) -> dict[str, list[tuple[str, Figures]]]:
    """Return (next device, figures) of the edges that leave each device."""
    by_device: dict[str, list[tuple[str, Figures]]] = {}
    for edge in edges:
        by_device.setdefault(edge[0], []).append((edge[1], links[edge]))
    return by_device


def turn(end: str, links: Mapping[Edge, Figures], after: Neighbours, ends: Container[str]) -> tuple[str, ...]:
    """Return the path of an endpoint to its nearest forwarding device and back; without one, the endpoint alone."""
    turns = []
    for device, out in after.get(end, ()):
        back = links.get((device, end))
        if back is not None and device not in ends:
            width = min(out.gb_per_s, back.gb_per_s)
            turns.append((out.latency_us + back.latency_us, -width, (end, device, end)))
    return min(turns, default=(0.0, 0.0, (end,)))[2]


def along(devices: Sequence[str], links: Mapping[Edge, Figures]) -> Figures:
    """Return the figures of a route: the sum of latencies from its source on, the least GB/s, and the largest gap."""
    latency_us, gb_per_s, gap_us = 0.0, inf, 0.0
    for edge in pairwise(devices):
        figures = links[edge]
        latency_us += figures.latency_us
        gb_per_s, gap_us = min(gb_per_s, figures.gb_per_s), max(gap_us, figures.gap_us)
    return Figures(latency_us, gb_per_s, gap_us)


class Template(NamedTuple):
    """A route between places of two groups, for all groups of their classes.

    `devices` and `links` are pairs of an owner (`SOURCE`, `DESTINATION`, or `ELSEWHERE`: the network's) and the place,
    or the position among the links of `HostClasses`.
    """

    latency_us: float
    gb_per_s: float
    gap_us: float
    devices: tuple[tuple[int, int], ...]
    links: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Host:
    """The lowest group of a class: its links inside, out to the network, and in from there."""

    inner: dict[str, list[tuple[str, Figures]]]
    out: dict[str, list[tuple[str, Figures]]]
    into: dict[str, list[tuple[str, Figures]]]


class RouteTemplates:
    """Routes between places of classes, searched when first needed and kept."""

    def __init__(self, classes: HostClasses, links: Mapping[Edge, Figures]) -> None:
        self._classes, self._links = classes, links
        self._edges = list(links)
        self._ends = {classes.ids[device] for device in classes.is_end.nonzero()[0].tolist()}
        self._network = neighbours(links, (self._edges[number] for number in classes.links_of(NETWORK)))
        self._hosts: dict[int, _Host] = {}
        self._positions: dict[int, dict[Edge, int]] = {}
        self._reached: dict[tuple[int, int], dict[str, Label] | None] = {}
        self._entered: dict[tuple[int, int, int], dict[str, Label]] = {}
        self._templates: dict[tuple[int, int, int, int, bool], Template | None] = {}

    def exact(self, kind: int, place: int) -> bool:
        """Whether templates give the routes from a place of a class; if not, the whole machine must be searched."""
        return self._reach(kind, place) is not None

    def template(self, kind: int, place: int, other: int, target_place: int, same: bool) -> Template | None:
        """Return the route from a place of class `kind` to one of class `other`, in the `same` group or in two."""
        key = (kind, place, other, target_place, same)
        if key in self._templates:
            return self._templates[key]
        source, target = self._id(kind, place), self._id(other, target_place)
        path: tuple[str, ...] | None = None
        if same and place == target_place:
            host = self._host(kind)
            after = {source: [*host.inner.get(source, ()), *host.out.get(source, ())]}
            path = turn(source, self._links, after, self._ends)
        else:
            reached = self._reach(kind, place)
            if reached is None:
                raise ValueError(f"{source}: its routes are not those of its class")
            label = reached.get(target) if same else self._enter(kind, place, other).get(target)
            path = label and label[2]
        self._templates[key] = None if path is None else self._as_template(path, kind, other, same)
        return self._templates[key]

    def _reach(self, kind: int, place: int) -> dict[str, Label] | None:
        """Labels of the source's own group and the network; None if a route could pass through a third host."""
        key = (kind, place)
        if key not in self._reached:
            host = self._host(kind)
            after: dict[str, list[tuple[str, Figures]]] = {name: list(on) for name, on in self._network.items()}
            for part in (host.inner, host.out, host.into):
                for name, on in part.items():
                    after.setdefault(name, []).extend(on)
            labels = spread([(0.0, -inf, (self._id(kind, place),))], after, self._ends)
            passed = (
                (labels[enters][0] + us, leaves) for (enters, leaves), us in self._passages.items() if enters in labels
            )
            has_shortcut = any(
                leaves not in labels or through_us <= labels[leaves][0] + SAME_US * max(1.0, through_us)
                for through_us, leaves in passed
            )
            self._reached[key] = None if has_shortcut else labels
        return self._reached[key]

    def _enter(self, kind: int, place: int, other: int) -> dict[str, Label]:
        """Labels of another group's devices, reached over the network."""
        key = (kind, place, other)
        if key not in self._entered:
            reached, host = self._reach(kind, place) or {}, self._host(other)
            heap = []
            for name, doors in host.into.items():
                if name in reached:
                    latency, width, path = reached[name]
                    heap += [
                        (latency + edge.latency_us, max(width, -edge.gb_per_s), (*path, door)) for door, edge in doors
                    ]
            self._entered[key] = spread(heap, host.inner, self._ends)
        return self._entered[key]

    @cached_property
    def _passages(self) -> dict[tuple[str, str], float]:
        """Least latency from a network device through one host to another network device."""
        least_us: dict[tuple[str, str], float] = {}
        for kind in range(len(self._classes.first)):
            host = self._host(kind)
            if len(host.into.keys() | {after for on in host.out.values() for after, _ in on}) < 2:
                continue
            for enters, doors in host.into.items():
                heap: list[Label] = [(edge.latency_us, 0.0, (door,)) for door, edge in doors if door not in self._ends]
                for device, (latency_us, _, _) in spread(heap, host.inner, self._ends).items():
                    for leaves, edge in () if device in self._ends else host.out.get(device, ()):
                        if leaves != enters:
                            known_us = least_us.get((enters, leaves), inf)
                            least_us[enters, leaves] = min(known_us, latency_us + edge.latency_us)
        return least_us

    def _as_template(self, path: tuple[str, ...], kind: int, other: int, same: bool) -> Template:
        classes = self._classes
        groups = [int(classes.group[classes.index[device]]) for device in path]
        last = max((at for at, group in enumerate(groups) if group == NETWORK), default=NETWORK)
        owners = [
            ELSEWHERE if group == NETWORK else DESTINATION if at > last and not same else SOURCE
            for at, group in enumerate(groups)
        ]
        links = []
        for (a, b), edge in zip(pairwise(owners), pairwise(path), strict=True):
            owner = min(a, b)
            group = NETWORK if owner == ELSEWHERE else classes.first[kind if owner == SOURCE else other]
            links.append((owner, self._position(group, edge)))
        return Template(
            *along(path, self._links),
            tuple(
                (owner, int(classes.place[classes.index[device]])) for owner, device in zip(owners, path, strict=True)
            ),
            tuple(links),
        )

    def _position(self, group: int, edge: Edge) -> int:
        if group not in self._positions:
            numbers = self._classes.links_of(group)
            self._positions[group] = {self._edges[number]: position for position, number in enumerate(numbers)}
        return self._positions[group][edge]

    def _host(self, kind: int) -> _Host:
        if kind not in self._hosts:
            classes = self._classes
            inner: list[Edge] = []
            out: list[Edge] = []
            into: list[Edge] = []
            for number in classes.links_of(classes.first[kind]):
                edge = self._edges[number]
                a, b = (int(classes.group[classes.index[device]]) for device in edge)
                (into if a == NETWORK else out if b == NETWORK else inner).append(edge)
            self._hosts[kind] = _Host(*(neighbours(self._links, part) for part in (inner, out, into)))
        return self._hosts[kind]

    def _id(self, kind: int, place: int) -> str:
        return self._classes.id_at(self._classes.first[kind], place)
