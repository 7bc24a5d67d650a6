"""Ways between hosts by the NICs of both ranks: the cheapest route may lead all ranks of a host to one of its NICs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.route_search import along

Way = tuple[str, ...]
"""Device ids from a source to a destination."""


class OwnNics:
    """A NIC for every endpoint, and the ways that leave and enter hosts by them."""

    def __init__(self, endpoints: Iterable[str], paths: PathFinder) -> None:
        """Give each endpoint the nearest NIC of its host; ranks that are as near to several take them in turn."""
        self._paths = paths
        self._known: dict[tuple[str, str], Way | None] = {}
        devices, nics = paths.topology.by_id, defaultdict[str, list[str]](list)
        self._number: dict[str, int] = {}
        """As in `PathFinder.link_nics`."""
        for device in paths.topology.devices:
            if device.kind == "nic":
                nics[device.host].append(device.id)
                self._number[device.id] = len(self._number)
        self._of: dict[str, str] = {}
        users = Counter[str]()
        for end in dict.fromkeys(endpoints):
            reached = {nic: (*self._there(end, nic), *self._there(nic, end)) for nic in nics[devices[end].host]}
            if reached and (least := min(reached.values()))[0] < float("inf"):
                near = [nic for nic, figures in reached.items() if figures == least]
                self._of[end] = min(near, key=lambda nic: users[nic])
                users[self._of[end]] += 1

    def ways(self, sources: Sequence[str], targets: Sequence[str]) -> list[Way]:
        """Return the way of each message; empty: the cheapest route, which uses these NICs, or there is no other."""
        ways: list[Way] = [()] * len(sources)
        ends = tuple(dict.fromkeys((*sources, *targets)))
        number = {end: index for index, end in enumerate(ends)}
        src, dst = (np.array([number[end] for end in side], dtype=np.int64) for side in (sources, targets))
        nic = np.array([self._number.get(self._of.get(end, ""), -1) for end in ends], dtype=np.int64)
        routes = self._paths.routes(ends, src, dst)
        used = self._paths.link_nics[routes.links]
        of = np.repeat(np.arange(len(src)), routes.hops)
        has_both = np.ones(len(src), dtype=bool)
        for own in (nic[src], nic[dst]):
            has_both &= np.bincount(of, used == own[of], len(src)) > 0
        other = ~has_both & (nic[src] >= 0) & (nic[dst] >= 0)
        for message in np.flatnonzero(other).tolist():
            ways[message] = self._way(sources[message], targets[message])
        return ways

    def _way(self, src: str, dst: str) -> Way:
        out, into = self._of[src], self._of[dst]
        parts = [self._between(a, b) for a, b in ((src, out), (out, into), (into, dst))]
        if not all(parts):
            return ()
        way = tuple(device for part in parts for device in (part or ())[1:])
        return (src, *way) if len(set(way)) == len(way) else ()

    def _between(self, a: str, b: str) -> Way | None:
        if (a, b) not in self._known:
            self._known[a, b] = self._paths.between(a, b)
        return self._known[a, b]

    def _there(self, a: str, b: str) -> tuple[float, float]:
        """Return (latency in us, the less the more GB/s) of the way between two devices; infinite without one."""
        way = self._between(a, b)
        if way is None:
            return float("inf"), 0.0
        figures = along(way, self._paths.links)
        return figures.latency_us, -figures.gb_per_s
