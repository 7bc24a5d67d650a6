"""Who may send to whom among the ranks of a request: patterns that suit its groups, for any collective."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np

from topocomm.planning.algorithms import gossip_schedule as gossip
from topocomm.planning.algorithms import multiport
from topocomm.planning.algorithms.gossip_schedule import Gossip
from topocomm.planning.algorithms.hosts.group_gossip import (
    cyclic_gossip,
    cyclic_tree,
    gather_over_groups,
    rails_to_root,
)
from topocomm.planning.algorithms.hosts.rails import levels_of, rails_gossip, rails_tree
from topocomm.planning.algorithms.hosts.rails_parts import MemberTrees
from topocomm.planning.algorithms.hosts.rank_groups import Groups, Inside
from topocomm.planning.request import BoundedBuild, Build, Request
from topocomm.planning.routing.cluster_trees import cluster_trees
from topocomm.planning.routing.earliest_edges import earliest_edges, pairs_differ
from topocomm.planning.routing.hierarchy import Hierarchy, hierarchy_of
from topocomm.planning.routing.member_ring import member_ring
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.range_tree import RangeTree, aligned_tree
from topocomm.planning.schedule.schedule import Schedule

MOST_RING_RANKS = 256
"""Largest rank count for algorithms of P^2 messages: beyond, others win by far."""
MOST_LISTED_RANKS = 2048
"""Largest rank count for schedules that are not made as columns."""

WIDTHS, MOST_WIDE_BYTES = (2, 4), 256 << 10
"""Messages of a port at once under loggp, tried beside the ports, and the largest payload for which they are."""
ROUNDED = 1.0 - 1e-12
"""Factor of a bound that is no more than a sum of the same times."""
MOST_WIDE_RANKS, MOST_DIRECT_HOSTS, WIDE_HOSTS = 1280, 256, 160
"""Most ranks for that, most hosts that may all send to each other, and of how many in no other number at once."""


@dataclass(frozen=True, eq=False)
class GossipPattern:
    """Who sends to whom, and the expression tree that fits it best; made when first needed.

    Attributes:
        make: Returns the gossip and the tree.
        least_us: What messages with whole values take at least, 0 where nothing is known.
    """

    name: str
    make: Callable[[], tuple[Gossip, RangeTree]]
    least_us: float = 0.0

    @cached_property
    def made(self) -> tuple[Gossip, RangeTree]:
        """The gossip and the tree."""
        return self.make()

    @property
    def gossip(self) -> Gossip:
        """The messages by round."""
        return self.made[0]

    @property
    def tree(self) -> RangeTree:
        """The expression."""
        return self.made[1]

    def whole(self, schedule_of: Callable[[Gossip, RangeTree], Schedule]) -> Build:
        """Return the builder of a schedule whose messages carry whole values."""
        build = partial(self._schedule, schedule_of)
        return BoundedBuild(build, self.least_us) if self.least_us else build

    def _schedule(self, schedule_of: Callable[[Gossip, RangeTree], Schedule]) -> Schedule:
        return schedule_of(*self.made)


class RankPatterns:
    """The ranks of a request as groups, computed when first needed, and the patterns that suit them."""

    def __init__(self, request: Request, paths: PathFinder) -> None:
        self.request, self.paths = request, paths
        self._trees: dict[tuple[tuple[int, ...], int], MemberTrees | None] = {}
        self._rings: dict[tuple[int, ...], list[tuple[int, ...]] | None] = {}

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
        widths = set[int]() if WIDE_HOSTS < groups.count <= MOST_DIRECT_HOSTS else set(WIDTHS)
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
        if groups.starts not in self._rings:
            self._rings[groups.starts] = self._made_rings(groups)
        return self._rings[groups.starts]

    def _made_rings(self, groups: Groups) -> list[tuple[int, ...]] | None:
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
            if len(members) < 2 or not pairs_differ(members, self.paths):
                return None
            chunk_bytes = payload_bytes / inside.members
            ways = [earliest_edges(members, self.paths, range(high - low), chunk_bytes)]  # None for many
            ways.append(cluster_trees(members, self.paths, chunk_bytes))
            found = [order for order in ways if order is not None]
            if not found:
                return None
            orders.append(min(found, key=lambda order: order.us))
        return MemberTrees(max(order.rounds for order in orders), tuple(order.messages for order in orders))

    def patterns(self) -> Iterator[GossipPattern]:
        """Yield patterns that bring all values to all ranks and suit the groups."""
        hierarchy, ports = self.hierarchy, self.request.ports
        if len(self.order) > MOST_LISTED_RANKS:
            return
        if hierarchy.flat:
            if ports > 1:
                spread = multiport.spread_gossip(len(self.order), ports)
                tree = aligned_tree(len(self.order), ports + 1)
                yield GossipPattern(f"multiport-{ports}", lambda: (spread, tree))
            return
        for name, own, radices in self.over_rails(few=not self.many):
            yield GossipPattern(name, partial(self._over_rails, own, radices), self._least_us(own.groups, radices))
        yield from self.cyclic()

    def cyclic(self) -> Iterator[GossipPattern]:
        """Yield those for numbers of groups that radices do not divide."""
        hierarchy = self.hierarchy
        if hierarchy.flat or len(self.order) > MOST_LISTED_RANKS:
            return
        for radices in dict.fromkeys([hierarchy.soonest, hierarchy.small]):
            if not hierarchy.exact(radices):
                yield GossipPattern(f"cyclic-{dotted(radices)}", partial(self._cyclic, radices))

    def to_root(self) -> Iterator[GossipPattern]:
        """Yield patterns that bring all values to the root and suit the groups."""
        if self.hierarchy.flat:
            return
        root, groups = self.order.index(self.request.collective.root), self.hierarchy.groups
        for at_once in (self.request.ports, *self._widths(groups.count)):
            name = f"rails-tree-k{at_once}" if at_once > self.request.ports else "rails-tree"
            yield GossipPattern(name, partial(self._gathered, groups, root, at_once))
        for pattern in self.patterns():
            yield replace(pattern, make=partial(self._to_root, pattern))

    def parts_to_root(self) -> Iterator[GossipPattern]:
        """Yield patterns that bring every part to the root."""
        count, root, ports = self.request.collective.ranks, self.request.collective.root, self.request.ports
        tree = aligned_tree(count)
        for radix in sorted({1, ports}):
            name = f"multiport-{radix}" if radix > 1 else "binomial"
            gathered = multiport.gather_gossip(range(count), root, radix)
            yield GossipPattern(name, partial(_as_they_are, gathered, tree))
        if count <= MOST_RING_RANKS:
            others = [(root + step) % count for step in range(1, count)]
            yield GossipPattern("flat", lambda: ([[(rank, root)] for rank in others], tree))
        yield from self.to_root()
        if not self.hierarchy.flat:
            yield GossipPattern("rails", partial(self._rails_to_root, self.order.index(root)))

    def _over_rails(self, own: Hierarchy, radices: tuple[int, ...]) -> tuple[Gossip, RangeTree]:
        return self._numbered(rails_gossip(own.groups, radices, own.ports), rails_tree(own.groups, radices))

    def _cyclic(self, radices: tuple[int, ...]) -> tuple[Gossip, RangeTree]:
        groups = self.hierarchy.groups
        return self._numbered(cyclic_gossip(groups, radices, self.hierarchy.ports), cyclic_tree(groups))

    def _gathered(self, groups: Groups, root: int, at_once: int) -> tuple[Gossip, RangeTree]:
        return self._numbered(gather_over_groups(groups, root, at_once), cyclic_tree(groups))

    def _rails_to_root(self, root: int) -> tuple[Gossip, RangeTree]:
        groups = self.hierarchy.groups
        return self._numbered(rails_to_root(groups, root), cyclic_tree(groups))

    def _to_root(self, pattern: GossipPattern) -> tuple[Gossip, RangeTree]:
        to_root = gossip.gossip_to_root(pattern.gossip, self.request.collective.root, len(self.order))
        return to_root, pattern.tree

    def _numbered(self, by_host: Gossip, tree: RangeTree) -> tuple[Gossip, RangeTree]:
        """The messages in rank numbers; where hosts are scattered their tree is that of rank order."""
        if self.in_order:
            return by_host, tree
        order = self.order
        numbered = [[(order[src], order[dst]) for src, dst in messages] for messages in by_host]
        return numbered, aligned_tree(len(order))

    def _least_us(self, groups: Groups, radices: tuple[int, ...]) -> float:
        """What whole values take at least that go to a group over its border: in turn at its ports, or from them.

        The group is that of the root, or the last; there come the values of all other blocks that its own is joined
        with, each in a message at least. 0 where it does not matter, or ranks of one host are in several groups.
        """
        request, fastest = self.request, self._fastest_across(groups)
        if request.collective.parts or not self.many or not fastest:
            return 0.0
        root = self.order.index(request.collective.root)
        one_root = request.collective.name in ("reduce", "broadcast")
        at = bisect_right(groups.starts, root) - 1 if one_root else groups.count - 1
        joined = [edges for level in levels_of(groups.count, radices) for edges in level if edges[0] <= at < edges[-1]]
        in_turn = -(-sum(len(edges) - 2 for edges in joined) // groups.members(at))
        return in_turn * request.payload_bytes / (fastest * 1e3) / request.ports * ROUNDED

    def _fastest_across(self, groups: Groups) -> float:
        """GB/s of the fastest link at the border of a host, or of hosts that have links with each other.

        0 where there is none, or ranks of one are in several groups.
        """
        of_device, index = self.paths.classes.group, self.paths.classes.index
        own = of_device[[index[self.request.endpoints[rank]] for rank in self.order]]
        of_group = np.repeat(np.arange(groups.count), np.diff(groups.starts))
        if len(np.unique(own)) < len(set(zip(own.tolist(), of_group.tolist(), strict=True))):
            return 0.0
        src, dst = self.paths.link_ends
        return float(self.paths.link_gb_per_s[of_device[src] != of_device[dst]].max(initial=0.0))


def _as_they_are(messages: Gossip, tree: RangeTree) -> tuple[Gossip, RangeTree]:
    return messages, tree


def dotted(radices: tuple[int, ...]) -> str:
    """Return radices as they stand in names of algorithms."""
    return ".".join(map(str, radices))
