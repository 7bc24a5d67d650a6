"""The families of algorithms that a request is too large, or too much of another kind, for."""

from __future__ import annotations

from collections.abc import Iterator

from topocomm.planning.algorithms.hosts.rails_parts import common_rails, fits_parts
from topocomm.planning.candidates import (
    MOST_AUTO_FOREST_RANKS,
    MOST_AUTO_TREE_CPUS,
    MOST_CHAINED_CPUS,
    MOST_EDGES_BYTES,
)
from topocomm.planning.forests.chain_flow import MOST_PERIOD
from topocomm.planning.forests.port_forest import MOST_MESSAGES, MOST_RANKS, has_unlike_links
from topocomm.planning.hierarchical.long_values import (
    LONG_BYTES,
    MOST_AT_ONCE_BYTES,
    MOST_FLAT_RANKS,
    MOST_TREE_RANKS,
)
from topocomm.planning.hierarchical.overlapped_parts import MOST_OVERLAPPED_RANKS
from topocomm.planning.hierarchical.turned_parts import MOST_TURNED_RANKS
from topocomm.planning.hierarchical.uneven_parts import MOST_ACROSS, MOST_MOVED, fits_across
from topocomm.planning.host_forests.host_builds import MOST_MEMBERS as MOST_FOREST_MEMBERS
from topocomm.planning.host_forests.host_builds import MOST_RANKS as MOST_FOREST_RANKS
from topocomm.planning.rank_patterns import MOST_LISTED_RANKS, MOST_RING_RANKS, RankPatterns
from topocomm.planning.relay_chains import chain_period
from topocomm.planning.request import Request
from topocomm.planning.routing.earliest_edges import MOST_EDGE_MEMBERS, pairs_differ
from topocomm.planning.routing.member_ring import MOST_PATH_MEMBERS
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.scan_trees.group_scans import MOST_STRAIGHT_HOSTS
from topocomm.planning.ways.member_ways import MOST_MEMBERS
from topocomm.topology.model import Topology

_FLAT = {"allreduce": "flat, direct"}
_RINGS = {
    "allreduce": "rabenseifner, ring",
    "broadcast": "scatter-ring, scatter-dissemination",
    "allgather": "doubling, ring",
    "reduce_scatter": "halving, ring",
    "alltoall": "dissemination, by-hosts, by-nics, diagonal, tapered",
}
_LISTED = {"allreduce": "recursive-doubling, binomial, circulant", "scan": "chain", "exscan": "chain, 1-2-3-doubling"}
_TREES = {
    "allreduce": "forest, two-tree",
    "reduce": "forest, two-tree",
    "broadcast": "forest, two-tree",
    "allgather": "forest",
    "reduce_scatter": "forest",
}
_PARTS = {
    "scan": "rails-scan, rails-chain",
    "exscan": "rails-scan, rails-chain",
    **dict.fromkeys(_TREES, "rails-halving, rails-by"),
}
_PARTS.update(
    dict.fromkeys(
        ("reduce", "broadcast"), "rails-halving, rails-by, rails-straight, rails-blocks, rails-trees, rails-through"
    )
)
_PARTS["allreduce"] = "rails-halving, rails-by, rails-blocks"
_FOLDS = ("allreduce", "reduce", "reduce_scatter")


def left_out(topology: Topology, request: Request) -> tuple[str, ...]:
    """Return what was not tried, and why: `ring, rabenseifner: for at most 256 ranks`."""
    if request.collective.shards:
        return ()
    return tuple(f"{names}: {why}" for names, why in _found(topology, request))


def _found(topology: Topology, request: Request) -> Iterator[tuple[str, str]]:
    name, ranks = request.collective.name, len(request.endpoints)
    if ranks > MOST_FLAT_RANKS and name != "alltoall":
        limit = MOST_RING_RANKS if name in ("gather", "scatter") else MOST_FLAT_RANKS
        if ranks > limit:
            yield _FLAT.get(name, "flat"), f"for at most {limit} ranks"
    if ranks > MOST_RING_RANKS and name in _RINGS:
        yield _RINGS[name], f"for at most {MOST_RING_RANKS} ranks"
    if ranks > MOST_LISTED_RANKS and name in _LISTED:
        yield _LISTED[name], f"for at most {MOST_LISTED_RANKS} ranks"
    if ranks > MOST_MEMBERS and name in ("gather", "scatter", "alltoall") and request.bytes_count:
        yield "ways", f"for at most {MOST_MEMBERS} ranks"
    if request.objective == "auto" and request.payload_bytes >= LONG_BYTES and request.layout.splittable:
        yield from _of_long_values(topology, request)


