"""Long values over groups of ranks and the rails between them: by halving, by larger radices, and up two trees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from math import log2

import numpy as np

from topocomm.planning.algorithms.hosts.rail_blocks import most_blocks_pieces, rail_blocks_allreduce
from topocomm.planning.algorithms.hosts.rail_trees import Pace, RailTrees, rail_trees
from topocomm.planning.algorithms.hosts.rails_parts import (
    Inside,
    MemberTrees,
    common_rails,
    fits_parts,
    rails_allgather,
    rails_allreduce_in_parts,
    rails_reduce_scatter,
    transfer_count,
)
from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.hierarchical.owned_pieces import OwnedPieces
from topocomm.planning.hierarchical.tiered import tiered_allreduces
from topocomm.planning.phased_builds import PhasedBuild
from topocomm.planning.rank_patterns import MOST_RING_RANKS, RankPatterns
from topocomm.planning.request import Build, Builds, Request
from topocomm.planning.routing.hierarchy import Hierarchy
from topocomm.planning.routing.host_turns import host_turns
from topocomm.planning.routing.message_pace import MessagePace, fast_rails, pace_across, pace_of
from topocomm.planning.routing.paths import NoRouteError, PathFinder
from topocomm.planning.schedule.rooted import broadcast_of, reduce_of
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.transforms import relabelled, sliced

MOST_FLAT_RANKS = 72
"""Largest rank count for algorithms in which everybody sends to everybody, an NVLink domain: beyond, others win."""
LONG_BYTES, HEARD_LATENCIES = 8 << 10, 0.3
"""Least payload for pipelined trees with objective auto; over rails also one that as a whole takes this part of the
latency of a message, heard from every group, or once for each doubling of those who know it inside groups."""
HALVED_PIECES, MOST_HALVED_TRANSFERS = (1, 2, 4, 8, 16), 1 << 19
"""Pieces of a part that is reduced over rails, the most with which all slices have at most so many transfers."""
MOST_TRANSFERS = 1 << 21
"""Most transfers of parts that are reduced or gathered: of more than above one radix and one way inside is tried."""
PART_RADICES = (16,)
"""Ranks on a rail, one more than a rank sends to at once, tried beside two and all."""
MOST_DIRECT_GROUPS = 96
"""Most hosts of which all send to each other in an allgather or reduce_scatter, whose parts are many."""
HALVED_SLICES = (1, 2, 4, 8, 16, 32)
"""Slices of such a piece."""
TREE_SLICES, MOST_TREE_TRANSFERS = (4, 8, 16, 32, 64, 128, 256), 1 << 19
"""Slices of trees over rails, and of chains, and the most transfers with which more than the fewest are tried."""
CHAIN_SLICES = (*TREE_SLICES, 512)
"""Slices of a chain of all ranks, which has the fewest messages."""
TREE_RADICES, TREE_OPTIONS, NEARLY = (2, 4, 8, 16), 2, 1.03
"""Children in trees over rails; how many of the largest numbers of slices are compared; of those that take so many
times the least, the one of fewest messages is taken."""
MOST_TREE_RANKS = 2048
"""Most ranks for them, and for a chain of a scan in slices."""
MOST_AT_ONCE_BYTES = 1 << 20
"""Largest payload of which members send parts to each other at once, or by trees, beside rings."""
MOST_WHOLE_GROUPS = 8
"""Most groups that send each other whole parts of a value of at most that size: more bytes, one message in a row."""
MOST_WHOLE_PART_BYTES = 128 << 10
"""Largest part of a longer value on many rails that they send each other whole."""
MOST_PHASED_BYTES = 1 << 20
"""Largest chunk whose slices have each phase together: of longer ones latencies weigh little, and where slices follow
a round apart some send inside while others have the NICs."""
SLICE_US, SLICE_BYTES = 0.16, (1 << 10, 8 << 10)
"""The least time of a slice that a message between groups carries alone, and the least bytes of one in any case."""
PROCESSOR_SLICE_US, PROCESSOR_SLICE_BYTES, PROCESSOR_MESSAGE_BYTES = 6.5, (8 << 10, 64 << 10), 10_000
"""The same between processors: what a message costs them is in no model; and the bytes that a core would move in that
time, for chains: a us at 10 GB/s, assumed."""


def over_rails(request: Request, groups: RankPatterns) -> Builds:
    """Yield name and builder for an allreduce, reduce or broadcast of a long value."""
    name = request.collective.name
    if not (request.operator.commutative or name == "broadcast"):
        return
    if long_enough(request, groups.hosts):
        for algorithm, schedule in tiered_allreduces(groups, request.layout.rows, MOST_HALVED_TRANSFERS):
            yield from in_few_slices(request, groups, _rooted(request, schedule), algorithm)
    if name == "allreduce":
        yield from _around_hosts(request, groups)
    if _is_long_across(request, groups):
        one_root = name != "allreduce" and len(request.endpoints) <= MOST_TREE_RANKS
        trees = list(_up_trees(request, groups)) if one_root and not request.cores else []
        yield from trees
        yield from _halved(request, groups, in_slices=request.ports == 1 or not trees)
        yield from _owned(request, groups, in_slices=request.ports == 1 or not trees)
        yield from _in_blocks(request, groups)


def _around_hosts(request: Request, groups: RankPatterns) -> Builds:
    """Parts around a ring of all members of each host, where the ranks are grouped otherwise or on one host.

    Of shorter values also by trees.
    """
    hosts = groups.hosts
    fits = is_long(request) and 2 < len(groups.order) <= MOST_RING_RANKS and fits_parts(hosts)
    if not fits or groups.hierarchy.groups.starts == hosts.starts:
        return
    ways = [("host-rings", groups.rings_of(hosts)), ("host-trees", _trees_of(request, groups, hosts))]
    for name, inside in ways:
        if inside and (schedule := _in_parts(request, groups, inside)):
            yield from in_few_slices(request, groups, schedule, name)


def _in_parts(request: Request, groups: RankPatterns, inside: Inside) -> Schedule | None:
    """Parts over all members of the hosts; None where parts do not suit the ranks."""
    hosts, name, parts = groups.hosts, request.collective.name, request.collective.parts
    if name == "allreduce":
        schedule = rails_allreduce_in_parts(hosts, request.layout.rows, hosts.count, inside)
        return schedule if groups.in_order else relabelled(schedule, groups.order)
    if groups.in_order and all(parts):
        return (rails_reduce_scatter if name == "reduce_scatter" else rails_allgather)(hosts, parts, inside)
    return None


def _trees_of(request: Request, groups: RankPatterns, members: Groups) -> MemberTrees | None:
    """Trees inside groups for parts of a value, of a long one where no rings have more bytes a second."""
    if not fits_parts(members) or request.port_model != "loggp" or request.objective != "auto":
        return None
    if request.payload_bytes > MOST_AT_ONCE_BYTES and groups.rings_of(members) is not None:
        return None
    return groups.trees_of(members, request.payload_bytes)


def _up_trees(request: Request, groups: RankPatterns) -> Builds:
    """Trees of groups on every rail, and on one, with values that pass all members of a group on their way.

    The radix and the slices are those of the least time if every message has its turn; names have both.
    """
    for families in (("rails-trees",), ("rails-turns",), ("rails-around",), ("rails-through", "rails-fork")):
        if groups.hierarchy.flat and families != ("rails-trees",):
            continue
        with suppress(NoRouteError):
            wanted = [family for family in families if _suits(request, groups, family)]
            options = [option for family in wanted for option in _tree_options(request, groups, family)]
            least_us = min((us for us, *_ in options), default=0.0)
            near = [option for option in options if option[0] <= NEARLY * least_us]
            for _, _, label, made in sorted(near, key=lambda option: (option[1], option[0]))[:1]:
                yield label, made


def _suits(request: Request, groups: RankPatterns, family: str) -> bool:
    """Whether trees are worth a plan: turns of one port, on a mesh around its ring, of shorter values also straight.

    The turns of one group stand for those of all, which have as many members.
    """
    if family not in ("rails-turns", "rails-around"):
        return True
    if len({inside.members for inside in groups.hierarchy.groups.insides}) > 1:
        return False
    straight, around = family == "rails-turns", groups.rings() is not None
    short = request.payload_bytes <= MOST_AT_ONCE_BYTES
    return request.ports == 1 and (straight if not around else short or not straight)


def _tree_options(request: Request, groups: RankPatterns, family: str) -> Iterator[tuple[float, int, str, Build]]:
    """Yield time, messages, name and builder of trees of a family, by radix and slices."""
    bare, rings = groups.hierarchy.groups, None if family == "rails-turns" else groups.rings()
    name, root, at_once = request.collective.name, groups.order.index(request.collective.root), request.ports > 1
    turned, around = family in ("rails-turns", "rails-around"), family == "rails-around"
    ends = tuple(request.endpoints[rank] for rank in groups.order)
    through, forked = family in ("rails-through", "rails-fork"), family == "rails-fork"
    fast = fast_rails(bare, ends, groups.paths) if around else None
    rails = fast or common_rails(bare)
    of_byte = pace_of(bare, ends, groups.paths, rings, rails=rails if family == "rails-trees" else rails[:1])
    radices = TREE_RADICES[:1] if around else TREE_RADICES  # more messages leave gaps in turns beside few long ones
    for radix in dict.fromkeys(max(1, min(radix, bare.count - 2)) for radix in radices):
        trees = rail_trees(
            bare, root, rings, radix=radix, through=through, forked=forked, around=around, at_once=at_once, fast=fast
        )
        if turned:
            inside = trees.sent_inside(bare.members(0)) if around else 1.0 - np.eye(bare.members(0))
            turns = host_turns(bare, ends, groups.paths, inside, trees.colours, 1 / trees.radix, fast)
            if turns is None:
                return
            trees = trees.in_turns(turns)
        for slices in _tree_slices(request, groups, trees)[-TREE_OPTIONS:]:
            pace = of_byte.times(request.payload_bytes / slices)
            build: Build = partial(_of_trees, request, groups, trees, pace, slices)
            us, messages = trees.predicted_us(name, pace, slices), trees.messages * slices
            yield us, messages, f"{family}-{trees.radix}.{slices}", build


def _of_trees(request: Request, groups: RankPatterns, trees: RailTrees, pace: Pace, slices: int) -> Schedule:
    """The pipeline of trees."""
    make = trees.reduce if request.collective.name == "reduce" else trees.broadcast
    schedule = make(request.layout.rows, pace)
    if not groups.in_order:
        schedule = relabelled(schedule, groups.order)
    return sliced(schedule, slices, trees.period)


def _tree_slices(request: Request, groups: RankPatterns, trees: RailTrees) -> list[int]:
    """The numbers of slices that have enough bytes, and not too many transfers."""
    chunks, ranks = trees.parents.shape
    most = max(TREE_SLICES[0], MOST_TREE_TRANSFERS // (chunks * ranks))
    most = min(most, request.payload_bytes * trees.copies // chunks // slice_bytes(request, groups))
    return [slices for slices in TREE_SLICES if slices <= most]


def on_gpus(request: Request, paths: PathFinder) -> bool:
    """Whether all ranks have GPUs."""
    return {paths.topology.by_id[end].kind for end in request.endpoints} == {"gpu"}


def slice_bytes(request: Request, groups: RankPatterns) -> int:
    """The least bytes of a slice: fewer where links between groups are slow."""
    of_gpus, of_processors = (SLICE_US, SLICE_BYTES), (PROCESSOR_SLICE_US, PROCESSOR_SLICE_BYTES)
    least_us, (least, most) = of_gpus if on_gpus(request, groups.paths) else of_processors
    across = _across(request, groups, groups.hierarchy.groups, rails=common_rails(groups.hierarchy.groups)[:1])
    return most if across is None else max(least, min(most, int(least_us / across.us_of_byte)))


def _across(request: Request, groups: RankPatterns, bare: Groups, *, rails: Sequence[int]) -> MessagePace | None:
    """The pace of messages between groups; None where they have none, or no bytes to wait for."""
    if bare.count < 2 or not rails:
        return None
    with suppress(NoRouteError):
        made = pace_across(bare, [request.endpoints[rank] for rank in groups.order], groups.paths, rails=rails)
        return made if made.us_of_byte > 0 else None
    return None


def pipelined(request: Request, groups: RankPatterns, schedule: Schedule, period: int, name: str) -> Builds:
    """The schedule in as many slices as have enough bytes, a period apart."""
    for slices in chain_slices(request, groups, schedule, TREE_SLICES):
        yield f"{name}-{slices}", partial(sliced, schedule, slices, period)


def chain_slices(
    request: Request, groups: RankPatterns, schedule: Schedule, options: Sequence[int] = CHAIN_SLICES
) -> list[int]:
    """Return the numbers of slices that have enough bytes, and not too many transfers."""
    least, of_chunk = slice_bytes(request, groups), request.payload_bytes / len(schedule.chunks)
    if not on_gpus(request, groups.paths):
        # With s bytes a slice, M / s + rounds messages of (s + m) bytes are in a row: least where s^2 = M m / rounds.
        soonest = (of_chunk * PROCESSOR_MESSAGE_BYTES / schedule.rounds) ** 0.5
        least = max(PROCESSOR_SLICE_BYTES[0], min(least, int(soonest * 0.5**0.5)))  # the nearest power of 2
    most = min(max(TREE_SLICES[0], MOST_TREE_TRANSFERS // len(schedule.transfers)), int(of_chunk) // least)
    return [slices for slices in options if slices <= most]


def _halved(request: Request, groups: RankPatterns, *, in_slices: bool) -> Builds:
    """Long values over rails, in as many slices as are worth their messages and can be planned at once, or in one."""
    bare = groups.hierarchy.groups
    for radix in _radices(request, groups.hierarchy, most_direct=0):
        options = [n for n in sorted({*HALVED_PIECES, min(bare.count, radix)}) if n <= max(radix, HALVED_PIECES[-1])]
        fits = [n for n in options if transfer_count(bare, n, radix) <= MOST_HALVED_TRANSFERS]
        if not fits:
            continue
        for inside, rings in _ways_inside(request, groups):
            schedule = rails_allreduce_in_parts(bare, request.layout.rows, fits[-1], rings, radix)
            if not groups.in_order:
                schedule = relabelled(schedule, groups.order)
            builds = in_few_slices(request, groups, _rooted(request, schedule), _name(radix) + inside)
            yield from builds if in_slices else islice(builds, 1)


def _owned(request: Request, groups: RankPatterns, *, in_slices: bool) -> Builds:
    """Pieces with one owner each, which all groups send to at once; in as many slices as above."""
    count, rails = groups.hierarchy.groups.count, len(common_rails(groups.hierarchy.groups))
    if count <= 2 or count not in _radices(request, groups.hierarchy, most_direct=count):
        return
    made = OwnedPieces(request, groups).schedules(list(_ways_inside(request, groups)), MOST_HALVED_TRANSFERS)
    for name, schedule in made:
        builds = in_few_slices(request, groups, schedule, name, few=count * rails // len(schedule.chunks))
        yield from builds if in_slices else islice(builds, 1)


def _in_blocks(request: Request, groups: RankPatterns) -> Builds:
    """Parts over the rails of few hosts whole, and over those of so many that a piece for each of them is too much."""
    bare = groups.hierarchy.groups
    if (
        request.port_model == "loggp"
        and not groups.hierarchy.flat  # there it is `flat`
        and bare.count <= MOST_WHOLE_GROUPS
        and request.payload_bytes <= max(MOST_AT_ONCE_BYTES, MOST_WHOLE_PART_BYTES * len(common_rails(bare)))
    ):
        inside, way = list(_ways_inside(request, groups))[-1]
        schedule = rail_blocks_allreduce(bare, request.layout.rows, 1, way)
        schedule = schedule if groups.in_order else relabelled(schedule, groups.order)
        yield from in_few_slices(request, groups, _rooted(request, schedule), f"rails-blocks-{bare.count}{inside}")
    pieces = min(most_blocks_pieces(bare, MOST_HALVED_TRANSFERS), -(-bare.count // 2))
    if request.port_model != "loggp" or bare.count <= MOST_FLAT_RANKS or groups.hierarchy.flat or pieces < 2:
        return
    schedule = rail_blocks_allreduce(bare, request.layout.rows, pieces, groups.rings())
    if not groups.in_order:
        schedule = relabelled(schedule, groups.order)
    label = f"rails-blocks-{-(-bare.count // pieces)}"
    yield from islice(in_few_slices(request, groups, _rooted(request, schedule), label), 1)


def _ways_inside(request: Request, groups: RankPatterns) -> Iterator[tuple[str, Inside]]:
    """Parts inside groups: around rings that have more bytes a second; of short values also at once, and by trees."""
    rings = groups.rings()
    yield "", rings
    if rings and request.payload_bytes <= MOST_AT_ONCE_BYTES:
        yield "-flat", None
    if trees := _trees_of(request, groups, groups.hierarchy.groups):
        yield "-trees", trees


def _rooted(request: Request, schedule: Schedule) -> Schedule:
    """The half of an allreduce that is the request's collective."""
    name, root = request.collective.name, request.collective.root
    return schedule if name == "allreduce" else (reduce_of if name == "reduce" else broadcast_of)(schedule, root)


