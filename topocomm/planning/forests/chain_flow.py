"""The links of a chain of ranks, each over several ways at once: relays carry what the direct route cannot.

Rank r sends the whole payload to rank r + 1. Every such link of the chain is cut into shares, which go straight or
over one or two relays, such that the busiest port or link is as little busy as can be: a linear program. Hosts that are
alike have the same shares, so there is one program for one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations, product

import numpy as np

from topocomm.planning.forests.linear_program.simplex import Simplex
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Ints, Routes

MOST_PERIOD, MOST_TWO_RELAYS = 16, 8
"""Ranks of the largest host, and of the largest whose links go over two relays other than a rail's."""
HOP_PRICE = 0.01
"""What a message of the whole payload costs in shares of the fastest rate: every hop delays what follows."""
LEAST_SHARE, LEAST_OF_WIDEST, SOLVED = 0.08, 0.4, 2
"""A share below it, and below that part of the widest way's, is not worth a message; and how often the program is
solved, the last times without their ways."""
FAST_ENOUGH = 1.05
"""By how much longer than the payload at the fastest rate a port may be busy if no relay is looked for."""
STRAIGHT = 2
"""Ranks of a way without relays."""
Way = tuple[int, ...]
"""Ranks from one end of a link of the chain to the other."""


@dataclass(frozen=True)
class ChainFlow:
    """The ways of the links of a chain whose hosts are alike.

    Attributes:
        period: Ranks of a host.
        hosts: Number of hosts.
        ways: For each rank of a host the ways to the next rank, as ranks of the first two hosts, and their shares,
            which sum to 1. With one host, there is none for the last rank.
    """

    period: int
    hosts: int
    ways: tuple[tuple[tuple[Way, float], ...], ...]
    loads: dict[tuple[int, int], tuple[tuple[int, float], ...]]
    """Ports and links, by number, and how long the payload holds each, of a message between ranks on the ways."""

    @property
    def is_direct(self) -> bool:
        """Whether nothing is relayed."""
        return all(len(own) == 1 and len(own[0][0]) == STRAIGHT for own in self.ways)


def chain_flow(endpoints: Sequence[str], paths: PathFinder, period: int, ports: int) -> ChainFlow | None:
    """Return the flow of a chain through these endpoints; None where a host has too many ranks or a link no way.

    Args:
        endpoints: Endpoint of each rank, hosts of `period` ranks one after the other that are alike (`period_of`).
        paths: Routes of the machine.
        period: Ranks of a host.
        ports: Messages that an endpoint sends, and receives, at once.
    """
    hosts = len(endpoints) // period
    if not 1 < len(endpoints) <= MOST_PERIOD * hosts or len(set(endpoints)) < len(endpoints):
        return None
    window = endpoints[: 2 * period]
    src, dst = np.nonzero(~np.eye(len(window), dtype=bool))
    number = {pair: route for route, pair in enumerate(zip(src.tolist(), dst.tolist(), strict=True))}
    program = _Program(paths.routes(window, src, dst), (src % period, dst % period), paths, hosts, ports)
    chosen = []
    for rank in range(period if hosts > 1 else period - 1):
        routes = {way: [number[hop] for hop in pairwise(way)] for way in _ways(rank, period)}
        chosen.append({way: own for way, own in routes.items() if program.usable(own)})
    if not all(chosen):
        return None
    if program.is_fast_enough([next(iter(own.values())) for own in chosen]):
        chosen = [dict([next(iter(own.items()))]) for own in chosen]
    for _ in range(SOLVED):  # again without those that are not worth a message
        shares = program.shares([list(own.values()) for own in chosen])
        kept = tuple(_kept(*pair) for pair in zip(chosen, shares, strict=True))
        chosen = [{way: own[way] for way, _ in of_link} for own, of_link in zip(chosen, kept, strict=True)]
    hops = {hop for own in kept for way, _ in own for hop in pairwise(way)}
    return ChainFlow(period, hosts, kept, {hop: program.loads([number[hop]]) for hop in hops})


def period_of(endpoints: Sequence[str], starts: Sequence[int], paths: PathFinder) -> int:
    """Return the ranks of a host where all hosts are alike; else those of all hosts together, as if they were one.

    `starts` has the first rank of each host, and the number of ranks.
    """
    classes = paths.classes
    alike = classes.alike[[classes.index[end] for end in endpoints]]
    kinds = {tuple(alike[low:high].tolist()) for low, high in pairwise(starts)}
    return starts[1] if len(kinds) == 1 else len(endpoints)


def _ways(rank: int, period: int) -> Iterator[Way]:
    """The ways from a rank of the first host to the next rank: straight, or over relays in the hosts of both."""
    here, there = range(period), range(period, 2 * period)
    after = rank + 1
    yield rank, after
    near = [relay for relay in here if relay not in (rank, after)]
    if after < period:
        yield from ((rank, relay, after) for relay in near)
        if period <= MOST_TWO_RELAYS:
            yield from ((rank, *relays, after) for relays in permutations(near, 2))
        return
    far = [relay for relay in there if relay != after]
    yield from ((rank, relay, after) for relay in (*near, *far))
    for a, b in product(near, far):
        if period <= MOST_TWO_RELAYS or b - a == period:
            yield rank, a, b, after


class _Program:
    """The linear program: the most of the payload per time that every link of the chain can carry."""

    def __init__(self, routes: Routes, ends: tuple[Ints, Ints], paths: PathFinder, hosts: int, ports: int) -> None:
        self.routes = routes
        self.fastest = float(routes.gb_per_s[np.isfinite(routes.latency_us)].max(initial=0.0))
        """A payload at this rate takes the unit of time."""
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

    def is_fast_enough(self, ways: Sequence[Sequence[int]]) -> bool:
        """Whether no port or link has more to do than the fastest one with a payload, if each link has this way."""
        busy = np.zeros(self.rows)
        for way in ways:
            for row, time in self.loads(way):
                busy[row] += time
        return float(busy.max()) <= FAST_ENOUGH * float(self.of_route.min())

    def shares(self, ways: Sequence[Sequence[Sequence[int]]]) -> list[list[float]]:
        """Return the share of each way of each link of the chain; a way is its routes."""
        simplex = Simplex(np.concatenate([np.zeros(len(ways)), np.ones(self.rows)]))
        simplex.add(np.arange(len(ways)), np.ones(len(ways)), 1.0)
        for link, own in enumerate(ways):
            for way in own:
                rows, times = zip(*self.loads(way), strict=True)
                columns = np.array([link, *(len(ways) + row for row in rows)]), np.array([-1.0, *times])
                simplex.add(*columns, -HOP_PRICE * len(way))
        simplex.solve()
        weights, column, shares = simplex.weights(), 1, []
        for own in ways:
            found = [weights.get(column + way, 0.0) for way in range(len(own))]
            shares.append([weight / (sum(found) or 1.0) for weight in found])
            column += len(own)
        return shares

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


def _kept(ways: Iterable[Way], shares: Sequence[float]) -> tuple[tuple[Way, float], ...]:
    """The ways that are worth their messages, the widest first, with shares that sum to 1."""
    least = min(LEAST_SHARE, LEAST_OF_WIDEST * max(shares))
    pairs = sorted(((share, way) for way, share in zip(ways, shares, strict=True) if share >= least), reverse=True)
    in_all = sum(share for share, _ in pairs)
    return tuple((way, share / in_all) for share, way in pairs)
