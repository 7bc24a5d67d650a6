"""The hops of messages between the ranks of hosts that are alike: what each holds and takes, and the cheapest ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import pairwise, permutations

import numpy as np

from topocomm.planning.forests.pair_loads import PairLoads
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.scan_trees.rank_trees import NO_RANK

Way = tuple[int, ...]
"""Ranks of the first two hosts, from one end of a message to the other."""
MOST_RELAYS = 2
"""Relays of a way to the next host, one in each; inside a host a way has one at most."""
MOST_SHARING, SAME = 4, 1e-9
"""Most ranks that share a link whose messages exclude others; and by how much times differ that are equal."""


class HostHops:
    """Hops inside a host, and to the next one; numbers of ranks from `members` on are in the next host.

    Attributes:
        members: Ranks of a host.
        hosts: Number of hosts.
        on_gpus: Whether the ranks have GPUs.
        several: Whether there are several: then all but the first hear what comes before them.
        fastest: GB/s at which a payload takes the unit of time.
        loads: [hops, rows]: how long the payload holds each port and link; the last hop is from a rank to itself.
        takes: [hops]: how long it holds the ports of its ends.
        latency_us: [hops].
        across_us: Least latency of a message to the next host.
    """

    def __init__(self, endpoints: Sequence[str], paths: PathFinder, members: int, ports: int) -> None:
        self.members, self.hosts = members, len(endpoints) // members
        self.several = self.hosts > 1
        self.on_gpus = paths.topology.by_id[endpoints[0]].kind == "gpu"
        window = endpoints[: 2 * members]
        count = len(window)
        src, dst = np.nonzero(~np.eye(count, dtype=bool))
        routes = paths.routes(window, src, dst)
        pairs = PairLoads(routes, (src % members, dst % members), paths, self.hosts, ports)
        self._reached = np.append(np.isfinite(routes.latency_us), True)
        self._hop = np.full((count, count), len(src))
        self._hop[src, dst] = np.arange(len(src))
        self.fastest = pairs.fastest
        self.loads = np.zeros((len(src) + 1, pairs.rows))
        for hop in np.flatnonzero(self._reached[:-1]).tolist():
            rows, times = zip(*pairs.loads([hop]), strict=True)
            self.loads[hop, list(rows)] = times
        rate = np.where(self._reached[:-1], routes.gb_per_s, np.inf)
        self.takes = np.append(pairs.fastest / rate, 0.0)
        self.latency_us = np.append(np.where(self._reached[:-1], routes.latency_us, 0.0), 0.0)
        across = (src < members) & (dst >= members)
        self.across_us = float(routes.latency_us[across].min(initial=np.inf)) if self.several else 0.0
        one_host = len({paths.topology.by_id[end].host for end in endpoints}) == 1
        self._ends = (src[:0], dst[:0]) if ports > 1 or one_host else (src, dst)

    def with_exclusions(self) -> HostHops:
        """Return the same hops with more rows: of hops of which no two go at once, for more than one port or link.

        What fills a link that few ranks share, as a NIC, goes one after the other. That which a sends, or b gets,
        excludes the message from a to b, which is on another link, by one of its ports. On one host links that ranks
        share join few pairs.
        """
        more = copy(self)
        more.loads = np.hstack([self.loads, *self._exclusions()])
        return more

    def _exclusions(self) -> Iterator[Floats]:
        (src, dst), members = self._ends, self.members
        inside = (src < members) & (dst < members)
        src, dst = src % members, dst % members
        for link in range(2 * members, self.loads.shape[1]) if len(src) else ():
            held = self.loads[:-1, link]
            over = np.flatnonzero(held > 0)
            if not len(over) or (held[over] < self.takes[over] - SAME).any():
                continue
            sharing = {tuple(np.unique(ends[over]).tolist()) for ends in (src, dst)}
            pairs = {pair for ends in sharing if len(ends) <= MOST_SHARING for pair in permutations(ends, 2)}
            for a, b in sorted(pairs):
                between = inside & (src == a) & (dst == b) & (held == 0)
                excluded = np.where(between, self.takes[:-1], np.where((src == a) | (dst == b), held, 0.0))
                if between.any():
                    yield np.append(excluded, 0.0)[:, None]

    def hops(self, way: Way) -> list[int]:
        """Return the hops of a way."""
        ends = [(a - self.members, b - self.members) if a >= self.members else (a, b) for a, b in pairwise(way)]
        return [int(self._hop[pair]) for pair in ends]

    def on_all(self, ranks: Ints) -> Ints:
        """Return ranks of the first two hosts, [chunks, members, ...], as those of each host and the next.

        What is beyond the last host is NO_RANK.
        """
        first = np.repeat(np.arange(self.hosts) * self.members, self.members)
        every = np.tile(ranks, (1, self.hosts, *[1] * (ranks.ndim - 2)))
        moved = every + first.reshape(1, -1, *[1] * (ranks.ndim - 2))
        return np.where((every == NO_RANK) | (moved >= self.hosts * self.members), NO_RANK, moved)

    def ways(self, row_price: Floats, us_price: float, hop_us: float = 0.0) -> Ways:
        """Return the cheapest ways, at a price of each port and link and of a us; infinite without one.

        A hop takes its latency, and so many us more.
        """
        price = np.where(self._reached, self.loads @ row_price + us_price * (self.latency_us + hop_us), np.inf)
        price[-1] = 0.0  # from a rank to itself
        return Ways(price[self._hop], self.members)


class Ways:
    """The cheapest ways.

    Attributes:
        inside: [members, members]: price from one rank of a host to another.
        across: [members, members]: price from a rank to one of the next host; empty where there is none.
    """

    def __init__(self, price: Floats, members: int) -> None:
        self._members, straight = members, price[:members, :members]
        by_relay = straight[:, :, None] + straight[None]
        self._relay = by_relay.argmin(axis=1)
        self.inside = by_relay.min(axis=1)
        to_next = straight[:, :, None] + price[None, :members, members:]
        self._leaves = to_next.argmin(axis=1)
        arrives = to_next.min(axis=1)[:, :, None] + straight[None] if to_next.size else to_next
        self._enters = arrives.argmin(axis=1) if to_next.size else self._leaves
        self.across = arrives.min(axis=1) if to_next.size else to_next[:, 0]

    def way(self, src: int, dst: int) -> Way:
        """Return the way between two ranks of a host, or from one to a rank of the next."""
        if dst < self._members:
            stops = [src, int(self._relay[src, dst]), dst]
        else:
            enters = int(self._enters[src, dst - self._members])
            stops = [src, int(self._leaves[src, enters]), self._members + enters, dst]
        return tuple(stop for at, stop in enumerate(stops) if at == 0 or stop != stops[at - 1])


def padded(relays: Sequence[int]) -> list[int]:
    """Return relays of a way, and NO_RANK for those that it has not."""
    return [*relays, *[NO_RANK] * (MOST_RELAYS - len(relays))]
