"""Which algorithms fit a request: every collective has several, each for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice

from topocomm.errors import PlanError
from topocomm.planning.algorithms import binomial, dissemination, flat, halving, multiport, prefix, ring
from topocomm.planning.algorithms import canonical_allreduce as canonical
from topocomm.planning.algorithms import gossip_parts as in_parts
from topocomm.planning.algorithms import gossip_schedule as gossip
from topocomm.planning.algorithms.gossip_schedule import Gossip
from topocomm.planning.algorithms.hosts.group_gossip import cyclic_gossip, cyclic_tree, gather_over_groups
from topocomm.planning.algorithms.hosts.host_scan import shift_scan
from topocomm.planning.algorithms.hosts.leaders import leaders_allreduce
from topocomm.planning.algorithms.hosts.rails import rails_allreduce, rails_tree
from topocomm.planning.algorithms.recursive_doubling import recursive_doubling_allreduce
from topocomm.planning.algorithms.scatter_allgather import scatter_dissemination_broadcast, scatter_ring_broadcast
from topocomm.planning.pipelined import pipelined_builds
from topocomm.planning.request import Build, Builds, Request
from topocomm.planning.routing.hierarchy import Hierarchy, nest_of
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.range_tree import RangeTree, aligned_tree
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.transforms import relabelled

MOST_FLAT_RANKS = 64
MOST_RING_RANKS = 256
"""Beyond these an algorithm's P^2 messages only slow the planner down: others win by far."""
MOST_PIECES = 1 << 22
"""Of the parts that the ranks of an allgather or reduce_scatter receive or send, all together."""
MOST_LISTED_RANKS = 2048
"""Beyond these only schedules that are written as columns are offered."""


def candidate_builds(request: Request, paths: PathFinder) -> Builds:
    """Name and builder of every algorithm that fits the collective, the operator and the number of ranks."""
    if request.collective.shards:
        yield from _canonical_builds(request)
        return
    yield from _BUILDS[request.collective.name](request, _Machine(request, paths))
    if request.layout.splittable:
        yield from pipelined_builds(request, paths)


@dataclass(frozen=True)
class GossipPattern:
    """Who tells whom, and the expression that fits it best."""

    name: str
    gossip: Gossip
    tree: RangeTree


class _Machine:
    """The ranks of a request as groups, found where they are asked for."""

    def __init__(self, request: Request, paths: PathFinder) -> None:
        self.request, self.paths = request, paths

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The ranks host by host: in rank order, hosts as they first appear."""
        by_id = self.paths.topology.by_id
        hosts = [by_id[end].host for end in self.request.endpoints]
        first = {host: index for index, host in reversed(list(enumerate(hosts)))}
        return tuple(sorted(range(len(hosts)), key=lambda rank: (first[hosts[rank]], rank)))

    @property
    def in_order(self) -> bool:
        """Whether every host has neighbouring ranks."""
        return self.order == tuple(range(len(self.order)))

    @cached_property
    def nest(self) -> Hierarchy:
        """The ranks, host by host, as groups of groups."""
        endpoints = [self.request.endpoints[rank] for rank in self.order]
        return nest_of(endpoints, self.paths, self.request.ports)

    def talks(self) -> Iterator[GossipPattern]:
        """Ways to bring all values to all ranks that suit the machine's groups."""
        nest, ports = self.nest, self.request.ports
        if len(self.order) > MOST_LISTED_RANKS:
            return
        if nest.flat:
            if ports > 1:
                told = multiport.spread_gossip(len(self.order), ports)
                yield GossipPattern(f"multiport-{ports}", told, aligned_tree(len(self.order), ports + 1))
            return
        for radices in nest.for_rails(few=True):
            told = gossip.gossip_of(rails_allreduce(nest.groups, radices, 1, ports))
            yield self._talk(f"rails-{_dotted(radices)}", told, rails_tree(nest.groups, radices))
        for radices in dict.fromkeys([nest.soonest, nest.small]):
            if not nest.exact(radices):
                told = cyclic_gossip(nest.groups, radices, ports)
                yield self._talk(f"cyclic-{_dotted(radices)}", told, cyclic_tree(nest.groups))

    def to_root(self) -> Iterator[GossipPattern]:
        """Ways to bring all values to the root that suit the machine's groups."""
        if self.nest.flat:
            return
        root = self.request.collective.root
        told = gather_over_groups(self.nest.groups, self.order.index(root), self.request.ports)
        yield self._talk("rails-tree", told, cyclic_tree(self.nest.groups))
        for talk in self.talks():
            yield replace(talk, gossip=gossip.told_to(talk.gossip, root, len(self.order)))

    def _talk(self, name: str, told: Gossip, tree: RangeTree) -> GossipPattern:
        """The gossip in the numbers of the ranks; where hosts are scattered the expression is that of rank order."""
        if self.in_order:
            return GossipPattern(name, told, tree)
        order = self.order
        numbered = [[(order[src], order[dst]) for src, dst in messages] for messages in told]
        return GossipPattern(name, numbered, aligned_tree(len(order)))


