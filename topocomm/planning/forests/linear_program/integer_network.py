"""The machine as integers, for packing trees: endpoints of ranks first, then forwarding devices.

Endpoints without a rank and forwarding devices in dead ends are left out: no message between ranks can use them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.route_search import nearest_first

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Network:
    """Directed links between numbered devices; device r < `ends` is the endpoint of rank r.

    Attributes:
        devices: Device ids by number: endpoints in rank order, then forwarding devices in the topology's order.
        ends: Number of endpoints.
        links: (source, destination) of every directed link, sorted.
        gb_per_s: float64 [links].
        latency_us: float64 [links].
    """

    devices: tuple[str, ...]
    ends: int
    links: tuple[tuple[int, int], ...]
    gb_per_s: Floats
    latency_us: Floats

    @cached_property
    def index(self) -> dict[tuple[int, int], int]:
        """Link number by (source, destination)."""
        return {link: number for number, link in enumerate(self.links)}

    @cached_property
    def reverse(self) -> Ints:
        """Number of the opposite link, int64 [links], -1 where there is none."""
        return np.array([self.index.get((b, a), -1) for a, b in self.links], dtype=np.int64)

    @cached_property
    def symmetric(self) -> bool:
        """Whether every link has one of equal bandwidth in the other direction."""
        return bool((self.reverse >= 0).all() and (self.gb_per_s[self.reverse] == self.gb_per_s).all())

    @cached_property
    def connected(self) -> bool:
        """Whether every endpoint reaches every other, relays allowed."""
        return all(max(network.hops_from(0)[: self.ends]) < inf for network in (self, self.transposed()))

    @cached_property
    def neighbours(self) -> list[list[tuple[int, int]]]:
        """(neighbour, link to it) of every device, by number."""
        out: list[list[tuple[int, int]]] = [[] for _ in self.devices]
        for number, (a, b) in enumerate(self.links):
            out[a].append((b, number))
        return out

    def transposed(self) -> Network:
        """Return the network with all links reversed; link numbers change."""
        order = sorted(range(len(self.links)), key=lambda link: self.links[link][::-1])
        links = tuple(self.links[link][::-1] for link in order)
        return Network(self.devices, self.ends, links, self.gb_per_s[order], self.latency_us[order])

    def hops_from(self, root: int) -> list[float]:
        """Return the least latency from an endpoint to every device in us, relays allowed; infinite if out of reach."""
        distance_us = [inf] * len(self.devices)
        latency_us = self.latency_us.tolist()

        def onward(label: tuple[float, int]) -> list[tuple[float, int]]:
            so_far_us, device = label
            distance_us[device] = so_far_us
            return [
                (so_far_us + latency_us[link], neighbour)
                for neighbour, link in self.neighbours[device]
                if distance_us[neighbour] == inf
            ]

        nearest_first([(0.0, root)], itemgetter(1), onward)
        return distance_us


def network_of(paths: PathFinder, endpoints: Sequence[str]) -> Network:
    """Return the network between the endpoints of the ranks, which must be distinct."""
    numbers = {end: rank for rank, end in enumerate(endpoints)}
    ends = {d.id for d in paths.topology.devices if d.kind in ("gpu", "cpu")}
    usable = {edge: figures for edge, figures in paths.links.items() if not set(edge) & ends - set(numbers)}
    useful = _useful(usable, set(numbers))
    for device in paths.topology.devices:
        if device.id in useful:
            numbers.setdefault(device.id, len(numbers))
    kept = sorted((numbers[a], numbers[b], figures) for (a, b), figures in usable.items() if {a, b} <= set(numbers))
    return Network(
        tuple(numbers),
        len(endpoints),
        tuple((a, b) for a, b, _ in kept),
        np.array([figures.gb_per_s for *_, figures in kept]),
        np.array([figures.latency_us for *_, figures in kept]),
    )


def _useful(links: Iterable[tuple[str, str]], ends: set[str]) -> set[str]:
    """Return the devices that are in no dead end."""
    around: dict[str, set[str]] = {}
    for a, b in links:
        if a != b:
            around.setdefault(a, set()).add(b)
            around.setdefault(b, set()).add(a)
    dead = [device for device, neighbours in around.items() if len(neighbours) < 2 and device not in ends]
    while dead:
        device = dead.pop()
        for neighbours in around.pop(device):
            around[neighbours].discard(device)
            if len(around[neighbours]) < 2 and neighbours not in ends and neighbours not in dead:
                dead.append(neighbours)
    return set(around)