def _of_long_values(topology: Topology, request: Request) -> Iterator[tuple[str, str]]:
    name, ranks = request.collective.name, len(request.endpoints)
    if name in _TREES:
        yield from _of_trees(topology, request)
    yield from _of_unlike_pairs(topology, request)
    if name not in _PARTS:
        return
    if name in _FOLDS and not request.operator.commutative:
        yield _PARTS[name], f"{request.operator.name} does not commute"
        return
    patterns = RankPatterns(request, PathFinder(topology))
    groups = patterns.hierarchy.groups
    members = max(inside.members for inside in patterns.hosts.insides)
    if request.ports == 1:
        yield from _of_one_port(name, ranks, groups.count, members)
    if name in ("reduce", "broadcast") and members > MOST_PATH_MEMBERS:
        yield "relay-chain", f"for at most {MOST_PATH_MEMBERS} ranks of a host"
    if name in ("reduce", "broadcast") and ranks > MOST_TREE_RANKS and groups.count < ranks:
        yield "rails-trees, rails-through", f"for at most {MOST_TREE_RANKS} ranks"
    if name in ("scan", "exscan"):
        yield from _of_scans(request, patterns)
    elif groups.count > 1 and not common_rails(groups):
        yield _PARTS[name], "no rail has a rank of every host"
    elif groups.count > 1 and name not in ("allreduce", "reduce", "broadcast") and not fits_parts(groups):
        yield _PARTS[name], "some rank is on no rail that every host has"
        if not fits_across(groups, 1):
            yield "uneven-parts", f"for at most {MOST_ACROSS} messages between hosts, and {MOST_MOVED} pieces"


def _of_one_port(name: str, ranks: int, groups: int, members: int) -> Iterator[tuple[str, str]]:
    in_parts = name in ("allreduce", "allgather", "reduce_scatter") and groups < ranks
    if in_parts and ranks > MOST_TURNED_RANKS:
        yield "turns", f"for at most {MOST_TURNED_RANKS} ranks"
    if in_parts and ranks > MOST_OVERLAPPED_RANKS:
        yield "rails-overlap", f"for at most {MOST_OVERLAPPED_RANKS} ranks"
    by_hosts = name in ("allreduce", "allgather", "reduce_scatter", "reduce", "broadcast")
    if by_hosts and (ranks > MOST_FOREST_RANKS or members > MOST_FOREST_MEMBERS):
        yield "host-forest", f"for at most {MOST_FOREST_RANKS} ranks, hosts of {MOST_FOREST_MEMBERS}"


def _of_trees(topology: Topology, request: Request) -> Iterator[tuple[str, str]]:
    name, ranks = request.collective.name, len(request.endpoints)
    on_gpus = {topology.by_id[end].kind for end in request.endpoints} == {"gpu"}
    if name in ("reduce", "broadcast") and not on_gpus:
        yield "forest", "with objective auto for GPUs only"
        for names, most in (("two-tree", MOST_AUTO_TREE_CPUS), ("chained-trees", MOST_CHAINED_CPUS)):
            if ranks > most:
                yield names, f"with objective auto for at most {most} ranks on CPUs"
    elif ranks > MOST_AUTO_FOREST_RANKS:
        yield _TREES[name], f"with objective auto for at most {MOST_AUTO_FOREST_RANKS} ranks"
    elif not on_gpus:
        yield _TREES[name], "with objective auto for GPUs only"


def _of_scans(request: Request, patterns: RankPatterns) -> Iterator[tuple[str, str]]:
    if chain_period(request.endpoints, patterns) > MOST_PERIOD:
        yield (
            "scan-trees, scan-owners, scan-hosts, relay-chain",
            f"for at most {MOST_PERIOD} ranks, or hosts of so many that are alike",
        )
    if patterns.hierarchy.groups.count > MOST_STRAIGHT_HOSTS and request.payload_bytes <= MOST_AT_ONCE_BYTES:
        yield "scan-hosts, rails-hosts", f"for at most {MOST_STRAIGHT_HOSTS} hosts"
    if patterns.hierarchy.groups.count > MOST_RING_RANKS:
        yield _PARTS["scan"], f"for at most {MOST_RING_RANKS} hosts"


def _of_unlike_pairs(topology: Topology, request: Request) -> Iterator[tuple[str, str]]:
    """What is for few endpoints, each with one rank, whose pairs are unlike."""
    ends, paths = request.endpoints, PathFinder(topology)
    fits = request.collective.name in _TREES and request.ports == 1 and len(set(ends)) == len(ends)
    in_order = request.collective.name in _FOLDS and not request.operator.commutative
    if not fits or in_order or {topology.by_id[end].kind for end in ends} != {"gpu"}:
        return
    if MOST_RANKS < len(ends) <= MOST_AUTO_FOREST_RANKS and has_unlike_links(paths, ends):
        yield "port-forest", f"with one port for at most {MOST_RANKS} ranks, and {MOST_MESSAGES} messages a slice"
    rooted = request.collective.name in ("reduce", "broadcast")
    short = request.payload_bytes <= (MOST_EDGES_BYTES if rooted else MOST_AT_ONCE_BYTES)
    one_host = len({topology.by_id[end].host for end in ends}) == 1
    if short and one_host and len(ends) > MOST_EDGE_MEMBERS and pairs_differ(ends, paths):
        yield "edge-forest" if rooted else "host-trees", f"for at most {MOST_EDGE_MEMBERS} ranks of a host"
