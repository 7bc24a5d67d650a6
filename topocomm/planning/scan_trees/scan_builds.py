"""Which scans along packed trees fit a request."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf

from topocomm.planning.cost.cost_models import MOST_MESSAGES
from topocomm.planning.forests.chain_flow import MOST_PERIOD, period_of
from topocomm.planning.hierarchical.long_values import (
    LONG_BYTES,
    MOST_TREE_RANKS,
    PROCESSOR_SLICE_BYTES,
)
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.request import Builds, Request
from topocomm.planning.routing.earliest_edges import pairs_differ
from topocomm.planning.scan_trees.hop_clock import hop_rounds
from topocomm.planning.scan_trees.hop_turns import clock_of, trees_of
from topocomm.planning.scan_trees.host_hops import HostHops
from topocomm.planning.scan_trees.rank_trees import Nodes
from topocomm.planning.scan_trees.tree_packing import HostTree, packed_trees
from topocomm.planning.scan_trees.tree_scan import tree_scan
from topocomm.planning.schedule.schedule import Schedule, split_rows
from topocomm.planning.schedule.transforms import sliced

CHUNKS = (4, 8, 16)
"""Numbers of trees that are tried: more pack better, fewer leave larger messages."""
SCAN_SLICES, THROUGHPUT_SLICES, LEAST_SLICE_BYTES = (4, 8, 16, 32, 64, 128, 256), 16, 1 << 10
"""Slices of every chunk, those where bytes alone matter, and the least bytes of one between GPUs."""
UNSTEADY_SLICES = 8
"""Slices of a long pipeline that are followed beside those under way at once; those of which it would be more messages
than that are not offered: their time would be that of rounds with barriers."""


def packed_scans(request: Request, groups: RankPatterns) -> Builds:
    """Yield name and builder for long values along trees packed into hosts whose pairs are unlike.

    Few ranks on several hosts are as one such host.
    """
    ends, paths = request.endpoints, groups.paths
    wanted = request.layout.splittable and request.objective in ("auto", "throughput") and not request.cores
    if not wanted or request.payload_bytes < LONG_BYTES or not 2 < len(ends) <= MOST_TREE_RANKS:
        return
    alone = not groups.in_order or len(ends) <= MOST_PERIOD
    members = len(ends) if alone else period_of(ends, groups.host_starts, paths)
    if not 1 < members <= MOST_PERIOD or len(set(ends)) < len(ends) or not pairs_differ(ends[:members], paths):
        return
    hosts = HostHops(ends, paths, members, request.ports)
    chosen = _soonest(request, hosts)
    if chosen is not None:
        trees, slices = chosen
        yield f"scan-trees-{slices}", partial(_in_slices, request, hosts, trees, slices)


def _soonest(request: Request, hosts: HostHops) -> tuple[Sequence[HostTree], int] | None:
    """Return the trees and slices of the least time if every hop leaves at its turn; None where there is no route."""
    least = LEAST_SLICE_BYTES if hosts.on_gpus else PROCESSOR_SLICE_BYTES[0]
    by_time = request.objective == "auto"
    soonest_us, chosen = inf, None
    for chunks in dict.fromkeys(min(request.layout.rows, each) for each in (CHUNKS if by_time else CHUNKS[-1:])):
        trees = packed_trees(hosts, chunks, hosts.fastest * 1e3 / request.payload_bytes)
        if trees is None:
            return None
        on_all = trees_of(hosts, trees)
        nodes, messages = Nodes(on_all.parents), hosts.hosts * sum(tree.hops for tree in trees)
        most = max(SCAN_SLICES[0], request.payload_bytes // chunks // least)
        for slices in SCAN_SLICES if by_time else (THROUGHPUT_SLICES,):
            if slices <= most:
                slice_us = _slice_us(request, hosts, slices)
                clock = clock_of(hosts, trees, slice_us)
                first = hop_rounds(nodes, on_all, clock).slice_takes
                followed = min(slices, first / clock.period + UNSTEADY_SLICES)
                us = (first + (slices - 1) * clock.period) * slice_us
                if us < soonest_us and followed * messages <= MOST_MESSAGES:
                    soonest_us, chosen = us, (trees, slices)
    return chosen


def _slice_us(request: Request, hosts: HostHops, slices: int) -> float:
    """The time of a slice of the value at the fastest rate."""
    return request.payload_bytes / slices / (hosts.fastest * 1e3)


def _in_slices(request: Request, hosts: HostHops, trees: Sequence[HostTree], slices: int) -> Schedule:
    """The scan in slices that begin a period after one another."""
    made, period = tree_scan(
        trees_of(hosts, trees),
        split_rows(request.layout.rows, len(trees)),
        own=request.collective.name == "scan",
        clock=clock_of(hosts, trees, _slice_us(request, hosts, slices)),
    )
    return sliced(made, slices, period)
