"""Which scans of long values fit a request, where they go along the chain of all ranks or over nested groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import inf

import numpy as np

from topocomm.planning.algorithms import prefix
from topocomm.planning.forests.chain_flow import MOST_PERIOD
from topocomm.planning.hierarchical.long_values import (
    MOST_AT_ONCE_BYTES,
    MOST_HALVED_TRANSFERS,
    MOST_TREE_RANKS,
    SLICE_BYTES,
    chain_slices,
    in_few_slices,
    long_enough,
    pipelined,
)
from topocomm.planning.rank_patterns import MOST_RING_RANKS, RankPatterns
from topocomm.planning.request import Builds, Request
from topocomm.planning.routing.hierarchy import cuts_of
from topocomm.planning.scan_trees.hop_clock import phased
from topocomm.planning.scan_trees.nested_trees import nested_trees
from topocomm.planning.scan_trees.tree_scan import tree_scan
from topocomm.planning.schedule.schedule import Schedule, split_rows
from topocomm.planning.schedule.transforms import sliced

SLICED = 4
"""Slices of large hosts in fewer trees, if these have so many; in others all ranks take turns."""
MOST_STRAIGHT_HOSTS = 16
"""Most hosts of which each tells all later ones: it sends, or gets, so many values less one."""
SAME = 1e-9
"""Part of a slice by which times differ that are equal."""


def group_scans(request: Request, groups: RankPatterns) -> Builds:
    """Yield name and builder for a scan or exscan of a long value.

    `chain` goes along all ranks. Of `rails-scan` owners in each group tell one of those of other groups and hear from
    it, of `rails-hosts` they tell those of all later groups, in `rails-chain` those of the next group; in `direct` all
    ranks tell each other.
    """
    count, hierarchy = request.collective.ranks, groups.hierarchy
    if not long_enough(request, groups.single):
        return
    if count <= MOST_TREE_RANKS and not request.cores:
        yield from _chains(request, groups)
    most = min(MOST_HALVED_TRANSFERS // (2 * count), request.layout.rows)
    if not groups.in_order or not 1 < hierarchy.groups.count <= MOST_RING_RANKS or not most:
        return
    cuts, single = cuts_of(request.endpoints, groups.paths), [tuple(range(count + 1))]
    yield from in_few_slices(request, groups, _scan(request, cuts, count, most), "rails-scan")
    if 2 < hierarchy.groups.count <= MOST_STRAIGHT_HOSTS and request.payload_bytes <= MOST_AT_ONCE_BYTES:
        yield from in_few_slices(request, groups, _scan(request, cuts, 0, most), "rails-hosts")
    members, inner = (max(high - low for low, high in pairwise(cut)) for cut in (cuts[-1], cuts[0]))
    fewer = inner * -(-hierarchy.groups.count // inner)
    if members > MOST_PERIOD and SLICED * SLICE_BYTES[1] * fewer <= request.payload_bytes and fewer < most:
        yield from in_few_slices(request, groups, _scan(request, cuts, count, fewer), "rails-parts")
    if hierarchy.groups.count > 2:
        yield from pipelined(request, groups, _scan(request, cuts, 1, most), 1, "rails-chain")
    if not hierarchy.flat and count <= MOST_RING_RANKS:
        yield from in_few_slices(request, groups, _scan(request, single, count, most), "direct")


def _chains(request: Request, groups: RankPatterns) -> Builds:
    """Yield the chain of all ranks in slices, which each rank sends in the order of time.

    By rounds alone a NIC would serve what its host sends on before what it gets of the slices that came meanwhile.
    """
    count, own = request.collective.ranks, request.collective.name == "scan"
    chain = partial(prefix.chain_scan, count, request.layout.rows, own=own)
    ranks = np.arange(count - 1)
    routes = groups.paths.routes(request.endpoints, ranks, ranks + 1)
    if not np.isfinite(routes.latency_us).all():
        return
    for slices in chain_slices(request, groups, chain()):
        slice_us = request.payload_bytes / slices / (routes.gb_per_s * 1e3)
        turn_us = slice_us.max() or inf  # links without a rate hold nothing
        sends = np.concatenate([[0.0], np.cumsum(routes.latency_us + slice_us)])[:-1] / turn_us
        at = np.maximum.accumulate(np.floor(sends + SAME).astype(np.int64) - ranks) + ranks
        yield f"chain-{slices}", partial(_in_slices, chain, at.tolist(), slices)


def _in_slices(chain: Callable[..., Schedule], sends: Sequence[int], slices: int) -> Schedule:
    return sliced(chain(sends=sends), slices, 1)


def _scan(request: Request, cuts: Sequence[Sequence[int]], radix: int, most_chunks: int) -> Schedule:
    trees = nested_trees(cuts, radix, most_chunks)
    chunks = split_rows(request.layout.rows, len(trees.parents))
    return tree_scan(trees, chunks, own=request.collective.name == "scan", clock=phased(trees))[0]
