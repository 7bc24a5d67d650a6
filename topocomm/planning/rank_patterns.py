"""Who may send to whom among the ranks of a request: patterns that suit its groups, for any collective."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from topocomm.planning.algorithms import gossip_schedule as gossip
from topocomm.planning.algorithms import multiport
from topocomm.planning.algorithms.gossip_schedule import Gossip
from topocomm.planning.algorithms.hosts.group_gossip import (
    cyclic_gossip,
    cyclic_tree,
    gather_over_groups,
    rails_to_root,
)
from topocomm.planning.algorithms.hosts.rails import rails_gossip, rails_tree
from topocomm.planning.algorithms.hosts.rails_parts import MemberTrees
from topocomm.planning.algorithms.hosts.rank_groups import Groups, Inside
from topocomm.planning.request import Request
from topocomm.planning.routing.earliest_edges import MOST_EDGE_MEMBERS, earliest_edges, pairs_differ
from topocomm.planning.routing.hierarchy import Hierarchy, hierarchy_of
from topocomm.planning.routing.member_ring import member_ring
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.range_tree import RangeTree, aligned_tree

MOST_RING_RANKS = 256
"""Largest rank count for algorithms of P^2 messages: beyond, others win by far."""
MOST_LISTED_RANKS = 2048
"""Largest rank count for schedules that are not made as columns."""

WIDTHS, MOST_WIDE_BYTES = (2, 4), 256 << 10
"""Messages of a port at once under loggp, tried beside the ports, and the largest payload for which they are."""
MOST_WIDE_RANKS, MOST_DIRECT_HOSTS = 1280, 160
"""Most ranks for that, and most hosts that may all send to each other."""


@dataclass(frozen=True)
class GossipPattern:
    """Who sends to whom, and the expression tree that fits it best."""

    name: str
    gossip: Gossip
    tree: RangeTree


class RankPatterns:
    """The ranks of a request as groups, computed when first needed, and the patterns that suit them."""

    def __init__(self, request: Request, paths: PathFinder) -> None:
        self.request, self.paths = request, paths
        self._trees: dict[tuple[tuple[int, ...], int], MemberTrees | None] = {}

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The ranks host by host: in rank order, hosts by first appearance."""
        by_id = self.paths.topology.by_id
        hosts = [by_id[end].host for end in self.request.endpoints]
        first = {host: index for index, host in reversed(list(enumerate(hosts)))}
        return tuple(sorted(range(len(hosts)), key=lambda rank: (first[hosts[rank]], rank)))

    @property
    def in_order(self) -> bool:
        """Whether every host has neighbouring ranks."""
        return self.order == tuple(range(len(self.order)))

    @cached_property
    def hierarchy(self) -> Hierarchy:
        """The ranks, host by host, as nested groups."""
        endpoints = [self.request.endpoints[rank] for rank in self.order]
        return hierarchy_of(endpoints, self.paths, self.request.ports)

    @property
    def many(self) -> bool:
        """Whether groups of so many ranks have rails that two neighbours after the other lose by far in time."""
        grouped = not self.hierarchy.flat and (self.in_order or self.request.operator.commutative)
        return self.request.objective == "auto" and grouped and len(self.order) > MOST_RING_RANKS

    @property
    def single(self) -> Groups:
        """Every rank as a group of its own."""
        count = len(self.order)
        return Groups(tuple(range(count + 1)), (0,) * count, (Inside((), aligned_tree(1)),))

    def over_rails(self, *, few: bool) -> Iterator[tuple[str, Hierarchy, tuple[int, ...]]]:
        """Yield name, groups and radices of what goes over rails.

        Under loggp messages of one port wait for each other's bytes only, so short values also go in more at once than
        there are ports: `-k2` means two.
        """
        for at_once in self._widths():
            wide = hierarchy_of([self.request.endpoints[rank] for rank in self.order], self.paths, at_once)
            yield f"rails-{dotted(wide.wide)}-k{at_once}", wide, wide.wide
        for radices in self.hierarchy.for_rails(few=few):
            yield f"rails-{dotted(radices)}", self.hierarchy, radices

    def _widths(self, most_direct: int = MOST_DIRECT_HOSTS) -> list[int]:
        """The numbers of messages at once beyond the ports, the most first: of so many hosts also to all others."""
        request, groups = self.request, self.hierarchy.groups
        short = request.payload_bytes <= MOST_WIDE_BYTES and request.collective.ranks <= MOST_WIDE_RANKS
        if request.port_model != "loggp" or self.hierarchy.flat or not short:
            return []
        widths = set(WIDTHS)
        if groups.count <= most_direct:
            widths.add(-(-(groups.count - 1) // max(1, len(groups.members_on[0]))))
        return sorted((width for width in widths if width > request.ports), reverse=True)

    @cached_property
    def host_starts(self) -> tuple[int, ...]:
        """The first place of every host in `order`, and the number of ranks."""
        by_id = self.paths.topology.by_id
        hosts = [by_id[self.request.endpoints[rank]].host for rank in self.order]
        return (0, *(at for at in range(1, len(hosts)) if hosts[at] != hosts[at - 1]), len(hosts))

    @cached_property
    def hosts(self) -> Groups:
        """The hosts as groups, member i on rail i, also where the network joins several of them to a larger group."""
        sizes = [end - start for start, end in pairwise(self.host_starts)]
        kinds = sorted(set(sizes))
        insides = tuple(Inside((), aligned_tree(size)) for size in kinds)
        return Groups(self.host_starts, tuple(map(kinds.index, sizes)), insides)

    def rings(self) -> list[tuple[int, ...]] | None:
        """For each sort of groups the order in which parts travel around; None: members send to all at once."""
        return self.rings_of(self.hierarchy.groups)

    def rings_of(self, groups: Groups) -> list[tuple[int, ...]] | None:
        """As `rings`, for other groups."""
        rings = []
        for sort in range(len(groups.insides)):
            low, high = groups.starts[groups.sorts.index(sort) :][:2]
            members = [self.request.endpoints[rank] for rank in self.order[low:high]]
            rings.append(member_ring(members, self.paths) if len(members) > 1 else None)
        if not any(rings):
            return None
        return [ring or tuple(range(inside.members)) for ring, inside in zip(rings, groups.insides, strict=True)]

    def trees_of(self, groups: Groups, payload_bytes: int) -> MemberTrees | None:
        """Return trees inside groups for parts of a value; None where all pairs of members are alike."""
        key = groups.starts, payload_bytes
        if key not in self._trees:
            self._trees[key] = self._made_trees(groups, payload_bytes)
        return self._trees[key]

    def _made_trees(self, groups: Groups, payload_bytes: int) -> MemberTrees | None:
        orders = []
        for sort, inside in enumerate(groups.insides):
            low, high = groups.starts[groups.sorts.index(sort) :][:2]
            members = [self.request.endpoints[rank] for rank in self.order[low:high]]
            if not 1 < len(members) <= MOST_EDGE_MEMBERS or not pairs_differ(members, self.paths):
                return None
            order = earliest_edges(members, self.paths, range(high - low), payload_bytes / inside.members)
            if order is None:
                return None
            orders.append(order)
        return MemberTrees(max(order.rounds for order in orders), tuple(order.messages for order in orders))

    def patterns(self) -> Iterator[GossipPattern]:
        """Yield patterns that bring all values to all ranks and suit the groups."""
        hierarchy, ports = self.hierarchy, self.request.ports
        if len(self.order) > MOST_LISTED_RANKS:
            return
        if hierarchy.flat:
            if ports > 1:
                spread = multiport.spread_gossip(len(self.order), ports)
                yield GossipPattern(f"multiport-{ports}", spread, aligned_tree(len(self.order), ports + 1))
            return
        for name, own, radices in self.over_rails(few=not self.many):
            over_rails = rails_gossip(own.groups, radices, own.ports)
            yield self._pattern(name, over_rails, rails_tree(own.groups, radices))
        yield from self.cyclic()

    def cyclic(self) -> Iterator[GossipPattern]:
        """Yield those for numbers of groups that radices do not divide."""
        hierarchy = self.hierarchy
        if hierarchy.flat or len(self.order) > MOST_LISTED_RANKS:
            return
        for radices in dict.fromkeys([hierarchy.soonest, hierarchy.small]):
            if not hierarchy.exact(radices):
                cyclic = cyclic_gossip(hierarchy.groups, radices, hierarchy.ports)
                yield self._pattern(f"cyclic-{dotted(radices)}", cyclic, cyclic_tree(hierarchy.groups))

    def to_root(self) -> Iterator[GossipPattern]:
        """Yield patterns that bring all values to the root and suit the groups."""
        if self.hierarchy.flat:
            return
        root, groups = self.order.index(self.request.collective.root), self.hierarchy.groups
        for at_once in (self.request.ports, *self._widths(groups.count)):
            name = f"rails-tree-k{at_once}" if at_once > self.request.ports else "rails-tree"
            yield self._pattern(name, gather_over_groups(groups, root, at_once), cyclic_tree(groups))
        for pattern in self.patterns():
            to_root = gossip.gossip_to_root(pattern.gossip, self.request.collective.root, len(self.order))
            yield replace(pattern, gossip=to_root)

    def parts_to_root(self) -> Iterator[GossipPattern]:
        """Yield patterns that bring every part to the root."""
        count, root, ports = self.request.collective.ranks, self.request.collective.root, self.request.ports
        tree = aligned_tree(count)
        for radix in sorted({1, ports}):
            name = f"multiport-{radix}" if radix > 1 else "binomial"
            yield GossipPattern(name, multiport.gather_gossip(range(count), root, radix), tree)
        if count <= MOST_RING_RANKS:
            others = [(root + step) % count for step in range(1, count)]
            yield GossipPattern("flat", [[(rank, root)] for rank in others], tree)
        yield from self.to_root()
        if not self.hierarchy.flat:
            over_rails = rails_to_root(self.hierarchy.groups, self.order.index(root))
            yield self._pattern("rails", over_rails, cyclic_tree(self.hierarchy.groups))

    def _pattern(self, name: str, by_host: Gossip, tree: RangeTree) -> GossipPattern:
        """The pattern in rank numbers; where hosts are scattered its tree is that of rank order."""
        if self.in_order:
            return GossipPattern(name, by_host, tree)
        order = self.order
        numbered = [[(order[src], order[dst]) for src, dst in messages] for messages in by_host]
        return GossipPattern(name, numbered, aligned_tree(len(order)))


def dotted(radices: tuple[int, ...]) -> str:
    """Return radices as they stand in names of algorithms."""
    return ".".join(map(str, radices))
