"""Allreduce over groups of ranks (hosts, sockets) whose members all have a way of their own to the other groups.

Inside every group the members first fold their values, so each has the group's. Then, level by level, blocks of r
neighbouring groups become one: in a single round every member hears, on its own rail, from another of the r-1 other
blocks, and in ceil(log2 (r-1)) rounds inside the group the members tell each other what they heard. So 4 hosts of 8
need one hop between hosts and 16 x 8 two, where recursive doubling takes two and four; r-1 is at most the number of
members times ports. With r = 2 all members hear the same and nothing needs to be told.

Blocks are contiguous in rank order and fold in an aligned tree, the same on all ranks. Groups need not be equal, nor
their number a product: a level cuts groups in blocks whose sizes differ by at most one.

Everything is built for one group of each sort and copied to its likes as columns, so 2,048 hosts take milliseconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip import Gossip, Traders, gossip_allreduce
from topocomm.planning.algorithms.multiport import gather_gossip, spread_gossip
from topocomm.planning.range_tree import RangeTree, aligned_tree, nested_tree
from topocomm.planning.schedule import NO_PATH, Schedule
from topocomm.planning.schedule_builder import ScheduleBuilder, schedule_of_columns

Ints = NDArray[np.int64]


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
        lanes: (sort of the source's group, sort of the destination's) -> for each member of the destination, the
            member of the source that it hears from; a missing pair means: the member of the same index.
    """

    starts: tuple[int, ...]
    sorts: tuple[int, ...]
    insides: tuple[Inside, ...]
    lanes: Mapping[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)


def rails_tree(groups: Groups, radices: Sequence[int]) -> RangeTree:
    """The expression that `rails_allreduce` evaluates."""
    below = [groups.insides[sort].tree for sort in groups.sorts]
    return nested_tree(below, levels_of(len(groups.sorts), radices))


def rails_allreduce(groups: Groups, radices: Sequence[int], rows: int, ports: int = 1) -> Schedule:
    """Blocks of `radices[0]` groups become one, then blocks of `radices[1]` of these, and so on.

    Args:
        groups: At least one; radices multiply to at least their number.
        radices: Each from 2 to members * ports + 1 of the smallest group.
        rows: Of the payload.
        ports: K, messages that a member hears at once.
    """
    return _Rails(groups, ports).schedule(radices, rows)


def cyclic_allreduce(groups: Groups, radices: Sequence[int], rows: int, ports: int = 1) -> Schedule:
    """The same for any number of groups, in as many rounds as the radices say.

    Group g, which knows groups g..g+c-1 (modulo their number), hears from g+c, g+2c, ...: every group tells as many as
    it hears. What travels are nodes of an aligned tree over the groups, up to 2 log2 c of them in a message.
    """
    return gossip_allreduce(cyclic_gossip(groups, radices, ports), cyclic_tree(groups), rows)


def cyclic_tree(groups: Groups) -> RangeTree:
    """The expression that `cyclic_allreduce` evaluates."""
    below = [groups.insides[sort].tree for sort in groups.sorts]
    return nested_tree(below, [[tuple(range(len(below) + 1))]])


def cyclic_gossip(groups: Groups, radices: Sequence[int], ports: int = 1) -> Gossip:
    """Who tells whom in `cyclic_allreduce`."""
    rounds: list[list[tuple[int, int]]] = []
    for group, sort in enumerate(groups.sorts):
        _write(rounds, 0, groups.insides[sort].gossip, groups.starts[group])
    known = 1
    for radix in radices:
        known = _extend(groups, rounds, known, radix, ports)
    return rounds


