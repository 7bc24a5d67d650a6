"""Gathers, scatters and alltoalls over the ways of a flow, and alltoalls host after host."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import pairwise

import numpy as np

from topocomm.planning.collectives import IN_PAIRS
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.request import Builds, Request
from topocomm.planning.routing.own_nics import OwnNics
from topocomm.planning.routing.paths import NoRouteError, PathFinder
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.ways.diagonal_alltoall import diagonal_alltoall
from topocomm.planning.ways.folded_hosts import folded_hosts
from topocomm.planning.ways.hosts_alltoall import HostOrder, NicTurns, hosts_alltoall
from topocomm.planning.ways.matching_alltoall import GroupedRanks, matching_alltoall
from topocomm.planning.ways.member_ways import MOST_MEMBERS, member_ways
from topocomm.planning.ways.nic_turns import nic_turns
from topocomm.planning.ways.tapered_alltoall import straight_steps, tapered_alltoall
from topocomm.planning.ways.way_schedule import blocks_of, way_schedule

SLICE_BYTES = 64 << 10
"""Least bytes of a piece of a block."""
MOST_SLICES, MOST_PIECES = 16, 1024
"""Most pieces of a block, and of all blocks together."""
EVEN = 0.8
"""Least block, as a part of the greatest, of blocks that go in matchings."""
MOST_MATCHED = 8
"""Most members of a host, or ranks in all, whose matchings are mixed."""
MOST_STRAIGHT = 64
"""Most ranks of which they are where none needs to relay: over more hosts straight blocks are mixed enough."""


def over_ways(request: Request, groups: RankPatterns) -> Builds:
    """Yield name and builder of what goes over the ways of a flow.

    Of an alltoall that is all, or what stays inside hosts, while the rest goes from host to host.
    """
    blocks = blocks_of(request.collective)
    wanted = np.zeros((len(groups.order),) * 2)
    for giver, taker, rows in blocks:
        wanted[giver, taker] += rows if giver != taker else 0
    pairs = int(np.count_nonzero(wanted))
    if not pairs:
        return
    block_bytes = int(wanted.sum()) * request.layout.row_bytes // pairs
    most = max(1, min(MOST_SLICES, block_bytes // SLICE_BYTES, MOST_PIECES // pairs))
    slices = tuple(dict.fromkeys((1, 1 << (most.bit_length() - 1))))
    few = len(groups.order) <= MOST_MEMBERS and pairs <= MOST_PIECES
    ways = member_ways(request.endpoints, groups.paths, wanted, request.ports) if few else None
    if ways is not None and (ways.has_relays or (len(groups.host_starts) < 3 and not ways.are_alike)):
        root = request.collective.root if request.collective.name == "scatter" else None
        for number in slices:
            yield f"ways-{number}", partial(way_schedule, blocks, ways, number, request.layout.row_bytes, root=root)
    if request.collective.name in IN_PAIRS:
        yield from _host_after_host(request, groups, wanted, slices, block_bytes)


def _host_after_host(
    request: Request, groups: RankPatterns, wanted: Floats, slices: tuple[int, ...], block_bytes: int
) -> Builds:
    """Blocks between hosts straight, those inside over ways."""
    order, starts = groups.order, _joined_hosts(groups)
    ends, wanted = [request.endpoints[rank] for rank in order], wanted[np.ix_(order, order)]
    if len(starts) < 3:  # one host
        return
    nics = OwnNics(request.endpoints, groups.paths)
    straight = straight_steps(ends, starts, groups.paths)
    if straight:
        build = partial(tapered_alltoall, request.collective.parts, len(order), starts[1], order, straight)
        yield f"tapered-{straight}", build
    yield "diagonal", partial(diagonal_alltoall, request.collective.parts, request.endpoints, starts, order, nics)
    yield from _in_matchings(request, groups, starts, nics, block_bytes)
    if starts == groups.host_starts and max(high - low for low, high in pairwise(starts)) ** 2 > MOST_PIECES:
        return  # lists of so many messages take seconds; under one switch they need none
    insides = []
    for low, high in pairwise(starts):
        inside = member_ways(ends[low:high], groups.paths, wanted[low:high, low:high], request.ports)
        if inside is None:
            return
        insides.append(inside)
    hosts = HostOrder(order, starts, tuple(insides))
    turns = nic_turns(ends, starts, groups.paths)
    in_turn = NicTurns(tuple(turns), partial(_us_per_byte, request.endpoints, groups.paths)) if max(turns) else None
    for number in (1,) if all(inside.are_alike for inside in insides) else slices:
        build = partial(hosts_alltoall, request.collective.parts, hosts, request.layout.row_bytes, slices=number)
        yield f"by-hosts-{number}", build
        if in_turn is not None:
            yield f"by-nics-{number}", partial(build, in_turn=in_turn)


def _in_matchings(
    request: Request, groups: RankPatterns, starts: tuple[int, ...], nics: OwnNics, block_bytes: int
) -> Builds:
    """Blocks that are about equal in the best mix of matchings of the members of a host, and of all few ranks."""
    parts, ranks = request.collective.parts, len(groups.order)
    others = [rows for pair, rows in enumerate(parts) if pair % (ranks + 1)]
    if request.ports > 1 or starts[1] > MOST_MATCHED or min(others) < EVEN * max(others):
        return
    ranked = GroupedRanks(groups.order, starts, request.endpoints, nics)
    ends = [request.endpoints[rank] for rank in groups.order]
    with suppress(NoRouteError):
        hosts = folded_hosts(ends, starts, groups.paths, nics)
        if hosts is None or not hosts.are_unlike or (ranks > MOST_STRAIGHT and not hosts.wants_relays):
            return
        yield f"matchings-{hosts.members}", partial(matching_alltoall, parts, ranked, hosts, block_bytes)
        every = folded_hosts(ends, (0, ranks), groups.paths, nics) if ranks <= MOST_MATCHED else None
        if every is not None:
            yield f"matchings-{ranks}", partial(matching_alltoall, parts, ranked, every, block_bytes)


def _joined_hosts(groups: RankPatterns) -> tuple[int, ...]:
    """Return the first place of every host, or group of hosts that one fabric joins, and the number of ranks."""
    hosts, outer = groups.host_starts, groups.hierarchy.groups.starts
    return outer if not groups.hierarchy.flat and set(outer) < set(hosts) else hosts


def _us_per_byte(endpoints: tuple[str, ...], paths: PathFinder, src: Ints, dst: Ints) -> Floats:
    return np.asarray(1e-3 / paths.routes_of_all(endpoints, src, dst).gb_per_s)