def parts_over_rails(request: Request, groups: RankPatterns) -> Builds:
    """Parts over rails: half of that allreduce."""
    bare, parts = groups.hierarchy.groups, request.collective.parts
    reduces = request.collective.name == "reduce_scatter"
    wanted = groups.in_order and all(parts) and (request.operator.commutative or not reduces)
    if wanted:
        yield from _around_hosts(request, groups)
    few = is_long(request) or bare.count <= MOST_DIRECT_GROUPS  # of short values of more hosts patterns are sooner
    if not wanted or not few or not _is_long_across(request, groups) or not fits_parts(bare):
        return
    radices = _radices(request, groups.hierarchy)
    for radix in radices:
        transfers = transfer_count(bare, bare.count, radix) // 2
        few = transfers <= MOST_HALVED_TRANSFERS
        if few or (radix == radices[-1] and transfers <= MOST_TRANSFERS):
            for inside, rings in islice(_ways_inside(request, groups), None if few else 1):
                made = (rails_reduce_scatter if reduces else rails_allgather)(bare, parts, rings, radix)
                yield from in_few_slices(request, groups, made, _name(radix) + inside)


def _may_cut(request: Request) -> bool:
    return request.layout.splittable and request.objective in ("auto", "throughput")


def is_long(request: Request) -> bool:
    """Whether the value may be cut, and parts of it are worth a plan."""
    return _may_cut(request) and request.payload_bytes >= LONG_BYTES


