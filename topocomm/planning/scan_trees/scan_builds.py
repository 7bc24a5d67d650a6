"""Which scans along packed trees fit a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from topocomm.planning.cost.pipeline_head import (
    FIRST_HOSTS,
    MOST_MESSAGES,
    MOST_PIPELINED,
    MOST_TRANSFERS,
    UNLIKE_HOSTS,
    followed_hosts,
)
from topocomm.planning.forests.chain_flow import MOST_PERIOD, STRAIGHT, period_of
from topocomm.planning.hierarchical.long_values import (
    LONG_BYTES,
    MOST_AT_ONCE_BYTES,
    MOST_TREE_RANKS,
    PROCESSOR_SLICE_BYTES,
)
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.request import Builds, LikelyBuild, Request
from topocomm.planning.routing.earliest_edges import pairs_differ
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Ints
from topocomm.planning.scan_trees.group_scans import MOST_STRAIGHT_HOSTS
from topocomm.planning.scan_trees.hop_clock import Clock, Rounds, hop_rounds, least_takes
from topocomm.planning.scan_trees.hop_turns import HopTurns, trees_of
from topocomm.planning.scan_trees.host_hops import HostHops
from topocomm.planning.scan_trees.host_trees import owners, rooted_trees
from topocomm.planning.scan_trees.rank_trees import NO_RANK, ScanTrees
from topocomm.planning.scan_trees.rooted_turns import rooted_clock
from topocomm.planning.scan_trees.tree_packing import HostTree, packed_trees
from topocomm.planning.scan_trees.tree_scan import tree_scan
from topocomm.planning.schedule.schedule import Schedule, split_rows
from topocomm.planning.schedule.transforms import sliced

CHUNKS = (4, 8, 16)
"""Numbers of trees that are tried: more pack better, fewer leave larger messages."""
SCAN_SLICES, THROUGHPUT_SLICES, LEAST_SLICE_BYTES = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048), 16, 1 << 10
"""Slices of every chunk, those where bytes alone matter, and the least bytes of one between GPUs."""
TURN = 1 / 16
"""Part of the payload's time that a hop of a spine takes beside its latency, where spines are to have few."""
MANY_SLICES, MOST_SLICED, MORE = 256, 1 << 21, 0.98
"""Slices of which more have not more transfers than these in all, and take such a part of the time of no more."""
OWNED_TREES, MOST_OWNED_NODES = (8, 16, 32), (1 << 15, 1 << 16)
"""Numbers of trees whose hosts tell each other; and most ranks of all trees with more than the first number, where
pairs of a host are alike, and where they are not."""
NEAR, CHAIN_NEAR = 1.15, 1.25
"""How much longer than the other owners, or hosts that tell all later ones, may take by their turns to be offered, and
a chain of hosts, whose slices take long to follow, and which often takes less than its turns."""
SHARED_NEAR, MOST_NEAR = 1.1, 3
"""How much longer than the soonest trees others may take by their turns to be offered where ranks share a NIC, at which
messages that are early overlap; and the most of these in few slices, and in many."""
MOST_AS_ONE_HOST = 8
"""Most ranks on several hosts that have trees as on one: those of more are packed better for one host than for all."""
CHAINED_LATENCIES = 3
"""Times the latency from the first host to the last one that owners must take for a chain to be tried."""
BELOW = 1.0 - 1e-9
"""Factor of a sum of times that is no more than the same sum in another order."""
UNSTEADY_SLICES = 7
"""Slices of a long pipeline that are followed beside those under way at once; those of which it would be more messages
than that are not offered: their time would be that of rounds with barriers."""
LONG_FOLLOWED = 1.08
"""How much sooner a scan must be that takes the planner longer to follow than it follows other schedules."""


def packed_scans(request: Request, groups: RankPatterns) -> Builds:
    """Yield name and builder for long values along trees packed into hosts.

    With `scan-owners` a host tells one that owns the chunk and hears from it, with `scan-hosts` it tells all later
    ones, so few messages are in a row. With `scan-trees` they are a chain, or one host whose pairs are unlike; few
    ranks on several hosts are as one such host.
    """
    ends, paths = request.endpoints, groups.paths
    wanted = request.layout.splittable and request.objective in ("auto", "throughput") and not request.cores
    if not wanted or request.payload_bytes < LONG_BYTES or not 2 < len(ends) <= MOST_TREE_RANKS:
        return
    if len(set(ends)) < len(ends):
        return
    alike = period_of(ends, groups.host_starts, paths) if groups.in_order else len(ends)
    hosts, owned = None, list[_Owned]()
    if request.objective == "auto" and 1 < alike < len(ends) and alike <= MOST_PERIOD:
        hosts = HostHops(ends, paths, alike, request.ports)
        owned = _by_owners(request, hosts, paths)
        for each in owned:
            yield f"scan-{'hosts' if each.is_straight else 'owners'}-{len(each.trees)}", each.schedule
    members, owned_us = chained_members(request, groups), min((each.us for each in owned), default=inf)
    if members:
        if hosts is None or hosts.members != members:
            hosts = HostHops(ends, paths, members, request.ports)
        late = CHAINED_LATENCIES * (hosts.hosts - 1) * hosts.across_us > owned_us
        known = set[bool]()
        for number, chained in enumerate([] if late else _soonest(request, hosts, CHAIN_NEAR * owned_us)):
            many = chained.slices > MANY_SLICES
            if many in known:  # a pipeline of its own: the events of the others do not say what it takes
                yield f"scan-trees.{number}-{chained.slices}", chained.schedule
                continue
            known.add(many)
            build = LikelyBuild(chained.schedule) if chained.us < owned_us else chained.schedule
            yield f"scan-trees-{chained.slices}", build


