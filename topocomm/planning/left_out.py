"""The families of algorithms that a request is too large, or too much of another kind, for."""

from __future__ import annotations

from collections.abc import Iterator

from topocomm.planning.candidates import (
    LONG_BYTES,
    MOST_AUTO_FOREST_RANKS,
    MOST_FLAT_RANKS,
    long_enough,
)
from topocomm.planning.rank_patterns import MOST_LISTED_RANKS, MOST_RING_RANKS, RankPatterns
from topocomm.planning.request import Request
from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.model import Topology

_FLAT = {"allreduce": "flat, direct"}
_RINGS = {
    "allreduce": "rabenseifner, ring",
    "broadcast": "scatter-ring, scatter-dissemination",
    "allgather": "doubling, ring",
    "reduce_scatter": "halving, ring",
    "alltoall": "dissemination",
}
_LISTED = {"allreduce": "recursive-doubling, binomial, circulant", "scan": "chain", "exscan": "chain, 1-2-3-doubling"}
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
    if request.objective != "auto" or request.payload_bytes < LONG_BYTES or not request.layout.splittable:
        return
    if ranks > MOST_AUTO_FOREST_RANKS:
        yield "forest, two-tree", f"with objective auto for at most {MOST_AUTO_FOREST_RANKS} ranks"
    elif {topology.by_id[end].kind for end in request.endpoints} != {"gpu"}:
        yield "forest, two-tree", "with objective auto for GPUs only"
    if name in _FOLDS and not request.operator.commutative:
        yield "rails-halving, rails-by", f"{request.operator.name} does not commute"
        return
    groups = RankPatterns(request, PathFinder(topology)).hierarchy.groups
    if name in ("scan", "exscan") and groups.count > MOST_RING_RANKS:
        yield "rails-scan", f"for at most {MOST_RING_RANKS} hosts"
    elif groups.count > 1 and not long_enough(request, groups):
        yield "rails-halving, rails-by, rails-scan", "some host lacks a rail or a rank of the others"