def _is_long_across(request: Request, groups: RankPatterns) -> bool:
    """Whether parts over rails are worth a plan: of a long value, or one that whole takes long inside or between."""
    bare = groups.hierarchy.groups
    if groups.hierarchy.flat or is_long(request) or not _may_cut(request):
        return long_enough(request, bare)
    rails, ends = common_rails(bare), [request.endpoints[rank] for rank in groups.order]
    if bare.count < 2 or not rails:
        return False
    with suppress(NoRouteError):
        pace = pace_of(bare, ends, groups.paths, groups.rings(), rails=rails).times(request.payload_bytes)
        values = log2(max(inside.members for inside in bare.insides)), (bare.count - 1) / len(rails)
        both = zip(values, pace.slice_us, pace.latency_us, strict=True)
        return any(count * us >= HEARD_LATENCIES * latency_us > 0 for count, us, latency_us in both)
    return False


def long_enough(request: Request, groups: Groups) -> bool:
    """Whether parts of the value over rails are worth a plan."""
    return is_long(request) and groups.count > 1 and bool(common_rails(groups))


def _radices(request: Request, hierarchy: Hierarchy, most_direct: int = MOST_DIRECT_GROUPS) -> list[int]:
    """2, and larger ones where messages of a port wait for each other's bytes only.

    Of few ranks that are all alike `flat` and `direct` are the same.
    """
    count, one_root = hierarchy.groups.count, request.collective.name in ("reduce", "broadcast")
    if request.port_model != "loggp" or (hierarchy.flat and count <= MOST_FLAT_RANKS and not one_root):
        return [2]
    return [2, *(radix for radix in PART_RADICES if radix < count), *[count] * (2 < count <= most_direct)]


