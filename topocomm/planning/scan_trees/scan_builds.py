"""Which scans along packed trees fit a request."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from topocomm.planning.cost.cost_models import MOST_MESSAGES, MOST_TRANSFERS
from topocomm.planning.forests.chain_flow import MOST_PERIOD, period_of
from topocomm.planning.hierarchical.long_values import (
    LONG_BYTES,
    MOST_TREE_RANKS,
    PROCESSOR_SLICE_BYTES,
)
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.request import Builds, Request
from topocomm.planning.routing.earliest_edges import pairs_differ
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Ints
from topocomm.planning.scan_trees.hop_clock import Clock, hop_rounds, least_takes
from topocomm.planning.scan_trees.hop_turns import clock_of, trees_of
from topocomm.planning.scan_trees.host_hops import HostHops
from topocomm.planning.scan_trees.host_trees import owners, rooted_trees
from topocomm.planning.scan_trees.rank_trees import ScanTrees
from topocomm.planning.scan_trees.rooted_turns import rooted_clock
from topocomm.planning.scan_trees.tree_packing import HostTree, packed_trees
from topocomm.planning.scan_trees.tree_scan import tree_scan
from topocomm.planning.schedule.schedule import Schedule, split_rows
from topocomm.planning.schedule.transforms import sliced

CHUNKS = (4, 8, 16)
"""Numbers of trees that are tried: more pack better, fewer leave larger messages."""
SCAN_SLICES, THROUGHPUT_SLICES, LEAST_SLICE_BYTES = (4, 8, 16, 32, 64, 128, 256), 16, 1 << 10
"""Slices of every chunk, those where bytes alone matter, and the least bytes of one between GPUs."""
OWNED_TREES, MOST_OWNED_NODES = (8, 16, 32), (1 << 15, 1 << 16)
"""Numbers of trees whose hosts tell each other; and most ranks of all trees with more than the first number, where
pairs of a host are alike, and where they are not."""
NEAR = 1.15
"""How much longer than owners a chain of hosts may take by its turns to be offered: its slices take long to follow."""
BELOW = 1.0 - 1e-9
"""Factor of a sum of times that is no more than the same sum in another order."""
UNSTEADY_SLICES = 8
"""Slices of a long pipeline that are followed beside those under way at once; those of which it would be more messages
than that are not offered: their time would be that of rounds with barriers."""


def packed_scans(request: Request, groups: RankPatterns) -> Builds:
    """Yield name and builder for long values along trees packed into hosts.

    With `scan-owners` hosts tell each other, so few messages are in a row. With `scan-trees` they are a chain, where
    pairs of a host are unlike; few ranks on several hosts are as one such host.
    """
    ends, paths = request.endpoints, groups.paths
    wanted = request.layout.splittable and request.objective in ("auto", "throughput") and not request.cores
    if not wanted or request.payload_bytes < LONG_BYTES or not 2 < len(ends) <= MOST_TREE_RANKS:
        return
    if len(set(ends)) < len(ends):
        return
    alike = period_of(ends, groups.host_starts, paths) if groups.in_order else len(ends)
    owned = None
    if request.objective == "auto" and 1 < alike < len(ends) and alike <= MOST_PERIOD:
        owned = _by_owners(request, HostHops(ends, paths, alike, request.ports), paths)
        if owned is not None:
            yield f"scan-owners-{len(owned.trees)}", owned.schedule
    members = unlike_members(request, groups)
    if members:
        hosts = HostHops(ends, paths, members, request.ports)
        chained = _soonest(request, hosts)
        if chained is not None and (owned is None or chained.us <= NEAR * owned.us):
            yield f"scan-trees-{chained.slices}", partial(_in_slices, request, hosts, chained)


def unlike_members(request: Request, groups: RankPatterns) -> int:
    """Return the ranks of a host if their pairs are unlike, of few ranks on several hosts all; else, and of many, 0."""
    ends, paths = request.endpoints, groups.paths
    members = len(ends)
    if members > MOST_PERIOD and groups.in_order:
        members = period_of(ends, groups.host_starts, paths)
    return members if members <= MOST_PERIOD and pairs_differ(ends[:members], paths) else 0


class _Owned(NamedTuple):
    """Rooted trees, and about how long they take."""

    us: float
    request: Request
    hosts: HostHops
    trees: Sequence[HostTree]
    above: Ints
    clock: Clock

    def schedule(self) -> Schedule:
        """Return the scan, without slices."""
        rooted = rooted_trees(self.hosts, self.trees, self.above)
        return tree_scan(
            rooted,
            split_rows(self.request.layout.rows, len(rooted.parents)),
            own=self.request.collective.name == "scan",
            clock=self.clock,
        )[0]


def _by_owners(request: Request, hosts: HostHops, paths: PathFinder) -> _Owned | None:
    """Return the number of trees of the least time if every hop leaves at its turn; None where there is no route."""
    payload_us, best = _slice_us(request, hosts, 1), None
    most = MOST_OWNED_NODES[pairs_differ(request.endpoints[: hosts.members], paths)]
    for count in OWNED_TREES:
        above = owners(hosts.hosts, count)
        if best is not None and above.size * hosts.members > most:
            break
        trees = packed_trees(hosts, count, 1 / payload_us, rooted=True)
        if trees is None or above.size * hosts.members > MOST_TRANSFERS // 2:
            break
        clock = rooted_clock(hosts, trees, above, payload_us)
        if best is None or clock.period * payload_us < best.us:
            best = _Owned(clock.period * payload_us, request, hosts, trees, above, clock)
    return best


class _Chained(NamedTuple):
    """Trees along a chain of hosts, in slices, and about how long they take."""

    us: float
    trees: Sequence[HostTree]
    slices: int


class _Option(NamedTuple):
    """Trees in slices, what they take at least by the way of a slice and the period, and their place among all."""

    least_us: float
    number: int
    slices: int
    trees: Sequence[HostTree]
    on_all: ScanTrees
    clock: Clock
    messages: int


def _soonest(request: Request, hosts: HostHops) -> _Chained | None:
    """Return the trees and slices of the least time if every hop leaves at its turn; None where there is no route."""
    least = LEAST_SLICE_BYTES if hosts.on_gpus else PROCESSOR_SLICE_BYTES[0]
    by_time = request.objective == "auto"
    options: list[_Option] = []
    for chunks in dict.fromkeys(min(request.layout.rows, each) for each in (CHUNKS if by_time else CHUNKS[-1:])):
        trees = packed_trees(hosts, chunks, hosts.fastest * 1e3 / request.payload_bytes)
        if trees is None:
            return None
        on_all = trees_of(hosts, trees)
        messages = hosts.hosts * sum(tree.hops for tree in trees)
        most = max(SCAN_SLICES[0], request.payload_bytes // chunks // least)
        for slices in SCAN_SLICES if by_time else (THROUGHPUT_SLICES,):
            if slices <= most:
                slice_us = _slice_us(request, hosts, slices)
                clock = clock_of(hosts, trees, slice_us)
                way = least_takes(on_all, clock) * BELOW
                followed = min(slices, way / clock.period + UNSTEADY_SLICES)
                least_us = (way + (slices - 1) * clock.period) * slice_us
                if followed * messages <= MOST_MESSAGES:
                    options.append(_Option(least_us, len(options), slices, trees, on_all, clock, messages))
    chosen, place = None, 0
    for each in sorted(options, key=lambda option: option[:2]):
        if chosen is not None and each.least_us > chosen.us:
            break
        first = hop_rounds(each.on_all.nodes, each.on_all, each.clock).slice_takes
        followed = min(each.slices, first / each.clock.period + UNSTEADY_SLICES)
        us = (first + (each.slices - 1) * each.clock.period) * _slice_us(request, hosts, each.slices)
        if (chosen is None or (us, each.number) < (chosen.us, place)) and followed * each.messages <= MOST_MESSAGES:
            chosen, place = _Chained(us, each.trees, each.slices), each.number
    return chosen


def _slice_us(request: Request, hosts: HostHops, slices: int) -> float:
    """The time of a slice of the value at the fastest rate."""
    return request.payload_bytes / slices / (hosts.fastest * 1e3)


def _in_slices(request: Request, hosts: HostHops, chained: _Chained) -> Schedule:
    """The scan in slices that begin a period after one another."""
    _, trees, slices = chained
    made, period = tree_scan(
        trees_of(hosts, trees),
        split_rows(request.layout.rows, len(trees)),
        own=request.collective.name == "scan",
        clock=clock_of(hosts, trees, _slice_us(request, hosts, slices)),
    )
    return sliced(made, slices, period)
