"""Scans of long values along the chain of ranks, where the links of the chain are worth several ways at once."""

from __future__ import annotations

from functools import partial

import numpy as np

from topocomm.planning.algorithms.relay_chain import relay_chain_scan
from topocomm.planning.cost.cost_models import MOST_OF_PIPELINES
from topocomm.planning.forests.chain_flow import chain_flow, period_of
from topocomm.planning.long_values import LONG_BYTES, MOST_TREE_RANKS, MOST_TREE_TRANSFERS
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.request import Builds, Request
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.transforms import sliced

RELAYED_SLICES, RELAYED_SLICE_BYTES = (16, 32, 64, 128, 256), 32 << 10
"""Slices of the value, and the least bytes of one: it is cut further for its ways."""


def relay_chains(request: Request, groups: RankPatterns) -> Builds:
    """Yield name and builder for a scan or exscan along ways over relays; none where all go straight."""
    wanted = request.layout.splittable and request.objective in ("auto", "throughput") and not request.cores
    if not wanted or request.payload_bytes < LONG_BYTES or request.collective.ranks > MOST_TREE_RANKS:
        return
    flow = chain_flow(request.endpoints, groups.paths, chain_period(request, groups), request.ports)
    if flow is None or flow.is_direct:
        return
    build = partial(relay_chain_scan, flow, request.layout.rows, own=request.collective.name == "scan")
    at_once = build(at_once=True)
    in_turn = build() if request.ports == 1 else at_once
    messages = len(np.unique(in_turn[0].transfers[:, [0, 1, 3]], axis=0))
    transfers = len(at_once[0].transfers)
    for slices in RELAYED_SLICES if request.objective == "auto" else RELAYED_SLICES[:1]:
        if slices > RELAYED_SLICES[0] and slices * transfers > MOST_TREE_TRANSFERS:
            return
        if slices * RELAYED_SLICE_BYTES <= request.payload_bytes:
            followed = slices * messages <= MOST_OF_PIPELINES[0] and slices * transfers <= MOST_OF_PIPELINES[1]
            yield f"relay-chain-{slices}", partial(_in_slices, in_turn if followed else at_once, slices)


def chain_period(request: Request, groups: RankPatterns) -> int:
    """Return after how many ranks the chain repeats: those of a host, or all."""
    ends = request.endpoints
    return period_of(ends, groups.host_starts, groups.paths) if groups.in_order else len(ends)


def _in_slices(made: tuple[Schedule, int], slices: int) -> Schedule:
    """The schedule in slices, as many rounds apart as it says."""
    schedule, period = made
    return sliced(schedule, slices, period)