def gather_over_groups(groups: Groups, root: int, ports: int = 1) -> Gossip:
    """All tell the root: a group gathers inside, then tells another group, whose members hear from as many groups each.

    With m members a set of m * ports + 1 groups becomes one in a hop between groups. Backwards it is a broadcast.

    Args:
        groups: At least one.
        root: Rank.
        ports: K.
    """
    members = [groups.insides[sort].members for sort in groups.sorts]
    home = bisect_right(groups.starts, root) - 1
    holders = list(range(len(members)))
    rounds: list[list[tuple[int, int]]] = []
    size = min(members) * ports + 1
    while len(holders) > 1:
        first, kept, told = len(rounds), [], []
        for low in range(0, len(holders), size):
            set_ = holders[low : low + size]
            target = home if home in set_ else set_[0]
            for turn, group in enumerate(group for group in set_ if group != target):
                lane = turn % min(members)
                ranks = range(groups.starts[group], groups.starts[group + 1])
                _write(rounds, first, gather_gossip(ranks, lane, ports), 0)
                told.append((groups.starts[group] + lane, groups.starts[target] + lane))
            kept.append(target)
        rounds.append(told)
        holders = kept
    ranks = range(groups.starts[home], groups.starts[home + 1])
    return [*rounds, *gather_gossip(ranks, root - groups.starts[home], ports)]