def _allreduce_builds(request: Request, machine: _Machine) -> Builds:
    count, rows = len(request.endpoints), request.layout.rows
    if count <= MOST_LISTED_RANKS:
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
    yield from _grouped_allreduces(request, machine)


def _grouped_allreduces(request: Request, machine: _Machine) -> Builds:
    rows, nest, ports, few = request.layout.rows, machine.nest, request.ports, len(machine.order) <= MOST_LISTED_RANKS
    if machine.in_order or request.operator.commutative:
        for radices in nest.for_rails(few=few):
            build = partial(rails_allreduce, nest.groups, radices, rows, ports)
            yield f"rails-{_dotted(radices)}", build if machine.in_order else partial(_renumbered, build, machine.order)
        if machine.in_order and not nest.flat and few:
            groups = [list(range(low, high)) for low, high in nest.edges]
            yield f"leaders-{len(groups)}", partial(leaders_allreduce, groups, rows)
    for talk in machine.talks():
        if talk.name.startswith("cyclic") or not machine.in_order:
            yield talk.name, partial(gossip.gossip_allreduce, talk.gossip, talk.tree, rows)


def _dotted(radices: tuple[int, ...]) -> str:
    return ".".join(map(str, radices))


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


def _reduce_builds(request: Request, machine: _Machine) -> Builds:
    count, rows, root = request.collective.ranks, request.layout.rows, request.collective.root
    yield "binomial", partial(binomial.binomial_reduce, count, rows, root)
    if request.ports > 1:
        yield f"multiport-{request.ports}", partial(multiport.multiport_reduce, count, rows, root, request.ports)
    if count <= MOST_FLAT_RANKS:
        yield "flat", partial(flat.flat_reduce, count, rows, root)
    for talk in machine.to_root():
        yield talk.name, partial(gossip.gossip_reduce, talk.gossip, talk.tree, rows, root)


def _broadcast_builds(request: Request, machine: _Machine) -> Builds:
    count, rows, root = request.collective.ranks, request.layout.rows, request.collective.root
    yield "binomial", partial(binomial.binomial_broadcast, count, rows, root)
    if request.ports > 1:
        yield f"multiport-{request.ports}", partial(multiport.multiport_broadcast, count, rows, root, request.ports)
    if count <= MOST_FLAT_RANKS:
        yield "flat", partial(flat.flat_broadcast, count, rows, root)
    for talk in machine.to_root():
        told = multiport.reversed_gossip(talk.gossip)
        yield talk.name, partial(gossip.gossip_broadcast, told, count, rows, root)
    if request.layout.splittable and request.bytes_count and count <= MOST_RING_RANKS:
        yield "scatter-ring", partial(scatter_ring_broadcast, count, rows, root)
        yield "scatter-dissemination", partial(scatter_dissemination_broadcast, count, rows, root)


