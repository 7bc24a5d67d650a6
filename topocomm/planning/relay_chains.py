"""Long values along chains of ranks whose links are worth several ways at once: scans, reduce and broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from topocomm.planning.algorithms.relay_chain import relay_chain
from topocomm.planning.cost.pipeline_head import adds_rounds, head_of
from topocomm.planning.forests.chain_flow import chain_flow, period_of
from topocomm.planning.hierarchical.long_values import (
    LONG_BYTES,
    MOST_TREE_RANKS,
    MOST_TREE_TRANSFERS,
    TREE_SLICES,
    slice_bytes,
)
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.request import Builds, Request
from topocomm.planning.routing.member_ring import member_path
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.transforms import relabelled, sliced

RELAYED_SLICES, RELAYED_SLICE_BYTES = (16, 32, 64, 128, 256), 32 << 10
"""Slices of the value, and the least bytes of one, if it is cut further for its ways."""


def relay_chains(request: Request, groups: RankPatterns) -> Builds:
    """Yield name and builder for long values along a chain with relays; none where all go straight."""
    name = request.collective.name
    wanted = request.layout.splittable and request.objective in ("auto", "throughput") and not request.cores
    if not wanted or request.payload_bytes < LONG_BYTES or request.collective.ranks > MOST_TREE_RANKS:
        return
    order = _chain(request, groups)
    if order is None:
        return
    ends = tuple(request.endpoints[rank] for rank in order)
    flow = chain_flow(ends, groups.paths, chain_period(ends, groups), request.ports)
    if flow is None or (flow.is_direct and name in ("scan", "exscan")):  # they have a chain of their own
        return
    at_once = relay_chain(flow, request.layout.rows, name, at_once=True)
    in_turn = relay_chain(flow, request.layout.rows, name) if request.ports == 1 else at_once
    messages = len(np.unique(in_turn[0].transfers[:, [0, 1, 3]], axis=0))
    transfers = len(at_once[0].transfers)
    least = slice_bytes(request, groups) if flow.is_direct else RELAYED_SLICE_BYTES
    options = TREE_SLICES if flow.is_direct else RELAYED_SLICES
    for slices in options if request.objective == "auto" else RELAYED_SLICES[:1]:
        if slices > options[0] and slices * transfers > MOST_TREE_TRANSFERS:
            return
        if slices * least <= request.payload_bytes:
            build = partial(_in_slices, request, groups.paths, in_turn, at_once, messages * slices, order, slices)
            yield f"relay-chain-{slices}", build


def chain_period(ends: Sequence[str], groups: RankPatterns) -> int:
    """Return after how many ranks a chain through these endpoints repeats: those of a host, or all."""
    return period_of(ends, groups.host_starts, groups.paths) if groups.in_order else len(ends)


def _chain(request: Request, groups: RankPatterns) -> Sequence[int] | None:
    """Return the ranks in the order of the chain; None where there is none.

    A scan has that of the ranks. From or to a root it goes host by host, in each by the fastest path from the member in
    the root's place.
    """
    ends, starts, root = request.endpoints, groups.host_starts, request.collective.root
    if request.collective.name in ("scan", "exscan"):
        return range(len(ends))
    sizes = {high - low for low, high in pairwise(starts)}
    reduces = request.collective.name == "reduce"
    if not groups.in_order or len(sizes) > 1 or (reduces and not request.operator.commutative):
        return None
    home = root // starts[1] * starts[1]
    path = member_path(ends[home : home + starts[1]], groups.paths, root - home)
    if path is None:
        return None
    order = [start + member for start in (home, *(low for low in starts[:-1] if low != home)) for member in path]
    return order[::-1] if reduces else order


def _in_slices(
    request: Request,
    paths: PathFinder,
    in_turn: tuple[Schedule, int],
    at_once: tuple[Schedule, int],
    messages: int,
    order: Sequence[int],
    slices: int,
) -> Schedule:
    """The schedule along the ranks in this order, in slices as many rounds apart as it says.

    Turns by port and link are worth their rounds only where events are followed.
    """
    made = [sliced(relabelled(schedule, order), slices, period) for schedule, period in (in_turn, at_once)]
    return made[adds_rounds(made[0], head_of(made[0], request.endpoints, paths).schedule, messages)]