def _extend(groups: Groups, rounds: list[list[tuple[int, int]]], known: int, radix: int, ports: int) -> int:
    """Every group hears from up to radix - 1 others; returns how many groups each knows then."""
    count, first = len(groups.sorts), len(rounds)
    blocks = min(radix, -(-count // known))
    if blocks < 2:
        return known
    for group, sort in enumerate(groups.sorts):
        heard, gossip = heard_by(groups.insides[sort].members, 0, blocks, ports)
        told = []
        for member, steps in enumerate(heard):
            for step in steps:
                source = (group + step * known) % count
                lane = groups.lanes.get((groups.sorts[source], sort))
                teller = min(lane[member] if lane else member, groups.insides[groups.sorts[source]].members - 1)
                told.append((groups.starts[source] + teller, groups.starts[group] + member))
        _write(rounds, first, [told], 0)
        _write(rounds, first + 1, gossip, groups.starts[group])
    return min(known * blocks, count)


def _write(rounds: list[list[tuple[int, int]]], first: int, gossip: Gossip, offset: int) -> None:
    """Add a gossip among ranks from `offset` on, beginning in round `first`."""
    rounds.extend([] for _ in range(first + len(gossip) - len(rounds)))
    for index, messages in enumerate(gossip, start=first):
        rounds[index] += [(offset + src, offset + dst) for src, dst in messages]


@dataclass(frozen=True)
class _Template:
    """What one group does in one phase, by member; slot 0 is what the member had, others are numbered from 1."""

    rounds: int
    moves: Ints
    """[n, 5]: round, member, slot, member, slot."""
    folds: Ints
    """[n, 3]: round, member, out slot."""
    operands: tuple[tuple[int, ...], ...]
    result: tuple[int, ...]
    """Slot of the outcome, by member."""
    used: tuple[int, ...]
    """Slots that are taken afterwards, by member."""


def _template(build: ScheduleBuilder, traders: Traders, rounds: int) -> _Template:
    result = tuple(traders.output(member) for member in range(build.ranks))
    moves = [(t.round, t.src, t.src_slot, t.dst, t.dst_slot) for t in build.transfers]
    folds = [(c.round, c.rank, c.out_slot) for c in build.combines]
    return _Template(
        rounds,
        np.array(moves, dtype=np.int64).reshape(-1, 5),
        np.array(folds, dtype=np.int64).reshape(-1, 3),
        tuple(c.operands for c in build.combines),
        result,
        tuple(build.slots_used(member) for member in range(build.ranks)),
    )


def _inside_template(inside: Inside) -> _Template:
    build = ScheduleBuilder(inside.members, ((0, 1),))
    traders = Traders(build, inside.tree)
    for round_, messages in enumerate(inside.gossip):
        traders.round(round_, messages, everywhere=True)
    return _template(build, traders, len(inside.gossip))


@cache
def heard_by(members: int, own: int, blocks: int, ports: int) -> tuple[tuple[tuple[int, ...], ...], Gossip]:
    """(the blocks that each member hears from, what members then tell each other).

    A member hears from at most `ports` blocks; every other block is heard by somebody, and the gossip brings them
    to all. In aligned sets of 2^k members the blocks are dealt by exclusive or, so that partners hold siblings.
    """
    others = blocks - 1
    if ports == 1 and blocks & (blocks - 1) == 0 and members % blocks == 0:
        dealt = [own ^ (member % blocks) for member in range(members)]
        heard = tuple((block,) if block != own else () for block in dealt)
        near = [[(m ^ bit, m) for m in range(members)] for bit in _bits(blocks)]
        return (heard, near) if blocks > 2 else (tuple(((1 - own),) for _ in range(members)), ())
    size = 1
    while size * ports < others:
        size *= 2
    if members % size:
        size = members
    dealt_to: list[list[int]] = [[] for _ in range(size)]
    for turn in range(max(others, size)):
        if turn < others or not dealt_to[turn % size]:
            dealt_to[turn % size].append((own + 1 + turn % others) % blocks)
    gossip = [
        [(set_ + src, set_ + dst) for set_ in range(0, members, size) for src, dst in messages]
        for messages in spread_gossip(size, ports)
    ]
    return tuple(tuple(dealt_to[member % size]) for member in range(members)), (gossip if size > 1 else ())


def _bits(size: int) -> list[int]:
    return [1 << k for k in range((size - 1).bit_length())]


@cache
def _joining_template(members: int, own: int, blocks: int, ports: int) -> _Template:
    """Round 0 brings what each member hears, in slots from 1 on; then the members tell each other."""
    heard, gossip = heard_by(members, own, blocks, ports)
    held = [{own: 0, **{block: slot for slot, block in enumerate(blocks_heard, start=1)}} for blocks_heard in heard]
    build = ScheduleBuilder(members, ((0, 1),), first_slots=[len(have) for have in held])
    traders = Traders(build, aligned_tree(blocks), held=held)
    for round_, messages in enumerate(gossip, start=1):
        traders.round(round_, messages, everywhere=True)
    return _template(build, traders, 1 + len(gossip))


class _Rails:
    """Columns of the schedule, phase by phase."""

    def __init__(self, groups: Groups, ports: int) -> None:
        self.groups, self.ports = groups, ports
        self.first = np.array(groups.starts[:-1], dtype=np.int64)
        self.sorts = np.array(groups.sorts, dtype=np.int64)
        self.sizes = np.array([inside.members for inside in groups.insides], dtype=np.int64)[self.sorts]
        ranks = groups.starts[-1]
        self.total = np.zeros(ranks, dtype=np.int64)
        """Slot of what each rank has."""
        self.next = np.ones(ranks, dtype=np.int64)
        self.moves: list[Ints] = []
        self.folds: list[Ints] = []
        self.operands: list[Ints] = []
        """Operand slots, a block for each entry of `folds`."""
        self.pending: list[tuple[Ints, Ints, int]] = []
        """(ranks, slot of their outcome, slots taken) of the phase that is being written."""

    def schedule(self, radices: Sequence[int], rows: int) -> Schedule:
        """All phases."""
        round_ = 0
        for sort, inside in enumerate(self.groups.insides):
            round_ = max(round_, self._copy(_inside_template(inside), np.flatnonzero(self.sorts == sort), 0))
        self._settle()
        for blocks in levels_of(len(self.first), radices):
            round_ = self._join(blocks, round_)
        ranks = np.arange(len(self.total))
        return schedule_of_columns(
            len(ranks),
            ((0, rows),),
            inputs=np.stack([ranks, 0 * ranks, ranks], axis=1),
            outputs=np.stack([ranks, self.total, 0 * ranks], axis=1),
            transfers=np.concatenate([np.zeros((0, 7), np.int64), *self.moves]),
            combines=np.concatenate([np.zeros((0, 4), np.int64), *self.folds]),
            operands=self.operands,
        )

    def _join(self, blocks: Sequence[tuple[int, ...]], round_: int) -> int:
        """One level; `blocks` has, for each set of blocks that become one, the edges of these."""
        sorted_out: dict[tuple[int, int, int], list[tuple[int, tuple[int, ...]]]] = {}
        for edges in blocks:
            for own, (low, high) in enumerate(pairwise(edges)):
                for group in range(low, high):
                    key = (int(self.sorts[group]), own, len(edges) - 1)
                    sorted_out.setdefault(key, []).append((group, edges))
        after = round_
        for (sort, own, count), found in sorted_out.items():
            if count > 1:
                where = np.array([group for group, _ in found])
                edges_of = np.array([edges for _, edges in found])
                members = self.groups.insides[sort].members
                heard, _ = heard_by(members, own, count, self.ports)
                self._hear(where, edges_of, heard, own, round_)
                template = _joining_template(members, own, count, self.ports)
                after = max(after, self._copy(template, where, round_))
        self._settle()
        return after

    def _hear(self, where: Ints, edges: Ints, heard: Sequence[Sequence[int]], own: int, round_: int) -> None:
        """Messages between groups: every member hears from the group at its own place in another block."""
        place = where - edges[:, own]
        for member, blocks in enumerate(heard):
            for slot, block in enumerate(blocks):
                low, size = edges[:, block], edges[:, block + 1] - edges[:, block]
                source = low + place % size
                src = self.first[source] + self._lane(source, where, member)
                dst = self.first[where] + member
                self._move(round_, src, self.total[src], dst, self.next[dst] + slot)

    def _lane(self, source: Ints, where: Ints, member: int) -> Ints:
        """Which member of the source group tells this member of the destination."""
        lanes = np.full(len(where), member, dtype=np.int64)
        for (src_sort, dst_sort), table in self.groups.lanes.items():
            if dst_sort == self.sorts[where[0]]:  # all of `where` are of one sort
                lanes[self.sorts[source] == src_sort] = table[member]
        return np.minimum(lanes, self.sizes[source] - 1)

    def _copy(self, template: _Template, where: Ints, round_: int) -> int:
        """Write the template's messages and folds for all these groups; returns the round after."""
        first = self.first[where][:, None]

        def slots(members: Ints, slot: Ints) -> Ints:
            ranks = first + members
            found: Ints = np.where(slot == 0, self.total[ranks], self.next[ranks] + slot - 1)
            return found

        t = template.moves
        src, dst = first + t[:, 1], first + t[:, 3]
        rounds = np.broadcast_to(round_ + t[:, 0], src.shape)
        self._move(rounds, src, slots(t[:, 1], t[:, 2]), dst, slots(t[:, 3], t[:, 4]))
        for (turn, member, out_slot), operands in zip(template.folds.tolist(), template.operands, strict=True):
            at = np.full(1, member)
            out = slots(at, np.full(1, out_slot)).ravel()
            columns = np.broadcast_arrays(round_ + turn, first.ravel() + member, out, 0)
            self.folds.append(np.stack(columns, axis=1))
            self.operands.append(slots(np.full(len(operands), member), np.array(operands)))
        for member, (result, used) in enumerate(zip(template.result, template.used, strict=True)):
            outcome = slots(np.full(1, member), np.full(1, result)).ravel()
            self.pending.append((first.ravel() + member, outcome, used - 1))
        return round_ + template.rounds

    def _settle(self) -> None:
        """What the phase made is now what each rank has."""
        for ranks, total, used in self.pending:
            self.total[ranks] = total
            self.next[ranks] += used
        self.pending.clear()

    def _move(self, round_: Ints | int, src: Ints, src_slot: Ints, dst: Ints, dst_slot: Ints) -> None:
        columns = np.broadcast_arrays(round_, src, src_slot, dst, dst_slot, 0, NO_PATH)
        self.moves.append(np.stack([column.ravel() for column in columns], axis=1))


def levels_of(groups: int, radices: Sequence[int]) -> list[list[tuple[int, ...]]]:
    """For each radix, innermost first, the sets of blocks that become one: edges of at most that many blocks."""
    levels: list[list[tuple[int, ...]]] = []
    spans = [(0, groups)]
    for radix in reversed(radices):
        sets = []
        for low, high in spans:
            count = min(radix, high - low)
            sets.append(tuple(low + (high - low) * i // count for i in range(count + 1)))
        spans = [span for edges in sets for span in pairwise(edges)]
        levels.append(sets)
    return levels[::-1]