def _name(radix: int) -> str:
    return "rails-halving" if radix == 2 else f"rails-by-{radix}"


def in_few_slices(request: Request, groups: RankPatterns, schedule: Schedule, name: str, few: int = 1) -> Builds:
    """The schedule in as many slices as are worth their messages, `few` in any case, and can be planned at once.

    With one port phase by phase, since an endpoint then sends by NVLink or by its NIC. With several both are busy at
    once where a slice follows a round after the other; so does an allreduce of ranks that are all alike, as `direct`.
    """
    chunk_bytes = request.payload_bytes // len(schedule.chunks)
    in_phases = request.ports == 1 and chunk_bytes < MOST_PHASED_BYTES
    in_phases &= not (groups.hierarchy.flat and request.collective.name == "allreduce")
    least = min(SLICE_BYTES[1], slice_bytes(request, groups))
    if in_phases and on_gpus(request, groups.paths):
        least = max(SLICE_BYTES[0], least // 2)
    most = min(max(chunk_bytes // least, few), MOST_HALVED_TRANSFERS // len(schedule.transfers))
    options = HALVED_SLICES if request.ports > 1 else HALVED_SLICES[: 5 if in_phases else 3]
    for slices in dict.fromkeys(n if n <= most else 1 for n in options):
        build = PhasedBuild(schedule, slices) if in_phases else partial(sliced, schedule, slices, 1)
        yield f"{name}-{slices}", build
