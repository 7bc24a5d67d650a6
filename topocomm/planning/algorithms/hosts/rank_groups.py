"""Groups of neighbouring ranks (hosts, sockets), and the rails between them.

A rail is a route between groups with one member of each, such as NICs of one number. In the group of most members every
member has a rail. Groups that lack a member, or whose member has no route out, lack the rail; a member without a rail
receives everything inside its group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from topocomm.planning.schedule.range_tree import RangeTree

Rails = Sequence[tuple[int, ...]]
"""For each group the member on each rail, -1 for none."""


@dataclass(frozen=True)
class Inside:
    """The gossip inside groups of one sort, by index of the member, and the expression that they evaluate."""

    gossip: tuple[tuple[tuple[int, int], ...], ...]
    tree: RangeTree

    @property
    def members(self) -> int:
        """Number of members."""
        return self.tree.ranks


@dataclass(frozen=True)
class Groups:
    """Groups of neighbouring ranks, in rank order.

    Attributes:
        starts: First rank of each group, and the number of ranks at the end.
        sorts: For each group, an index into `insides`.
        insides: Gossip inside the groups of each sort.
        rails: For each group the member on each rail, -1 for none; empty: member i of every group is on rail i.
    """

    starts: tuple[int, ...]
    sorts: tuple[int, ...]
    insides: tuple[Inside, ...]
    rails: tuple[tuple[int, ...], ...] = ()

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.sorts)

    def members(self, group: int) -> int:
        """Return the number of ranks of a group."""
        return self.insides[self.sorts[group]].members

    @cached_property
    def members_on(self) -> Rails:
        """Member of each group on each rail, -1 for none."""
        if self.rails:
            return self.rails
        most = max(inside.members for inside in self.insides)
        plain = [tuple(i if i < inside.members else -1 for i in range(most)) for inside in self.insides]
        return tuple(plain[sort] for sort in self.sorts)
