"""Reduce and broadcast of long values over groups of ranks: two trees of groups on every rail, pipelined in slices.

In every group each rank on a common rail, the owner of a part, gets the part of all members, at once or around a ring.
The owners of a rail send up two trees of groups (`two_tree.py`), half of the part on each. In the root's group owners
send to the root, and its own part comes in a chain over the others. So every rank sends and receives about one value in
its group, and one part between groups. `through` is for few rails: the value enters a group at one member, passes all,
and leaves at the last, so that no port has a value from inside and one from outside.

A slice begins a period after the one before. Every message has its turn in a period: between groups by the colours of
the two trees, inside by the step from member to member, last along chains. So no port has two messages in a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from topocomm.planning.algorithms.hosts.rails_parts import Ints, Rings, common_rails
from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.algorithms.two_tree import LEVEL_ROUNDS, trees_below
from topocomm.planning.schedule.schedule import NO_PATH, Schedule, split_rows
from topocomm.planning.schedule.schedule_builder import schedule_of_columns

NO_PARENT = -1
"""Parent of the root."""
LAST = -1
"""The last turn of a period."""
HALVES = 2
"""Trees of a rail, each of which has a chunk."""


def rail_trees(
    groups: Groups, root: int, rings: Rings = None, *, through: bool = False, at_once: bool = False
) -> RailTrees:
    """Return the trees of all chunks, two to a part; groups have a common rail.

    With `at_once`, for several ports, messages have no turns, and a slice begins a round after the one before.
    """
    rails = common_rails(groups)[: 1 if through else None]
    home = int(np.searchsorted(groups.starts, root, side="right")) - 1
    orders = [tuple(rings[sort] if rings else range(each.members)) for sort, each in enumerate(groups.insides)]
    way = partial(_inside, chained=through or bool(rings), through=through)
    turns_inside = 0 if through else 1 if rings else max(map(len, orders))
    period = LEVEL_ROUNDS + turns_inside
    shape = len(rails) * HALVES, groups.starts[-1]
    parents, turns = np.full(shape, NO_PARENT), np.full(shape, period - 1)
    if through:  # inside and between at once: no port has both
        turns[0] = 0
    above = trees_below(groups.count, home)
    for part, rail in enumerate(rails):
        own = slice(part * HALVES, (part + 1) * HALVES)
        ends = []
        for group, (first, sort) in enumerate(zip(groups.starts, groups.sorts, strict=False)):
            made = way(orders[sort], groups.members_on[group][rail], root - first if group == home else NO_PARENT)
            where = slice(first, first + len(orders[sort]))
            parents[own, where] = np.where(made.parents == NO_PARENT, NO_PARENT, made.parents + first)
            turns[own, where] = np.where(made.turns == LAST, turns[own, where], made.turns)
            ends.append((first + made.entry, first + made.exit))
        for half, tree in enumerate(above):
            src = [ends[group][1] for group in tree]
            parents[own.start + half, src] = [ends[parent][0] for parent, _ in tree.values()]
            turns[own.start + half, src] = [turn for _, turn in tree.values()]
    return RailTrees(root, parents, 0 * turns, 1) if at_once else RailTrees(root, parents, turns, period)


class _Way(NamedTuple):
    """How the values of a group get to one member: parents, turns (LAST: after all others), first and last member."""

    parents: Ints
    turns: Ints
    entry: int
    exit: int


@cache
def _inside(order: tuple[int, ...], owner: int, root: int, *, chained: bool, through: bool) -> _Way:
    """Return the way to the owner of a part, and on to the root if it is a member; `order` is that of the ring."""
    parents, turns = np.full(len(order), NO_PARENT), np.full(len(order), LAST)
    at = order.index(owner if root == NO_PARENT else root) + 1
    chain = [*order[at:], *order[:at]]
    if through and root == NO_PARENT:
        chain = [owner, *chain[:-1]]
    if chained or owner == root:
        parents[chain[:-1]] = chain[1:]
    else:
        senders = np.array([member for member in order if member not in (owner, root)], np.int64)
        parents[senders], turns[senders] = owner, LEVEL_ROUNDS - 1 + (owner - senders) % len(order)
        if root != NO_PARENT:
            parents[owner], turns[owner] = root, LEVEL_ROUNDS - 1 + (root - owner) % len(order)
    return _Way(parents, turns, chain[0] if through else owner, chain[-1])


@dataclass(frozen=True, eq=False)
class RailTrees:
    """A tree of all ranks for every chunk.

    Attributes:
        parents: Parent of each rank, [chunks, ranks]; NO_PARENT for the root.
        turns: Turn of its message to the parent, below `period`.
        period: Rounds between slices.
    """

    root: int
    parents: Ints
    turns: Ints
    period: int

    def reduce(self, rows: int) -> Schedule:
        """Return the reduce up the trees, for a commutative operator."""
        round_, child, parent, chunk = self._edges()
        ranks = self.parents.shape[1]
        into = chunk * ranks + parent
        below = np.bincount(into, minlength=self.parents.size)
        """Children of every place, by chunk and rank: their values arrive in slots from 1 on, the fold in the next."""
        result = np.where(below > 0, below + 1, 0)
        order = np.argsort(into, kind="stable")
        arrived = np.empty_like(order)
        arrived[order] = 1 + np.arange(len(order)) - np.repeat(np.cumsum(below) - below, below)
        last = np.zeros_like(below)
        np.maximum.at(last, into, round_)
        folds = np.argsort(below, kind="stable")[np.count_nonzero(below == 0) :]
        widths, times = np.unique(below[folds], return_counts=True)
        every = np.arange(len(self.parents))
        return schedule_of_columns(
            ranks,
            self._chunks(rows),
            outputs=np.stack([0 * every + self.root, result[every * ranks + self.root], every], 1),
            transfers=np.stack(
                [round_, child, result[chunk * ranks + child], parent, arrived, chunk, 0 * chunk + NO_PATH], 1
            ),
            combines=np.stack([last[folds], folds % ranks, result[folds], folds // ranks], 1),
            operands=[np.tile(np.arange(n + 1), (count, 1)) for n, count in zip(widths, times, strict=True)],
        )

    def broadcast(self, rows: int) -> Schedule:
        """Return the broadcast down the trees: the reduce with time reversed."""
        round_, child, parent, chunk = (column[::-1] for column in self._edges())
        chunks, ranks = np.indices(self.parents.shape).reshape(2, -1)
        columns = round_.max() - round_, parent, np.where(parent == self.root, 0, 1), child, 1, chunk, NO_PATH
        return schedule_of_columns(
            self.parents.shape[1],
            self._chunks(rows),
            inputs=np.array([[self.root, 0, self.root]]),
            outputs=np.stack([ranks, np.where(ranks == self.root, 0, 1), chunks], 1),
            transfers=np.stack(np.broadcast_arrays(*columns), 1),
            combines=np.zeros((0, 4), np.int64),
            operands=[],
        )

    def _edges(self) -> tuple[Ints, Ints, Ints, Ints]:
        """(round, child, parent, chunk) of every edge: the first of its turn after those of the children."""
        chunk, child = np.nonzero(self.parents != NO_PARENT)
        parent = self.parents[chunk, child]
        rounds, before = self.turns.copy(), None
        while before is None or (rounds != before).any():
            before, first = rounds, np.zeros_like(rounds)
            np.maximum.at(first, (chunk, parent), before[chunk, child] + 1)
            rounds = first + (self.turns - first) % self.period
        order = np.argsort(rounds[chunk, child], kind="stable")
        return rounds[chunk, child][order], child[order], parent[order], chunk[order]

    def _chunks(self, rows: int) -> list[tuple[int, int]]:
        parts = split_rows(rows, len(self.parents) // HALVES)
        return [(first + low, n) for first, part in parts for low, n in split_rows(part, HALVES)]