def _allgather_builds(request: Request, machine: _Machine) -> Builds:
    parts = request.collective.parts
    many = _many_parts(request)
    if not many or machine.nest.flat or len(parts) > MOST_LISTED_RANKS:
        yield "dissemination", partial(dissemination.dissemination_allgather, parts)
    if len(parts) <= MOST_FLAT_RANKS:
        yield "flat", partial(flat.flat_allgather, parts)
    if not many:
        yield "doubling", partial(halving.doubling_allgather, parts)
        if request.bytes_count:
            yield "ring", partial(ring.ring_allgather, parts)
    for talk in islice(machine.talks(), 1 if many else None):
        yield talk.name, partial(in_parts.gossip_allgather, talk.gossip, parts)


def _reduce_scatter_builds(request: Request, machine: _Machine) -> Builds:
    parts, commutative = request.collective.parts, request.operator.commutative
    many = _many_parts(request)
    if not (many and commutative):
        yield "halving", partial(halving.halving_reduce_scatter, parts)
    if len(parts) <= MOST_FLAT_RANKS:
        yield "flat", partial(flat.flat_reduce_scatter, parts)
    if commutative and (not many or machine.nest.flat or len(parts) > MOST_LISTED_RANKS):
        yield "dissemination", partial(dissemination.dissemination_reduce_scatter, parts)
    if commutative and request.bytes_count and not many:
        yield "ring", partial(ring.ring_reduce_scatter, parts)
    if commutative or not many:
        for talk in islice(machine.talks(), 1 if many else None):
            expression = None if commutative else talk.tree
            yield talk.name, partial(in_parts.gossip_reduce_scatter, talk.gossip, parts, expression)


def _many_parts(request: Request) -> bool:
    """Whether only the algorithm that suits the machine best is worth its P^2 pieces.

    Raises:
        PlanError: There are more than a plan can list.
    """
    parts = request.collective.parts
    pieces = len(parts) * (sum(map(bool, parts)) or len(parts))
    if pieces > MOST_PIECES:
        raise PlanError(
            f"{request.collective.name} of {len(parts)} ranks: {pieces} pieces to move, a plan lists at most "
            f"{MOST_PIECES}; plan it host by host, over fewer ranks"
        )
    return len(parts) > MOST_RING_RANKS


def _scan_builds(request: Request, machine: _Machine) -> Builds:
    count, rows, ports, nest = request.collective.ranks, request.layout.rows, request.ports, machine.nest
    own = request.collective.name == "scan"
    alike = machine.in_order and not nest.flat and len(nest.groups.insides) == 1
    if alike:
        yield f"shift-{_dotted(nest.soonest)}", partial(shift_scan, nest.groups, nest.soonest, rows, ports, own=own)
    if count <= MOST_LISTED_RANKS or not alike:
        yield "doubling", partial(prefix.doubling_scan if own else prefix.doubling_exscan, count, rows, ports)
    if count <= MOST_LISTED_RANKS:
        yield "chain", partial(prefix.chain_scan if own else prefix.chain_exscan, count, rows)
        if not own:
            yield "1-2-3-doubling", partial(prefix.one_two_three_exscan, count, rows)
    if count <= MOST_FLAT_RANKS:
        yield "flat", partial(flat.flat_scan if own else flat.flat_exscan, count, rows)
    if not nest.flat and (count <= MOST_RING_RANKS or not alike):
        for talk in machine.talks():
            yield talk.name, partial(gossip.gossip_scan, talk.gossip, talk.tree, rows, own=own)


_BUILDS: dict[str, Callable[[Request, _Machine], Builds]] = {
    "allreduce": _allreduce_builds,
    "reduce": _reduce_builds,
    "broadcast": _broadcast_builds,
    "allgather": _allgather_builds,
    "reduce_scatter": _reduce_scatter_builds,
    "scan": _scan_builds,
    "exscan": _scan_builds,
}
