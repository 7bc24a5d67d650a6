"""Reduce and broadcast of long values over groups of ranks: trees of groups on every rail, pipelined in slices.

In every group each rank on a common rail, the owner of a part, gets the part of all members, at once or around a ring.
The owners of a rail send up trees of groups (`wide_trees.py`), an equal share of the part on each. In the root's group
owners send to the root, and shares of its own part come by way of other members in turn, or in a chain over all. So
every rank sends and receives about one value in its group, and one part between groups. `through` is for few rails: the
value enters a group at one member, passes all, and leaves at the last, so that no port has a value from inside and one
from outside. With `forked` it goes straight from the first to the last, where a tree of the others joins it: less
latency, but two values enter one member from inside.

A slice begins a period after the one before. Every message has its turn in a period: between groups by the colours of
the trees, inside by the step from member to member, last along chains. So no port has two messages in a round. A
message waits for its turn in the first period in which what it forwards has arrived, by the `Pace` of messages: while
one is on its way, ports serve other slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.hosts.rails_parts import Ints, Rings, common_rails
from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.algorithms.hosts.tree_columns import TreeEdges, broadcast_down, reduce_up
from topocomm.planning.algorithms.hosts.wide_trees import wide_trees
from topocomm.planning.routing.host_turns import HostTurns
from topocomm.planning.schedule.schedule import Schedule, row_keys, split_rows

Floats = NDArray[np.float64]

NO_PARENT = -1
"""Parent of the root."""
LAST = -1
"""The last turn of a period."""
Shape = Literal["star", "chain", "around", "through", "fork"]
"""How values of a group join: at its owner, along a chain to it, of every second part along that chain backwards, or
on the way from its first member to its last."""
FEWEST_SHARES = 4
"""Shares of the root's own part where its group has as many members, so that none has much more of it than others."""
SAME = 1e-9
"""Part of a period by which equal times may differ: sums in another order."""
ANY_US = 1.0
"""A turn in which no link is held: turns order messages also where they take no time."""


class Pace(NamedTuple):
    """What messages take, each inside groups and between them: the bytes of a whole slice, the latency, the gap."""

    slice_us: tuple[float, float] = (1.0, 1.0)
    latency_us: tuple[float, float] = (0.0, 0.0)
    gap_us: tuple[float, float] = (0.0, 0.0)

    def times(self, much: float) -> Pace:
        """Return the pace of slices of so many times the bytes."""
        inside_us, across_us = self.slice_us
        return self._replace(slice_us=(inside_us * much, across_us * much))


ROUNDS = Pace()
"""A round a turn, and no latency: every message is sent in the first round of its turn after those of its children."""


