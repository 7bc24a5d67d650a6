"""Which algorithms fit a request: every collective has several, each for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from topocomm.operators.operator import Layout, Operator
from topocomm.planning.algorithms import binomial, canonical, dissemination, flat, halving, prefix, ring
from topocomm.planning.algorithms.hierarchical import leaders_allreduce, rails_allreduce
from topocomm.planning.algorithms.recursive_doubling import recursive_doubling_allreduce
from topocomm.planning.algorithms.scatter_allgather import scatter_dissemination_broadcast, scatter_ring_broadcast
from topocomm.planning.collectives import Collective
from topocomm.planning.cost import PortModel
from topocomm.planning.paths import PathFinder
from topocomm.planning.plan import Objective
from topocomm.planning.schedule import Schedule

Build = Callable[[], Schedule]
Builds = Iterator[tuple[str, Build]]

MOST_FLAT_RANKS = 64
MOST_RING_RANKS = 256
"""Beyond these an algorithm's P^2 messages only slow the planner down: others win by far."""


@dataclass(frozen=True)
class Request:
    """What is to be planned, beside the topology."""

    collective: Collective
    operator: Operator
    layout: Layout
    endpoints: tuple[str, ...]
    objective: Objective
    ports: int
    port_model: PortModel
    cores: int = 0
    """Of ranks that share one memory; 0 where links are what counts."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of one rank's value; of allgather and reduce_scatter, of the whole."""
        return self.layout.rows * self.layout.row_bytes


def candidate_builds(request: Request, paths: PathFinder) -> Builds:
    """Name and builder of every algorithm that fits the collective, the operator and the number of ranks."""
    if request.collective.name == "allreduce":
        if request.collective.shards:
            return _canonical_builds(request)
        return _allreduce_builds(request, paths)
    return _BUILDS[request.collective.name](request)


def latency_groups(endpoints: Sequence[str], paths: PathFinder) -> list[list[list[int]]]:
    """Ways to cut the ranks in groups of neighbours: one for every latency that separates them.

    Two neighbours in rank order are in one group if their path latency is at most the level. Levels that leave
    one group, or only single ranks, are left out.
    """
    steps = [paths.latency_us(a, b) for a, b in pairwise(endpoints)]
    found = []
    for level in sorted(set(steps))[:-1]:
        groups = [[0]]
        for rank, step_us in enumerate(steps, start=1):
            if step_us <= level:
                groups[-1].append(rank)
            else:
                groups.append([rank])
        found.append(groups)
    return found


def _allreduce_builds(request: Request, paths: PathFinder) -> Builds:
    count, rows = len(request.endpoints), request.layout.rows
    yield "recursive-doubling", partial(recursive_doubling_allreduce, count, rows)
    yield "binomial", partial(binomial.binomial_allreduce, count, rows)
    if count <= MOST_FLAT_RANKS:
        yield "flat", partial(flat.flat_allreduce, count, rows)
    if request.layout.splittable:
        if count <= MOST_FLAT_RANKS:
            yield "direct", partial(flat.direct_allreduce, count, rows)
        if count <= MOST_RING_RANKS:
            yield "rabenseifner", partial(halving.rabenseifner_allreduce, count, rows)
            if request.operator.commutative:
                yield "ring", partial(ring.ring_allreduce, count, rows)
    for groups in latency_groups(request.endpoints, paths):
        if len({len(group) for group in groups}) == 1:
            yield f"two-level-rails-{len(groups)}", partial(rails_allreduce, groups, rows)
        yield f"two-level-leaders-{len(groups)}", partial(leaders_allreduce, groups, rows)


def _canonical_builds(request: Request) -> Builds:
    shards, rows = request.collective.shards, request.layout.rows
    yield "canonical-doubling", partial(canonical.doubling_canonical, shards, rows)
    yield "canonical-binomial", partial(canonical.binomial_canonical, shards, rows)
    if request.collective.ranks <= MOST_FLAT_RANKS:
        yield "canonical-flat", partial(canonical.flat_canonical, shards, rows)
        if request.layout.splittable:
            yield "canonical-direct", partial(canonical.direct_canonical, shards, rows)


def _reduce_builds(request: Request) -> Builds:
    count, rows, root = request.collective.ranks, request.layout.rows, request.collective.root
    yield "binomial", partial(binomial.binomial_reduce, count, rows, root)
    yield "flat", partial(flat.flat_reduce, count, rows, root)


def _broadcast_builds(request: Request) -> Builds:
    count, rows, root = request.collective.ranks, request.layout.rows, request.collective.root
    yield "binomial", partial(binomial.binomial_broadcast, count, rows, root)
    yield "flat", partial(flat.flat_broadcast, count, rows, root)
    if request.layout.splittable and count <= MOST_RING_RANKS:
        yield "scatter-ring", partial(scatter_ring_broadcast, count, rows, root)
        yield "scatter-dissemination", partial(scatter_dissemination_broadcast, count, rows, root)


def _allgather_builds(request: Request) -> Builds:
    parts = request.collective.parts
    yield "dissemination", partial(dissemination.dissemination_allgather, parts)
    if len(parts) <= MOST_FLAT_RANKS:
        yield "flat", partial(flat.flat_allgather, parts)
    if len(parts) <= MOST_RING_RANKS:
        yield "doubling", partial(halving.doubling_allgather, parts)
        yield "ring", partial(ring.ring_allgather, parts)


def _reduce_scatter_builds(request: Request) -> Builds:
    parts = request.collective.parts
    yield "halving", partial(halving.halving_reduce_scatter, parts)
    if len(parts) <= MOST_FLAT_RANKS:
        yield "flat", partial(flat.flat_reduce_scatter, parts)
    if request.operator.commutative and len(parts) <= MOST_RING_RANKS:
        yield "dissemination", partial(dissemination.dissemination_reduce_scatter, parts)
        yield "ring", partial(ring.ring_reduce_scatter, parts)


def _scan_builds(request: Request) -> Builds:
    count, rows = request.collective.ranks, request.layout.rows
    yield "doubling", partial(prefix.doubling_scan, count, rows)
    yield "chain", partial(prefix.chain_scan, count, rows)
    if count <= MOST_FLAT_RANKS:
        yield "flat", partial(flat.flat_scan, count, rows)


def _exscan_builds(request: Request) -> Builds:
    count, rows = request.collective.ranks, request.layout.rows
    yield "1-2-3-doubling", partial(prefix.doubling_exscan, count, rows)
    yield "chain", partial(prefix.chain_exscan, count, rows)
    if count <= MOST_FLAT_RANKS:
        yield "flat", partial(flat.flat_exscan, count, rows)


_BUILDS: dict[str, Callable[[Request], Builds]] = {
    "reduce": _reduce_builds,
    "broadcast": _broadcast_builds,
    "allgather": _allgather_builds,
    "reduce_scatter": _reduce_scatter_builds,
    "scan": _scan_builds,
    "exscan": _exscan_builds,
}
