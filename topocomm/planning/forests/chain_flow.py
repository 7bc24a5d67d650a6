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
from topocomm.planning.forests.pair_loads import PairLoads
from topocomm.planning.routing.paths import PathFinder

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


class _Program(PairLoads):
    """The linear program: the most of the payload per time that every link of the chain can carry."""

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


def _kept(ways: Iterable[Way], shares: Sequence[float]) -> tuple[tuple[Way, float], ...]:
    """The ways that are worth their messages, the widest first, with shares that sum to 1."""
    least = min(LEAST_SHARE, LEAST_OF_WIDEST * max(shares))
    pairs = sorted(((share, way) for way, share in zip(ways, shares, strict=True) if share >= least), reverse=True)
    in_all = sum(share for share, _ in pairs)
    return tuple((way, share / in_all) for share, way in pairs)