def chained_members(request: Request, groups: RankPatterns) -> int:
    """Return the ranks of a host, or of few ranks all, if a chain of them all is not as good; else, and of many, 0."""
    ends, paths = request.endpoints, groups.paths
    members = len(ends)
    if members > MOST_AS_ONE_HOST and groups.in_order:
        members = period_of(ends, groups.host_starts, paths)
    several = members < len(ends)
    return members if members <= MOST_PERIOD and (several or pairs_differ(ends[:members], paths)) else 0


class _Owned(NamedTuple):
    """Rooted trees, and about how long they take."""

    us: float
    request: Request
    hosts: HostHops
    trees: Sequence[HostTree]
    above: Ints
    clock: Clock

    @property
    def is_straight(self) -> bool:
        """Whether hosts tell all later ones, and none owns a chunk."""
        return bool((self.above == NO_RANK).all())

    def schedule(self) -> Schedule:
        """Return the scan, without slices."""
        rooted = rooted_trees(self.hosts, self.trees, self.above)
        return tree_scan(
            rooted,
            split_rows(self.request.layout.rows, len(rooted.parents)),
            own=self.request.collective.name == "scan",
            clock=self.clock,
        )[0]


def _by_owners(request: Request, hosts: HostHops, paths: PathFinder) -> list[_Owned]:
    """Return the number of trees of the least time if every hop leaves at its turn, by owners and straight.

    Those are left out for which there is no route, or that take much longer than the other.
    """
    payload_us, found = _slice_us(request, hosts, 1), list[_Owned]()
    most = MOST_OWNED_NODES[pairs_differ(request.endpoints[: hosts.members], paths)]
    few = 2 < hosts.hosts <= MOST_STRAIGHT_HOSTS and request.payload_bytes <= MOST_AT_ONCE_BYTES
    for count in OWNED_TREES:
        by_owner = owners(hosts.hosts, count)
        if found and by_owner.size * hosts.members > most:
            break
        trees = packed_trees(hosts, count, 1 / payload_us, rooted=True)
        if trees is None or by_owner.size * hosts.members > MOST_TRANSFERS // 2:
            break
        ways = [by_owner]
        if few and all(len(tree.up[tree.parents.index(NO_RANK)]) == STRAIGHT for tree in trees):
            ways.append(np.full((count, 1, hosts.hosts), NO_RANK))
        for above in ways:
            clock = rooted_clock(hosts, trees, above, payload_us)
            found.append(_Owned(clock.period * payload_us, request, hosts, trees, above, clock))
    chosen = [min(each, key=lambda own: own.us) for each in _by_way(found) if each]
    return [each for each in chosen if each.us <= NEAR * min(own.us for own in chosen)]


def _by_way(found: Sequence[_Owned]) -> tuple[list[_Owned], list[_Owned]]:
    straight = [each for each in found if each.is_straight]
    return [each for each in found if not each.is_straight], straight


