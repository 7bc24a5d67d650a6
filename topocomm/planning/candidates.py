"""Algorithms that fit a request, several of every collective, for any number of ranks; of long payloads in slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from math import ceil

import numpy as np

from topocomm.errors import PlanError
from topocomm.planning.algorithms import (
    alltoall,
    binomial,
    flat,
    halving,
    multiport,
    prefix,
    ring,
    two_tree,
)
from topocomm.planning.algorithms import canonical_allreduce as canonical
from topocomm.planning.algorithms import gossip_parts as in_parts
from topocomm.planning.algorithms import gossip_schedule as gossip
from topocomm.planning.algorithms.hosts.host_scan import shift_scan
from topocomm.planning.algorithms.hosts.leaders import leaders_allreduce
from topocomm.planning.algorithms.hosts.rails import rails_allreduce
from topocomm.planning.algorithms.recursive_doubling import recursive_doubling_allreduce
from topocomm.planning.algorithms.scatter_allgather import scatter_dissemination_broadcast, scatter_ring_broadcast
from topocomm.planning.collectives import IN_PAIRS
from topocomm.planning.forests.edge_forest import edge_forest
from topocomm.planning.forests.forest import forest_of
from topocomm.planning.forests.port_forest import port_forest
from topocomm.planning.forests.routed import routed
from topocomm.planning.forests.tree_schedule import STAGGER_ROUNDS
from topocomm.planning.hierarchical.long_values import (
    LONG_BYTES,
    MOST_FLAT_RANKS,
    on_gpus,
    over_rails,
    parts_over_rails,
)
from topocomm.planning.hierarchical.overlapped_parts import overlapped_parts
from topocomm.planning.hierarchical.turned_parts import in_turns
from topocomm.planning.hierarchical.uneven_parts import uneven_parts
from topocomm.planning.host_forests.host_builds import over_host_forests
from topocomm.planning.rank_patterns import MOST_LISTED_RANKS, MOST_RING_RANKS, RankPatterns, dotted
from topocomm.planning.relay_chains import relay_chains
from topocomm.planning.request import Build, Builds, Request
from topocomm.planning.routing.earliest_edges import MOST_EDGE_MEMBERS, pairs_differ
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.scan_trees.group_scans import group_scans
from topocomm.planning.scan_trees.scan_builds import chained_members, packed_scans
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.transforms import most_slices, relabelled, sliced
from topocomm.planning.ways.way_builds import over_ways

MOST_AUTO_FOREST_RANKS = 32
"""Largest rank count for pipelined trees with objective auto."""
MOST_AUTO_TREE_CPUS = 128
"""Largest number of ranks on CPUs for two trees with objective auto; nothing is packed into their links."""
MOST_CHAINED_HOSTS, MOST_CHAINED_CPUS = 9, 512
"""Most hosts in a chain of two trees each, of more the way along it takes longer than the bytes; and most CPUs."""
SLICE_BYTES, CPU_SLICE_BYTES = 64 << 10, 16 << 10
"""Least bytes of a slice of a pipelined chunk, and between CPUs, where parts over rails are more messages anyway."""
PORT_SLICES = ((128 << 10, 64, 8192), (8 << 10, 16, 1024))
"""Of trees packed into ports (least bytes of a slice, most slices, most messages of all): those that give more slices.
More messages take longer to follow than they gain, of short values sooner."""
SLICES, MANY_SLICES = (1, 2, 4, 8, 16, 32, 64), 16
"""Slice counts tried with objective auto, and the count where bytes alone matter."""
SHORT_LEVEL = 0.1
"""Part of a level that is none: of longer slices one level more takes longer than the latency."""
CPU_SLICES, LARGE_SLICES = (*SLICES, 128, 256), 16
"""Slice counts between CPUs, whose trees are deeper; and the fewest of more of them than two trees over all suit."""
MOST_WHOLE_BYTES = {"allreduce": 48 << 10, "reduce": 256 << 10, "broadcast": 256 << 10}
"""Largest value of many ranks that is also sent whole where it may go in parts over rails."""
MOST_EDGES_BYTES = 512 << 10
"""Largest payload that goes by the edges that complete first: of more, packed trees have more bytes a second."""
MOST_PACKED_RANKS = 64
"""Most ranks of which a scan along packed trees is sooner than along a chain with relays."""
MOST_PIECES = 1 << 22
"""Most parts that all ranks of an allgather or reduce_scatter may receive or send together."""


def candidate_builds(request: Request, paths: PathFinder) -> Builds:
    """Yield name and builder of every algorithm that fits the collective, the operator and the number of ranks."""
    if request.collective.shards:
        yield from _canonical_builds(request)
        return
    yield from _BUILDS[request.collective.name](request, RankPatterns(request, paths))
    if request.layout.splittable:
        yield from _pipelined_builds(request, paths)


def _allreduce_builds(request: Request, groups: RankPatterns) -> Builds:
    count, rows = len(request.endpoints), request.layout.rows
    if count <= MOST_LISTED_RANKS and not groups.many:
        yield "recursive-doubling", partial(recursive_doubling_allreduce, count, rows)
        yield "binomial", partial(binomial.binomial_allreduce, count, rows)
        if count & (count - 1) or request.ports > 1:
            yield "circulant", partial(multiport.multiport_allreduce, count, rows, request.ports)
    if count <= MOST_FLAT_RANKS:
        yield "flat", partial(flat.flat_allreduce, count, rows)
    if request.layout.splittable and request.bytes_count:
        if count <= MOST_FLAT_RANKS:
            yield "direct", partial(flat.direct_allreduce, count, rows)
        if count <= MOST_RING_RANKS:
            yield "rabenseifner", partial(halving.rabenseifner_allreduce, count, rows)
            if request.operator.commutative:
                yield "ring", partial(ring.ring_allreduce, count, rows)
    yield from _grouped_allreduces(request, groups)


def _grouped_allreduces(request: Request, groups: RankPatterns) -> Builds:
    rows, hierarchy = request.layout.rows, groups.hierarchy
    few = len(groups.order) <= MOST_LISTED_RANKS and not groups.many
    in_parts = list(over_rails(request, groups))
    whole = _whole_worth(request, groups, in_parts)
    if whole and (groups.in_order or request.operator.commutative):
        for name, own, radices in groups.over_rails(few=few):
            build = partial(rails_allreduce, own.groups, radices, rows, own.ports)
            yield name, build if groups.in_order else partial(_renumbered, build, groups.order)
        if groups.in_order and not hierarchy.flat and few:
            hosts = [list(range(low, high)) for low, high in hierarchy.edges]
            yield f"leaders-{len(hosts)}", partial(leaders_allreduce, hosts, rows)
    patterns = groups.cyclic() if groups.in_order else groups.patterns()
    for pattern in islice(patterns, None if whole else 0):
        yield pattern.name, pattern.whole(partial(gossip.gossip_allreduce, rows=rows))
    yield from in_parts
    yield from _in_periods(request, groups)


def _in_periods(request: Request, groups: RankPatterns) -> Builds:
    """Long values in slices whose messages have their turn."""
    for family in (in_turns, overlapped_parts, over_host_forests, uneven_parts):
        yield from family(request, groups)


def _whole_worth(request: Request, groups: RankPatterns, in_parts: Sequence[object]) -> bool:
    """Whether whole values may be soonest: those that are long, of many ranks, lose where they go in parts."""
    return not (in_parts and groups.many and request.payload_bytes > MOST_WHOLE_BYTES[request.collective.name])


def _renumbered(build: Build, order: tuple[int, ...]) -> Schedule:
    return relabelled(build(), order)


def _canonical_builds(request: Request) -> Builds:
    shards, rows = request.collective.shards, request.layout.rows
    yield "canonical-doubling", partial(canonical.doubling_canonical, shards, rows)
    yield "canonical-binomial", partial(canonical.binomial_canonical, shards, rows)
    if request.collective.ranks <= MOST_FLAT_RANKS:
        yield "canonical-flat", partial(canonical.flat_canonical, shards, rows)
        if request.layout.splittable:
            yield "canonical-direct", partial(canonical.direct_canonical, shards, rows)


def _rooted_builds(request: Request, groups: RankPatterns) -> Builds:
    count, rows, root = request.collective.ranks, request.layout.rows, request.collective.root
    reduces = request.collective.name == "reduce"
    yield "binomial", partial(binomial.binomial_reduce if reduces else binomial.binomial_broadcast, count, rows, root)
    if request.ports > 1:
        build = multiport.multiport_reduce if reduces else multiport.multiport_broadcast
        yield f"multiport-{request.ports}", partial(build, count, rows, root, request.ports)
    if count <= MOST_FLAT_RANKS:
        yield "flat", partial(flat.flat_reduce if reduces else flat.flat_broadcast, count, rows, root)
    in_parts = list(over_rails(request, groups))
    for pattern in islice(groups.to_root(), None if _whole_worth(request, groups, in_parts) else 0):
        make = gossip.gossip_reduce if reduces else multiport.gossip_back
        yield pattern.name, pattern.whole(partial(make, rows=rows, root=root))
    if not reduces and request.layout.splittable and request.bytes_count and count <= MOST_RING_RANKS:
        yield "scatter-ring", partial(scatter_ring_broadcast, count, rows, root)
        yield "scatter-dissemination", partial(scatter_dissemination_broadcast, count, rows, root)
    yield from _by_edges(request, groups)
    yield from in_parts
    yield from over_host_forests(request, groups)
    yield from relay_chains(request, groups)


def _by_edges(request: Request, groups: RankPatterns) -> Builds:
    """Chunks by the edges that complete first, one message of a port after the other."""
    wanted = request.objective == "auto" and request.ports == 1 and not request.cores and request.layout.splittable
    fits = wanted and (request.operator.commutative or request.collective.name == "broadcast")
    ends, paths = request.endpoints, groups.paths
    if not fits or groups.hosts.count > 1 or len(set(ends)) < len(ends) or not 2 < len(ends) <= MOST_EDGE_MEMBERS:
        return
    if LONG_BYTES <= request.payload_bytes <= MOST_EDGES_BYTES and pairs_differ(ends, paths):
        schedule = edge_forest(request.collective, paths, ends, request.layout.rows, request.layout.row_bytes)
        if schedule is not None:
            yield "edge-forest", lambda: schedule


def _allgather_builds(request: Request, groups: RankPatterns) -> Builds:
    parts = request.collective.parts
    many = _many_parts(request)
    if not many or groups.hierarchy.flat or len(parts) > MOST_LISTED_RANKS:
        yield "dissemination", partial(in_parts.gossip_allgather, multiport.circulant_gossip(len(parts), 1), parts)
    if len(parts) <= MOST_FLAT_RANKS:
        yield "flat", partial(flat.flat_allgather, parts)
    if not many:
        yield "doubling", partial(halving.doubling_allgather, parts)
        if request.bytes_count:
            yield "ring", partial(ring.ring_allgather, parts)
    in_groups = list(parts_over_rails(request, groups))
    for pattern in islice(groups.patterns(), _patterns_worth(request, in_groups)):
        yield pattern.name, partial(in_parts.gossip_allgather, pattern.gossip, parts)
    yield from in_groups
    yield from _in_periods(request, groups)


def _parts_rooted_builds(request: Request, groups: RankPatterns) -> Builds:
    if request.bytes_count:
        yield from over_ways(request, groups)
    build = in_parts.gossip_gather if request.collective.name == "gather" else in_parts.gossip_scatter
    for pattern in groups.parts_to_root():
        yield pattern.name, partial(build, pattern.gossip, request.collective.parts, request.collective.root)


def _alltoall_builds(request: Request, groups: RankPatterns) -> Builds:
    parts, count = request.collective.parts, request.collective.ranks
    many = _many_parts(request)
    yield "flat", partial(alltoall.flat_alltoall, parts, count)
    if not groups.hierarchy.flat:
        yield "rails", partial(alltoall.rails_alltoall, parts, count, groups.hierarchy.groups, groups.order)
    if request.bytes_count and not many:
        yield from over_ways(request, groups)
    if not many:
        for ports in sorted({1, request.ports}):
            name = f"dissemination-{ports}" if ports > 1 else "dissemination"
            yield name, partial(in_parts.gossip_alltoall, multiport.circulant_gossip(count, ports), parts, count)
        for pattern in groups.patterns():
            yield pattern.name, partial(in_parts.gossip_alltoall, pattern.gossip, parts, count)


def _reduce_scatter_builds(request: Request, groups: RankPatterns) -> Builds:
    parts, commutative = request.collective.parts, request.operator.commutative
    many = _many_parts(request)
    if not (many and commutative):
        yield "halving", partial(halving.halving_reduce_scatter, parts)
    if len(parts) <= MOST_FLAT_RANKS:
        yield "flat", partial(flat.reduce_scatter_by, flat.collect, parts)
    if commutative and (not many or groups.hierarchy.flat or len(parts) > MOST_LISTED_RANKS):
        circulant = multiport.circulant_gossip(len(parts), 1)
        yield "dissemination", partial(in_parts.gossip_reduce_scatter, circulant, parts, None)
    if commutative and request.bytes_count and not many:
        yield "ring", partial(flat.reduce_scatter_by, ring.collect_around, parts)
    in_groups = list(parts_over_rails(request, groups))
    if commutative or not many:
        for pattern in islice(groups.patterns(), _patterns_worth(request, in_groups)):
            expression = None if commutative else pattern.tree
            yield pattern.name, partial(in_parts.gossip_reduce_scatter, pattern.gossip, parts, expression)
    yield from in_groups
    yield from _in_periods(request, groups)


def _patterns_worth(request: Request, in_groups: Sequence[object]) -> int | None:
    """How many patterns are worth their pieces: of many ranks one, and none for parts that go over rails."""
    return int(not in_groups) if _many_parts(request) else None


def _many_parts(request: Request) -> bool:
    """Whether only the best suited algorithm is worth its P^2 pieces; raises where a plan cannot list them."""
    parts = request.collective.parts
    per_part = 1 if request.collective.name in IN_PAIRS else len(parts)
    pieces = per_part * (sum(map(bool, parts)) or len(parts))
    if pieces > MOST_PIECES:
        raise PlanError(
            f"{request.collective.name} of {request.collective.ranks} ranks: {pieces} pieces to move, a plan lists at "
            f"most {MOST_PIECES}; plan it host by host, over fewer ranks"
        )
    return request.collective.ranks > MOST_RING_RANKS


def _scan_builds(request: Request, groups: RankPatterns) -> Builds:
    count, rows, ports, hierarchy = request.collective.ranks, request.layout.rows, request.ports, groups.hierarchy
    own = request.collective.name == "scan"
    alike = groups.in_order and not hierarchy.flat and len(hierarchy.groups.insides) == 1
    if alike:
        build = partial(shift_scan, hierarchy.groups, hierarchy.soonest, rows, ports, own=own)
        yield f"shift-{dotted(hierarchy.soonest)}", build
    if count <= MOST_LISTED_RANKS or not alike:
        yield "doubling", partial(prefix.doubling_scan if own else prefix.doubling_exscan, count, rows, ports)
    if count <= MOST_LISTED_RANKS:
        yield "chain", partial(prefix.chain_scan, count, rows, own=own)
        if not own:
            yield "1-2-3-doubling", partial(prefix.one_two_three_exscan, count, rows)
    if count <= MOST_FLAT_RANKS:
        yield "flat", partial(flat.flat_scan, count, rows, own=own)
    if not hierarchy.flat:
        worth = None if count <= MOST_RING_RANKS or not alike else int(request.port_model == "loggp")
        for pattern in islice(groups.patterns(), worth):
            yield pattern.name, pattern.whole(partial(gossip.gossip_scan, rows=rows, own=own))
    yield from group_scans(request, groups)
    yield from packed_scans(request, groups)
    if count > MOST_PACKED_RANKS or not chained_members(request, groups):
        yield from relay_chains(request, groups)


_BUILDS: dict[str, Callable[[Request, RankPatterns], Builds]] = {
    "allreduce": _allreduce_builds,
    "reduce": _rooted_builds,
    "broadcast": _rooted_builds,
    "allgather": _allgather_builds,
    "reduce_scatter": _reduce_scatter_builds,
    "gather": _parts_rooted_builds,
    "scatter": _parts_rooted_builds,
    "alltoall": _alltoall_builds,
    "scan": _scan_builds,
    "exscan": _scan_builds,
}


def _pipelined_builds(request: Request, paths: PathFinder) -> Builds:
    """Trees packed into the links of GPUs, and two trees; in fewer slices where chunks have few rows."""
    collective, rows, throughput = request.collective, request.layout.rows, request.objective == "throughput"
    slices = _slices(request, paths)
    if not slices:
        return
    in_pairs = throughput and collective.name in ("gather", "scatter", "alltoall")
    if in_pairs and (schedule := routed(collective, paths, request.endpoints)) is not None:
        yield "routed", lambda: schedule
    if throughput or on_gpus(request, paths):
        commutes, most = request.operator.commutative, request.limits.max_trees
        forest = forest_of(collective, paths, request.endpoints, rows, commutative=commutes, max_trees=most)
        if forest is not None:
            for name, number in _in_slices("forest", request, slices, most_slices(forest.schedule)):
                yield name, partial(sliced, forest.schedule, number, STAGGER_ROUNDS)
        yield from _port_forests(request, paths)
    yield from _two_trees(request, paths, slices)


def _in_slices(family: str, request: Request, slices: Sequence[int], most: int) -> Iterator[tuple[str, int]]:
    for number in dict.fromkeys(min(number, most) for number in slices):
        yield f"{family}-{number}" if request.objective == "auto" else family, number


def _two_trees(request: Request, paths: PathFinder, slices: Sequence[int]) -> Builds:
    """Two trees over all ranks, and from or to one CPU also over each of a few hosts, which are a chain."""
    collective, rows, count = request.collective, request.layout.rows, len(request.endpoints)
    names = [paths.topology.by_id[end].host for end in request.endpoints]
    hosts = list(map(list(dict.fromkeys(names)).index, names))
    chained = 0 < sum(a != b for a, b in pairwise(hosts)) < MOST_CHAINED_HOSTS and not on_gpus(request, paths)
    large = request.objective == "auto" and count > MOST_AUTO_TREE_CPUS
    families = [("chained-trees", hosts)] if large else [("two-tree", None), ("chained-trees", hosts)]
    for family, own in families:
        for name, number in _in_slices(family, request, slices, max(1, rows // 2)):
            late = _late_levels(request, paths, hosts, number) if chained and own else 0
            if collective.name == "allreduce" and own is None:
                yield name, partial(two_tree.two_tree_allreduce, count, rows, number)
            elif collective.name == "reduce" and (chained or own is None):
                build = partial(two_tree.two_tree_reduce, count, rows, collective.root, slices=number, hosts=own)
                yield name, partial(build, keep_order=not request.operator.commutative, late=late)
            elif collective.name == "broadcast" and (chained or own is None):
                yield name, partial(two_tree.two_tree_broadcast, count, rows, collective.root, number, own, late)


def _late_levels(request: Request, paths: PathFinder, hosts: Sequence[int], slices: int) -> int:
    """How many levels of two trees pass, of a slice each, while a message goes from host to host; 0 for bytes alone."""
    ends = np.array([rank for rank, (a, b) in enumerate(pairwise(hosts)) if a != b])
    routes = paths.routes(request.endpoints, ends, ends + 1)
    if request.objective != "auto" or not np.isfinite(routes.latency_us).all():
        return 0
    levels = routes.latency_us * routes.gb_per_s * 1e3 * slices / request.payload_bytes
    return ceil(float(levels.max()) - SHORT_LEVEL)


def _port_forests(request: Request, paths: PathFinder) -> Builds:
    """Trees packed into ports, where these send over one link after the other and links are unlike."""
    name, hosts = request.collective.name, {paths.topology.by_id[end].host for end in request.endpoints}
    ordered = name not in ("broadcast", "allgather") and not request.operator.commutative
    in_hosts = (
        name == "allreduce" and len(hosts) > 1
    )  # by `host_forests`, which has the same trees, and pieces of hosts
    if request.objective != "auto" or request.ports > 1 or ordered or in_hosts:
        return
    if (forest := port_forest(request.collective, paths, request.endpoints, request.layout.rows)) is None:
        return
    shortest = min(rows for rows, _ in forest.chunks)
    sizes = [min(request.payload_bytes // least, n, most // len(forest.turns)) for least, n, most in PORT_SLICES]
    slices = 1 << (max(1, min(max(sizes), shortest)).bit_length() - 1)
    yield f"port-forest-{slices}", partial(forest.schedule, slices, request.layout.row_bytes)


def _slices(request: Request, paths: PathFinder) -> tuple[int, ...]:
    """Slice counts worth a plan: one for objective throughput; for auto several on GPUs, and from or to one CPU.

    No model has the cost of a message for a rank's processor yet, so allreduces of CPUs are not pipelined.
    """
    gpus, one_root = on_gpus(request, paths), request.collective.name in ("reduce", "broadcast")
    least = SLICE_BYTES if gpus or request.objective == "throughput" else CPU_SLICE_BYTES
    most = max(1, request.payload_bytes // (1 if one_root else len(request.endpoints)) // least)
    if request.objective == "throughput":
        return (min(most, MANY_SLICES),)
    if request.objective != "auto" or request.payload_bytes < LONG_BYTES or request.cores or not (gpus or one_root):
        return ()
    count, options = len(request.endpoints), SLICES if gpus else CPU_SLICES
    few = count <= (MOST_AUTO_FOREST_RANKS if gpus else MOST_CHAINED_CPUS)
    fewest = min(LARGE_SLICES, most) if count > MOST_AUTO_TREE_CPUS else 1
    return tuple(n for n in options if fewest <= 2 * n - 1 and n <= most) if few else ()
