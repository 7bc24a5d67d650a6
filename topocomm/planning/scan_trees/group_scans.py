"""Which scans of long values fit a request, where they go along the chain of all ranks or over nested groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from topocomm.planning.algorithms import prefix
from topocomm.planning.forests.chain_flow import MOST_PERIOD
from topocomm.planning.hierarchical.long_values import (
    MOST_HALVED_TRANSFERS,
    MOST_TREE_RANKS,
    SLICE_BYTES,
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

SLICED = 4
"""Slices of large hosts in fewer trees, if these have so many; in others all ranks take turns."""


def group_scans(request: Request, groups: RankPatterns) -> Builds:
    """Yield name and builder for a scan or exscan of a long value.

    `chain` goes along all ranks. Of `rails-scan` owners in each group tell those of other groups, in `rails-chain`
    those of the next group; in `direct` all ranks tell each other.
    """
    count, hierarchy = request.collective.ranks, groups.hierarchy
    if not long_enough(request, groups.single):
        return
    if count <= MOST_TREE_RANKS and not request.cores:
        chain = prefix.chain_scan(count, request.layout.rows, own=request.collective.name == "scan")
        yield from pipelined(request, groups, chain, 1, "chain")
    most = min(MOST_HALVED_TRANSFERS // (2 * count), request.layout.rows)
    if not groups.in_order or not 1 < hierarchy.groups.count <= MOST_RING_RANKS or not most:
        return
    cuts, single = cuts_of(request.endpoints, groups.paths), [tuple(range(count + 1))]
    yield from in_few_slices(request, groups, _scan(request, cuts, count, most), "rails-scan")
    members, inner = (max(high - low for low, high in pairwise(cut)) for cut in (cuts[-1], cuts[0]))
    fewer = inner * -(-hierarchy.groups.count // inner)
    if members > MOST_PERIOD and SLICED * SLICE_BYTES[1] * fewer <= request.payload_bytes and fewer < most:
        yield from in_few_slices(request, groups, _scan(request, cuts, count, fewer), "rails-parts")
    if hierarchy.groups.count > 2:
        yield from pipelined(request, groups, _scan(request, cuts, 1, most), 1, "rails-chain")
    if not hierarchy.flat and count <= MOST_RING_RANKS:
        yield from in_few_slices(request, groups, _scan(request, single, count, most), "direct")


def _scan(request: Request, cuts: Sequence[Sequence[int]], radix: int, most_chunks: int) -> Schedule:
    trees = nested_trees(cuts, radix, most_chunks)
    chunks = split_rows(request.layout.rows, len(trees.parents))
    return tree_scan(trees, chunks, own=request.collective.name == "scan", clock=phased(trees))[0]
