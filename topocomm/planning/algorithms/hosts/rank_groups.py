"""Groups of neighbouring ranks (hosts, sockets), and the rails between them.

A rail is a way between groups that members of many groups have a place on: the NICs of one number, say. In the group
that has most members every member is on a rail of its own. Groups that lack a member, or whose member has no way out,
lack the rail; a member without a rail hears everything from its own group.
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
    """How the members of one sort of group fold their values: who tells whom, by index, and the expression."""

    gossip: tuple[tuple[tuple[int, int], ...], ...]
    tree: RangeTree

    @property
    def members(self) -> int:
        """How many."""
        return self.tree.ranks


@dataclass(frozen=True)
class Groups:
    """Groups of neighbouring ranks, in rank order.

    Attributes:
        starts: First rank of each group, and the number of ranks at the end.
        sorts: For each group, an index into `insides`.
        insides: What groups of one sort do inside.
        rails: For each group the member on each rail, -1 for none; empty: member i of every group is on rail i.
    """

    starts: tuple[int, ...]
    sorts: tuple[int, ...]
    insides: tuple[Inside, ...]
    rails: tuple[tuple[int, ...], ...] = ()

    @property
    def count(self) -> int:
        """How many groups."""
        return len(self.sorts)

    def members(self, group: int) -> int:
        """How many ranks a group has."""
        return self.insides[self.sorts[group]].members

    @cached_property
    def members_on(self) -> Rails:
        """`rails`, written out."""
        if self.rails:
            return self.rails
        most = max(inside.members for inside in self.insides)
        plain = [tuple(i if i < inside.members else -1 for i in range(most)) for inside in self.insides]
        return tuple(plain[sort] for sort in self.sorts)