class _Chained:
    """Trees along a chain of hosts, in slices, and about how long they take."""

    def __init__(self, request: Request, hosts: HostHops, trees: Sequence[HostTree]) -> None:
        self.request, self.hosts, self.trees = request, hosts, trees
        self.turns, self.us, self.slices = HopTurns(hosts, trees), inf, 0
        self._messages = sum(tree.hops for tree in trees)

    def take(self, slices: int, most_us: float) -> None:
        """Go in so many slices if that takes less than before and than `most_us`, and can be followed."""
        slice_us, most_us = _slice_us(self.request, self.hosts, slices), min(most_us, self.us)
        if self._us_of((self.hosts.hosts - 1) * self.hosts.across_us / slice_us, slices) >= most_us:
            return
        of, clock = self._on_all, self.turns.clock(slice_us)
        if self._us_of(least_takes(of, clock) * BELOW, slices) < most_us:
            rounds = hop_rounds(of.nodes, of, clock)
            us = self._us_of(rounds.slice_takes, slices, followed_hosts(self._by_host(rounds)))
            if us < most_us:
                self.us, self.slices = us, slices

    def _by_host(self, rounds: Rounds) -> Ints:
        """[hosts, hops]: the rounds of all hops."""
        hosts, chunks = self.hosts.hosts, len(self.trees)
        of_hosts = [each.reshape(chunks, hosts, -1).swapaxes(0, 1) for each in (rounds.up, rounds.down)]
        return np.concatenate(of_hosts, axis=2).reshape(hosts, -1)

    def _us_of(self, first: float, slices: int, hosts: int = FIRST_HOSTS) -> float:
        """The time if the first slice takes so long; infinite where more messages are followed than can be.

        Of many, which take the planner longer, some more.
        """
        part = hosts / self.hosts.hosts if hosts + UNLIKE_HOSTS < self.hosts.hosts else 1.0
        followed = min(slices, ceil(first * part / self.turns.period) + UNSTEADY_SLICES) * part * self.hosts.hosts
        us = (first + (slices - 1) * self.turns.period) * _slice_us(self.request, self.hosts, slices)
        too_many = slices > MANY_SLICES and slices * self.hosts.hosts * self._messages > MOST_SLICED
        if too_many or followed * self._messages > MOST_PIPELINED:
            return inf
        return us if followed * self._messages <= MOST_MESSAGES else LONG_FOLLOWED * us

    @cached_property
    def _on_all(self) -> ScanTrees:
        return trees_of(self.hosts, self.trees)

    def schedule(self) -> Schedule:
        """Return the scan in slices that begin a period after one another."""
        made, period = tree_scan(
            self._on_all,
            split_rows(self.request.layout.rows, len(self.trees)),
            own=self.request.collective.name == "scan",
            clock=self.turns.clock(_slice_us(self.request, self.hosts, self.slices)),
        )
        return sliced(made, self.slices, period)


def _soonest(request: Request, hosts: HostHops, most_us: float) -> list[_Chained]:
    """Return the trees and slices of the least time if every hop leaves at its turn, up to `most_us`.

    Then those of the least in many slices, if that is much less: of short slices turns say less than events do. Where
    ranks share a NIC they say less of any: trees that take little longer by them follow. None where there is no route,
    or all take longer.
    """
    least = LEAST_SLICE_BYTES if hosts.on_gpus else PROCESSOR_SLICE_BYTES[0]
    by_time, near = request.objective == "auto", 1.0
    found, limits_us = list[_Chained](), {False: most_us, True: most_us}
    for of, chunks, spine_price, hop_us in _packings(request, hosts):
        us_price = of.fastest * 1e3 / request.payload_bytes
        trees = packed_trees(of, chunks, us_price, spine_price=spine_price, spine_hop_us=hop_us)
        if trees is None:
            return []
        near = SHARED_NEAR if by_time and of.loads.size > hosts.loads.size else near
        few, most = _Chained(request, of, trees), max(SCAN_SLICES[0], request.payload_bytes // chunks // least)
        made = {False: few, True: copy(few)}
        for slices in SCAN_SLICES if by_time else (THROUGHPUT_SLICES,):
            if slices <= most:
                many = slices > MANY_SLICES
                made[many].take(slices, min(near * limits_us[many], most_us))
                limits_us[many] = min(limits_us[many], made[many].us)
                limits_us[True] = min(limits_us[True], MORE * limits_us[False])
        found += [each for each in made.values() if each.us < inf]
    found = [each for each in found if each.us <= min(near * limits_us[each.slices > MANY_SLICES], most_us)]
    found.sort(key=lambda each: each.us)
    most = MOST_NEAR if near > 1.0 else 1
    by_slices = ([each for each in found if (each.slices > MANY_SLICES) == many] for many in (False, True))
    return [each for own in by_slices for each in own[:most]]


def _packings(request: Request, hosts: HostHops) -> Iterator[tuple[HostHops, int, float, float]]:
    """Yield hops, numbers of trees, prices of latency on their spines, and what a hop takes there beside it.

    The most trees also with the price that it has where all hosts are one after the other, alone and with turns that
    each hop waits for, and where hops exclude others also as if they did not: then these go one after the other by
    luck, or not.
    """
    by_time, excluding = request.objective == "auto", hosts.with_exclusions()
    chunks = dict.fromkeys(min(request.layout.rows, each) for each in (CHUNKS if by_time else CHUNKS[-1:]))
    yield from ((excluding, each, 0.0, 0.0) for each in chunks)
    if by_time and hosts.several:
        payload_us = _slice_us(request, hosts, 1)
        yield from ((excluding, each, (hosts.hosts - 1) / payload_us, 0.0) for each in sorted(chunks)[-2:])
        yield excluding, max(chunks), (hosts.hosts - 1) / payload_us, payload_us * TURN
    if excluding.loads.size > hosts.loads.size:
        yield hosts, max(chunks), 0.0, 0.0


def _slice_us(request: Request, hosts: HostHops, slices: int) -> float:
    """The time of a slice of the value at the fastest rate."""
    return request.payload_bytes / slices / (hosts.fastest * 1e3)