def rail_trees(
    groups: Groups,
    root: int,
    rings: Rings = None,
    *,
    radix: int = 2,
    through: bool = False,
    forked: bool = False,
    around: bool = False,
    at_once: bool = False,
    fast: Sequence[int] | None = None,
) -> RailTrees:
    """Return the trees of all chunks, about `radix` to a part; groups have a common rail, of which `fast` are used.

    With `at_once`, for several ports, messages have no turns, and a slice begins a round after the one before.
    """
    rails = fast or common_rails(groups)[: 1 if through else None]
    home = int(np.searchsorted(groups.starts, root, side="right")) - 1
    trees, level = wide_trees(groups.count, home, radix)
    most, at_home = max(inside.members for inside in groups.insides), groups.members(home)
    copies = 1 if through or rings or at_home < FEWEST_SHARES else -(-FEWEST_SHARES // len(trees))
    trees = np.repeat(trees, copies, axis=0)
    way: Shape = "fork" if forked else "through" if through else "chain" if rings else "star"
    way = "around" if around else way
    parents, turns, ends = _inside_groups(groups, root, home, rings, rails, len(trees), way)
    if through:  # inside and between at once: no port has both
        period, turns = level, turns + np.arange(len(trees))[:, None]
    else:
        period = level + (1 if rings else most - 1)
        turns = np.where(turns == LAST, period - 1, level + turns)
    across = np.zeros(parents.shape, bool)
    part, number = np.arange(len(rails))[:, None, None], np.arange(len(trees))[None, :, None]
    src = part, number, ends[1][:, trees[:, :, 0]]
    parents[src], turns[src], across[src] = ends[0][:, trees[:, :, 1]], trees[:, :, 2], True
    turns = np.where(parents == NO_PARENT, 0, turns * (not at_once))
    shape = len(rails) * len(trees), groups.starts[-1]
    period = 1 if at_once else period
    return RailTrees(
        root, parents.reshape(shape), turns.reshape(shape), across.reshape(shape), period, len(trees), copies
    )


def _inside_groups(
    groups: Groups, root: int, home: int, rings: Rings, rails: Sequence[int], shares: int, shape: Shape
) -> tuple[Ints, Ints, Ints]:
    """(parents, turns) inside groups [parts, shares, ranks], and [2, parts, groups]: where values enter and leave."""
    size = len(rails), shares, groups.starts[-1]
    parents, turns = np.full(size, NO_PARENT), np.zeros(size, np.int64)
    first, ends = np.array(groups.starts[:-1]), np.zeros((2, len(rails), groups.count), np.int64)
    for part, rail in enumerate(rails):
        alike: dict[tuple[int, int, int], list[int]] = {}
        for group, sort in enumerate(groups.sorts):
            goal = root - groups.starts[group] if group == home else NO_PARENT
            alike.setdefault((sort, groups.members_on[group][rail], goal), []).append(group)
        for (sort, owner, goal), where in alike.items():
            members = range(groups.insides[sort].members)
            order, ranks = tuple(rings[sort] if rings else members), first[where][:, None] + np.array(members)
            order = order[::-1] if shape == "around" and part % 2 else order
            for numbers in [np.arange(shares)] if goal == NO_PARENT else np.arange(shares)[:, None]:
                way = _inside(order, owner, goal, int(numbers[0]), shape)
                own = part, numbers[:, None, None], ranks
                parents[own] = np.where(way.parents == NO_PARENT, NO_PARENT, first[where][:, None] + way.parents)
                turns[own] = way.turns
                ends[:, part, where] = first[where] + np.array([[way.entry], [way.exit]])
    return parents, turns, ends


class _Way(NamedTuple):
    """How the values of a group get to one member: parents, turns (LAST: after all others), first and last member."""

    parents: Ints
    turns: Ints
    entry: int
    exit: int


@cache
def _inside(order: tuple[int, ...], owner: int, root: int, number: int, shape: Shape) -> _Way:
    """Return the way to the owner of a part, and on to the root if it is a member; `order` is that of the ring.

    Share `number` of the root's own part comes by way of another member.
    """
    count, at = len(order), order.index(owner if root == NO_PARENT else root)
    parents, turns = np.full(count, NO_PARENT), np.zeros(count, np.int64)
    if shape == "fork":
        near = order[at ^ 1 if at ^ 1 < count else max(0, at - 1)]  # in the same half
        entry, last = (owner, near) if root == NO_PARENT else (near, root)
        for child, parent in _fork(order, entry, last):
            parents[child] = parent
        return _Way(parents, turns, entry, last)
    chain = [*order[at + 1 :], *order[: at + 1]]
    if shape == "through" and root == NO_PARENT:
        chain = [owner, *chain[:-1]]
    if shape != "star":
        parents[chain[:-1]] = chain[1:]
        turns += 0 if shape == "through" else LAST
    elif count > 1:
        via = (root + 1 + number % (count - 1)) % count if owner == root else owner
        parents += 1 + via
        parents[via] = root
        if root != NO_PARENT:
            parents[root] = NO_PARENT
        turns = (parents - np.arange(count)) % count - 1
    return _Way(parents, turns, chain[0] if shape == "through" else owner, chain[-1])


def _fork(order: tuple[int, ...], entry: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield (child, parent): the entry is a child of the last member, and so is a binary tree of the others.

    Under a parent comes a member of its half of the members, and under that the rest of this half, and the other half:
    so one message joins two sockets.
    """
    if entry != last:
        yield entry, last
    below = [([place for place, member in enumerate(order) if member not in (entry, last)], last, 0, len(order))]
    while below:
        places, parent, low, high = below.pop()
        if not places:
            continue
        middle = (low + high) // 2
        lower, upper = ([p for p in places if p < middle], [p for p in places if p >= middle])
        head = (upper if not lower or (upper and middle <= order.index(parent) < high) else lower)[0]
        yield order[head], parent
        for half, start, end in ((lower, low, middle), (upper, middle, high)):
            below.append(([place for place in half if place != head], order[head], start, end))


@dataclass(frozen=True, eq=False)
class RailTrees:
    """A tree of all ranks for every chunk.

    Attributes:
        parents: Parent of each rank, [chunks, ranks]; NO_PARENT for the root.
        turns: Turn of its message to the parent, below `period`.
        across: Whether that message goes to another group.
        period: Rounds between slices.
        shares: Chunks of a part.
        copies: Shares of a part that take the same way between groups, as one message.
        held: How many turns a message has, each a part `turn` of one between groups; None: one, as long as it takes.
    """

    root: int
    parents: Ints
    turns: Ints
    across: NDArray[np.bool_]
    period: int
    shares: int
    copies: int
    held: Ints | None = None
    turn: float = 1.0

    def sent_inside(self, members: int) -> Floats:
        """Return the parts that each member of a group sends to each other one, in the group where it is most."""
        chunk, child = np.nonzero((self.parents != NO_PARENT) & ~self.across)
        parent = self.parents[chunk, child]
        counts = np.zeros((self.parents.shape[1] // members, members, members))
        np.add.at(counts, (child // members, child % members, parent % members), 1 / self.shares)
        return np.asarray(counts.max(axis=0))

    def in_turns(self, made: HostTurns) -> RailTrees:
        """Return the trees of groups that are alike with other turns: their own are the colours."""
        count, used = len(made.inside), self.parents != NO_PARENT
        child, parent = np.arange(self.parents.shape[1]) % count, np.where(used, self.parents, 0) % count
        colours = np.where(self.across, self.turns, 0)
        turns = np.where(self.across, made.across[child, colours], made.inside[child, parent])
        held = np.where(self.across, made.held_across, made.held[child, parent])
        return replace(self, turns=turns * used, held=held, period=made.period, turn=made.part)

    @property
    def colours(self) -> int:
        """Messages that a group sends, and receives, to others on each rail in a period."""
        return int(self.turns[self.across].max(initial=0)) + 1

    @property
    def radix(self) -> int:
        """Trees of groups of a part, and children of a group in all of them."""
        return self.shares // self.copies

    @cached_property
    def messages(self) -> int:
        """Messages of a slice: what goes from one rank to another in one turn is one."""
        chunk, child = self._sends
        edges = np.sort(row_keys(self.turns[chunk, child], child, self.parents[chunk, child]))
        return int(np.count_nonzero(np.diff(edges, prepend=-1)))

    @cached_property
    def _sends(self) -> tuple[Ints, Ints]:
        """(chunk, rank) of every message to a parent."""
        chunk, child = np.nonzero(self.parents != NO_PARENT)
        return chunk, child

    @cached_property
    def _ports(self) -> tuple[Ints, list[Ints]]:
        """(whether each message goes to another group; the ports that send and receive them, turn by turn)."""
        chunk, child = self._sends
        at = self.turns[chunk, child] * self.parents.shape[1]
        return self.across[chunk, child].astype(int), [at + end for end in (child, self.parents[chunk, child])]

    def predicted_us(self, name: str, pace: Pace, slices: int) -> float:
        """Return the time in which so many slices of this pace pass if every message takes its turn."""
        turn_us = self._turn_us(pace)
        first = self._starts_us(pace, turn_us, up=name == "reduce")
        sent_us = first + self._held_us(turn_us) + np.array(pace.latency_us)[self.across.astype(int)]
        return float(sent_us[self.parents != NO_PARENT].max() + (slices - 1) * turn_us.sum())

    def reduce(self, rows: int, pace: Pace = ROUNDS) -> Schedule:
        """Return the reduce up the trees, for a commutative operator."""
        edges = TreeEdges(*self._edges(pace, up=True))
        return reduce_up(edges, self.parents.shape[1], self.root, self._chunks(rows))

    def broadcast(self, rows: int, pace: Pace = ROUNDS) -> Schedule:
        """Return the broadcast down the trees: the reduce with time reversed."""
        round_, child, parent, chunk = (column[::-1] for column in self._edges(pace, up=False))
        edges = TreeEdges(round_.max() - round_, child, parent, chunk)
        return broadcast_down(edges, self.parents.shape[1], self.root, self._chunks(rows))

    def _turn_us(self, pace: Pace) -> Floats:
        """What each turn takes: the bytes of its messages at the port that has most."""
        if self.held is not None:
            across_us = pace.slice_us[1] * self.copies / len(self.parents) + pace.gap_us[1]
            return np.full(self.period, across_us * self.turn or ANY_US)
        ranks, (across, ports) = self.parents.shape[1], self._ports
        held_us = (np.array(pace.slice_us) / len(self.parents) + pace.gap_us)[across]
        busy_us = [np.bincount(port, held_us, self.period * ranks).reshape(self.period, ranks) for port in ports]
        turn_us: Floats = np.maximum(*busy_us).max(axis=1)
        return turn_us if turn_us.any() else np.full(self.period, ANY_US)

    def _held_us(self, turn_us: Floats) -> Floats:
        """What each message takes, in its turns, [chunks, ranks]."""
        return turn_us[self.turns] if self.held is None else turn_us[0] * self.held

    def _starts_us(self, pace: Pace, turn_us: Floats, *, up: bool) -> Floats:
        """When the messages of the first slice start, [chunks, ranks], each in the turn that is soonest.

        Broadcasts run backwards: what waits for the latency is then the message to the parent, not the ones before it.
        """
        latency_us = np.array(pace.latency_us)[self.across.astype(int)].ravel()
        first_us, period_us = (np.cumsum(turn_us) - turn_us)[self.turns].ravel(), float(turn_us.sum())
        arrives_us = self._held_us(turn_us).ravel() + latency_us * up
        starts_us, ready_us = first_us.copy(), np.zeros_like(first_us)
        for child, parent in self._by_height:
            ready = ready_us[child]
            ready += latency_us[child] * (not up) * (ready > 0)
            periods = np.ceil((ready - first_us[child]) / period_us - SAME)
            starts_us[child] += np.maximum(periods, 0) * period_us
            np.maximum.at(ready_us, parent, starts_us[child] + arrives_us[child])
        return starts_us.reshape(self.parents.shape)

    @cached_property
    def _by_height(self) -> list[tuple[Ints, Ints]]:
        """(child, parent) of all edges, as places in `parents`: first of the children without any, then of parents."""
        used = (self.parents != NO_PARENT).ravel()
        row = np.arange(len(self.parents))[:, None] * self.parents.shape[1]
        parent = np.where(self.parents != NO_PARENT, row + self.parents, 0).ravel()
        waits = np.bincount(parent[used], minlength=len(parent))
        waits[~used] = NO_PARENT  # roots send to none
        levels = []
        while len(child := np.flatnonzero(waits == 0)):
            levels.append((child, parent[child]))
            waits[child] = NO_PARENT
            waits -= np.bincount(parent[child], minlength=len(parent))
        return levels

    def _edges(self, pace: Pace, *, up: bool) -> tuple[Ints, Ints, Ints, Ints]:
        """(round, child, parent, chunk) of every edge, by round."""
        (chunk, child), turn_us = self._sends, self._turn_us(pace)
        period_us = float(turn_us.sum())
        periods = np.floor(self._starts_us(pace, turn_us, up=up)[chunk, child] / period_us + SAME).astype(np.int64)
        round_ = periods * self.period + self.turns[chunk, child]
        order = np.argsort(round_, kind="stable")
        return round_[order], child[order], self.parents[chunk, child][order], chunk[order]

    def _chunks(self, rows: int) -> list[tuple[int, int]]:
        parts = split_rows(rows, len(self.parents) // self.shares)
        return [(first + low, n) for first, part in parts for low, n in split_rows(part, self.shares)]
