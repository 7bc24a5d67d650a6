"""What messages between the ranks of hosts that are alike hold of ports and links, the same numbers in every host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Ints, Routes


class PairLoads:
    """Loads of routes between pairs of ranks, in the time of a payload at the fastest rate.

    Attributes:
        fastest: That rate, in GB/s.
        rows: Number of ports and links: two ports of each rank of a host, to send and to receive, come first.
    """

    def __init__(self, routes: Routes, ends: tuple[Ints, Ints], paths: PathFinder, hosts: int, ports: int) -> None:
        self.routes = routes
        self.fastest = float(routes.gb_per_s[np.isfinite(routes.latency_us)].max(initial=0.0))
        rates = np.where(np.isfinite(routes.latency_us), routes.gb_per_s, self.fastest)
        self.of_route = self.fastest / rates / ports
        rows, users = _same_links(routes, paths, hosts)
        self.of_link = self.fastest / paths.link_gb_per_s[routes.links] * users
        self.ends, endpoints = ends, int(max(map(np.max, ends))) + 1
        self.links = rows + 2 * endpoints
        self.rows = int(self.links.max(initial=2 * endpoints - 1)) + 1

    def usable(self, routes: Sequence[int]) -> bool:
        """Whether there are such routes."""
        return bool(np.isfinite(self.routes.latency_us[list(routes)]).all())

    def loads(self, way: Sequence[int]) -> tuple[tuple[int, float], ...]:
        """Return the ports and links that the payload on these routes holds, and for how long."""
        low, high = self.routes.starts[list(way)], self.routes.starts[[route + 1 for route in way]]
        links = np.concatenate([np.arange(*pair) for pair in zip(low, high, strict=True)])
        src, dst = (end[list(way)] for end in self.ends)
        rows = np.concatenate([2 * src, 2 * dst + 1, self.links[links]])
        loads = np.bincount(rows, np.concatenate([*[self.of_route[list(way)]] * 2, self.of_link[links]]))
        used = np.flatnonzero(loads)
        return tuple(zip(used.tolist(), loads[used].tolist(), strict=True))


def _same_links(routes: Routes, paths: PathFinder, hosts: int) -> tuple[Ints, Ints]:
    """Return for each link of the routes a number that is the same in all hosts, and how often a host's use counts.

    The links between switches serve the links of the chain of all pairs of hosts.
    """
    classes = paths.classes
    counts = np.diff(classes.link_start)
    position, owner = np.empty((2, len(classes.links)), np.int64)
    position[classes.links] = np.arange(len(classes.links)) - np.repeat(classes.link_start[:-1], counts)
    owner[classes.links] = np.repeat(np.arange(len(counts)), counts)
    of_host = owner[routes.links] > 0
    number = np.where(of_host, position[routes.links], -1 - position[routes.links])
    return np.unique(number, return_inverse=True)[1], np.where(of_host, 1, max(hosts - 1, 1))
