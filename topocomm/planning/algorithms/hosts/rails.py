"""Allreduce over groups of ranks (hosts, sockets) whose members have rails, routes of their own to the other groups.

First the members of every group fold their values. Then, level by level, blocks of r neighbouring groups become one, as
docs/concepts/cost-models.md says; r-1 is at most rails times ports, and with r = 2 the rounds inside are not needed.

Blocks are contiguous in rank order and fold in an aligned tree, the same on all ranks. Groups need not be equal, nor
their number a product: a level cuts groups into blocks whose sizes differ by at most one.

`rail_assignment` serves groups that lack a rail and blocks of one group less: with one rail to spare they cost no time.
Groups that receive the same blocks on the same rails share one exchange, copied to all of them as columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip_schedule import Gossip, Message, NodeExchange, worth_sending
from topocomm.planning.algorithms.hosts.rail_assignment import (
    RailAssignment,
    RailDemand,
    assign_rails,
    rail_sets,
    spread_inside,
)
from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.schedule.range_tree import RangeTree, aligned_tree, nested_tree
from topocomm.planning.schedule.schedule import NO_PATH, Schedule
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder, schedule_of_columns, table_of
from topocomm.planning.shared_results import SharedResults

Ints = NDArray[np.int64]

_Key = tuple[Groups, tuple[int, ...], int]
_known: SharedResults[_Key, Schedule] = SharedResults(most=8)
"""By groups, radices and ports: all payloads of a machine, and collectives that go the same ways, share them."""
_known_gossips: SharedResults[_Key, Gossip] = SharedResults(most=8)
"""As `_known`."""
_Received = tuple[int, tuple[int, ...], int, int, tuple[tuple[int, ...], ...]]
"""Members of a group, these on each rail, its own block, the number of blocks, and the blocks that each receives."""
MOST_ASKED = 8
"""Most groups of a block that may send, where the one of the same place cannot."""


def rails_tree(groups: Groups, radices: Sequence[int]) -> RangeTree:
    """Return the expression that `rails_allreduce` evaluates."""
    below = [groups.insides[sort].tree for sort in groups.sorts]
    return nested_tree(below, levels_of(len(groups.sorts), radices))


def rails_allreduce(groups: Groups, radices: Sequence[int], rows: int, ports: int = 1) -> Schedule:
    """Return an allreduce in which blocks of `radices[0]` groups become one, then blocks of `radices[1]` of these, ...

    Radices are at least 2 and multiply to at least the number of groups; above rails * ports + 1 of the smallest group
    some groups send twice in a row. A member receives `ports` messages at once (K).
    """
    key = groups, tuple(radices), ports
    made = _known.get(key, lambda: _Rails(groups, ports).allreduce(radices))
    return replace(made, chunks=((0, rows),))


def rails_gossip(groups: Groups, radices: Sequence[int], ports: int = 1) -> Gossip:
    """Return the messages of `rails_allreduce` by round, without their values."""
    key = groups, tuple(radices), ports
    return _known_gossips.get(key, lambda: _Rails(groups, ports).gossip(radices))


class GroupColumns:
    """Writes the columns of a schedule: what a builder has for one group of ranks, at once for many.

    Attributes:
        free: First free slot of each rank.
    """

    def __init__(self, groups: Groups) -> None:
        self.first = np.array(groups.starts[:-1], dtype=np.int64)
        self.free = np.ones(groups.starts[-1], dtype=np.int64)
        self._transfers = [np.zeros((0, 7), np.int32)]
        self._combines = [np.zeros((0, 4), np.int32)]
        self._operands: list[Ints] = []

    def move(self, round_: int, src: Ints, src_slot: Ints, dst: Ints, dst_slot: Ints) -> None:
        """Send from each of these ranks to one of those."""
        self._transfers.append(table_of(round_, src, src_slot, dst, dst_slot, 0, NO_PATH))

    def fold(self, round_: int | Ints, ranks: Ints, out: Ints, operands: Ints) -> None:
        """Fold the operands [ranks, n] of each of these ranks."""
        self._combines.append(table_of(round_, ranks, out, 0))
        self._operands.append(operands)

    def slots(self, build_slots: int | Ints, ranks: Ints, value: Ints) -> Ints:
        """Return the slots of a builder on these ranks: 0 is that of their value, others count from the first free."""
        slots: Ints = np.where(np.equal(build_slots, 0), value[ranks], self.free[ranks] + build_slots - 1)
        return slots

    def copy(self, build: ScheduleBuilder, where: Ints, value: Ints, round_: int, *, by_group: bool = True) -> None:
        """Write what the builder of one group has in the groups `where`, from a round on; `value` has a slot by rank.

        Sends are ordered by group, or by their place in the builder.
        """
        first = self.first[where][:, None]
        t = build.move_table().astype(np.int64)
        src, dst = first + t[:, 1], first + t[:, 3]
        slots = self.slots(t[:, 2], src, value), self.slots(t[:, 4], dst, value)
        moves = np.broadcast_arrays(round_ + t[:, 0], src, slots[0], dst, slots[1], 0, NO_PATH)
        self._transfers.append(table_of(*(moves if by_group else [column.T for column in moves])))
        if not build.folds:
            return
        round_in, rank, out, _ = build.fold_table().astype(np.int64).T
        widths, operands = build.widths, np.array(build.operands, dtype=np.int64)
        read = self.slots(operands, first + np.repeat(rank, widths), value)
        ranks = first + rank
        folds = np.broadcast_arrays(round_ + round_in, ranks, self.slots(out, ranks, value), 0)
        self._combines.append(table_of(*(column.T for column in folds)))
        self._operands += [read[:, end - width : end] for width, end in zip(widths, accumulate(widths), strict=True)]

    def schedule(self, rows: int, receivers: Ints, results: Ints) -> Schedule:
        """Return the schedule with the slots `results` of these ranks as outputs."""
        return schedule_of_columns(
            len(self.free),
            ((0, rows),),
            outputs=np.stack([receivers, results, 0 * receivers], axis=1),
            transfers=np.concatenate(self._transfers),
            combines=np.concatenate(self._combines),
            operands=self._operands,
        )


@cache
def _heard_inside(
    members: int, on: tuple[int, ...], own: int, blocks: int, received: tuple[tuple[int, ...], ...], ports: int
) -> tuple[list[list[Message]], int]:
    """The messages of `_joining` after round 0, by member; and the rounds of both."""
    gossip = spread_inside(members, on, received, blocks - 1, ports)
    knows = [1 << own | sum(1 << block for block in blocks_heard) for blocks_heard in received]
    return worth_sending(gossip, knows), 1 + len(gossip)


@cache
def _joining(
    members: int, on: tuple[int, ...], own: int, blocks: int, received: tuple[tuple[int, ...], ...], ports: int
) -> tuple[NodeExchange, int]:
    """Round 0 brings blocks in slots from 1 on, then the members of a group exchange them; and the rounds of both."""
    gossip = spread_inside(members, on, received, blocks - 1, ports)
    held = [{own: 0, **{block: slot for slot, block in enumerate(blocks_heard, start=1)}} for blocks_heard in received]
    build = ScheduleBuilder(members, ((0, 1),), first_slots=[len(have) for have in held])
    exchange = NodeExchange(build, aligned_tree(blocks), held=held)
    exchange.run_everywhere(gossip, first_round=1)  # folds results now: threads share what is kept, and only read it
    return exchange, 1 + len(gossip)


class _Rails(GroupColumns):
    def __init__(self, groups: Groups, ports: int) -> None:
        super().__init__(groups)
        self.groups, self.ports = groups, ports
        self.rail_count = len(groups.members_on[0])
        self.total = np.zeros_like(self.free)
        """Slot of the value that each rank has."""

    def allreduce(self, radices: Sequence[int]) -> Schedule:
        """Write all phases and return the schedule."""
        round_ = 0
        for sort, inside in enumerate(self.groups.insides):
            exchange = NodeExchange(ScheduleBuilder(inside.members, ((0, 1),)), inside.tree)
            exchange.run_everywhere(inside.gossip)
            self._evaluate(exchange, np.flatnonzero(np.array(self.groups.sorts) == sort), self.total.copy(), 0)
            round_ = max(round_, len(inside.gossip))
        for blocks in levels_of(len(self.first), radices):
            round_ = self._join(blocks, round_)
        return self.schedule(1, np.arange(len(self.total)), self.total)

    def gossip(self, radices: Sequence[int]) -> Gossip:
        """Return the messages of all phases, in the order in which `allreduce` writes them."""
        rounds: list[list[Message]] = []
        for sort, inside in enumerate(self.groups.insides):
            told = worth_sending(inside.gossip, [1 << member for member in range(inside.members)])
            where = [start for start, own in zip(self.groups.starts, self.groups.sorts, strict=False) if own == sort]
            _write_in(rounds, 0, told, where)
        round_ = max(len(inside.gossip) for inside in self.groups.insides)
        for blocks in levels_of(len(self.first), radices):
            by_slot: defaultdict[int, list[Message]] = defaultdict(list)
            after = round_
            for key, groups in self._alike(blocks).items():
                where = [self.groups.starts[group] for group, _ in groups]
                places = [(member, slot) for member, received in enumerate(key[-1]) for slot in range(len(received))]
                for place, (member, slot) in enumerate(places):
                    pairs = zip(groups, where, strict=True)
                    by_slot[slot] += [(senders[place], start + member) for (_, senders), start in pairs]
                told, count = _heard_inside(*key, self.ports)
                _write_in(rounds, round_ + 1, told, where)
                after = max(after, round_ + count)
            _write_in(rounds, round_, [list(dict.fromkeys(pair for slot in sorted(by_slot) for pair in by_slot[slot]))])
            round_ = after
        return rounds

    def _alike(self, blocks: Sequence[tuple[int, ...]]) -> dict[_Received, list[tuple[int, list[int]]]]:
        """The groups that receive the same blocks on the same rails in a level, each with the ranks that send them."""
        alike: dict[_Received, list[tuple[int, list[int]]]] = {}
        for count in sorted({len(edges) - 1 for edges in blocks} - {1}):
            sets = [edges for edges in blocks if len(edges) - 1 == count]
            demands = [demand for edges in sets for demand in _demands(edges, self.rail_count, self.ports)]
            rails = rail_sets(self.rail_count, count - 1, self.ports)
            received = assign_rails(demands, self.groups.members_on, self.ports, rails)
            for edges in sets:
                for own, (low, high) in enumerate(pairwise(edges)):
                    for group in range(low, high):
                        by_member, senders = self._by_member(group, received[group])
                        key = len(by_member), self.groups.members_on[group], own, count, by_member
                        alike.setdefault(key, []).append((group, senders))
        return alike

    def _join(self, blocks: Sequence[tuple[int, ...]], round_: int) -> int:
        """Write one level; `blocks` has the edges of each set of blocks that become one. Return the round after."""
        after, before = round_, self.total.copy()
        moves: defaultdict[int, list[tuple[Ints, Ints, Ints]]] = defaultdict(list)
        for key, groups in self._alike(blocks).items():
            where = np.array([group for group, _ in groups])
            places = [(member, slot) for member, received in enumerate(key[-1]) for slot in range(len(received))]
            for src, (member, slot) in zip(np.array([senders for _, senders in groups]).T, places, strict=True):
                dst = self.first[where] + member
                moves[slot].append((src, dst, self.free[dst] + slot))
            exchange, rounds = _joining(*key, self.ports)
            self._evaluate(exchange, where, before, round_)
            after = max(after, round_ + rounds)
        # Ports keep to the order: what all ranks receive first comes first, or groups would wait for one another.
        for _, same_slot in sorted(moves.items()):
            src, dst, dst_slot = (np.concatenate(column) for column in zip(*same_slot, strict=True))
            self.move(round_, src, before[src], dst, dst_slot)
        return after

    def _evaluate(self, exchange: NodeExchange, where: Ints, before: Ints, round_: int) -> None:
        """Write an exchange in these groups; its results become the values of their ranks."""
        results = [exchange.value(member) for member in range(exchange.build.ranks)]
        self.copy(exchange.build, where, before, round_)
        for member, slot in enumerate(results):
            ranks = self.first[where] + member
            self.total[ranks] = self.slots(slot, ranks, before)
            self.free[ranks] += exchange.build.slots_used(member) - 1

    def _by_member(
        self, group: int, received: Sequence[RailAssignment]
    ) -> tuple[tuple[tuple[int, ...], ...], list[int]]:
        """Return (the blocks that each member receives, the ranks that send them), member by member."""
        groups = self.groups
        blocks: list[list[int]] = [[] for _ in range(groups.members(group))]
        senders: list[list[int]] = [[] for _ in blocks]
        for rail, block, source in received:
            member = max(groups.members_on[group][rail], 0)
            blocks[member].append(block)
            senders[member].append(groups.starts[source] + max(groups.members_on[source][rail], 0))
        return tuple(map(tuple, blocks)), [rank for own in senders for rank in own]


def _demands(edges: Sequence[int], rails: int, ports: int) -> Iterator[RailDemand]:
    """Yield the demands of all groups of these blocks: every other block, from the group of the same place.

    Where the rails form sets of a power of two, turns are exclusive ors, so that partners hold sibling nodes.
    """
    blocks = len(edges) - 1
    by_bits = ports == 1 and blocks & (blocks - 1) == 0 and rails % blocks == 0 and blocks > 2
    for own, (low, high) in enumerate(pairwise(edges)):
        for block, (first, end) in enumerate(pairwise(edges)):
            if block == own:
                continue
            turn = own ^ block if by_bits else (block - own - 1) % blocks
            for place, group in enumerate(range(low, high)):
                counterpart = first + place
                first_asked = counterpart if counterpart < end else first + own % (end - first)
                sources = [*range(first_asked, end), *range(first, first_asked)][:MOST_ASKED]
                yield RailDemand(group, block, sources, turn if counterpart < end else -1)


def levels_of(groups: int, radices: Sequence[int]) -> list[list[tuple[int, ...]]]:
    """Return, for each radix, innermost first, the edges of each set of blocks that become one."""
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


def _write_in(
    rounds: list[list[Message]], first: int, messages: Sequence[Sequence[Message]], where: Sequence[int] = (0,)
) -> None:
    """Add the messages of every round from `first` on in groups with these first ranks, group by group."""
    rounds.extend([] for _ in range(first + len(messages) - len(rounds)))
    for own, round_ in zip(messages, rounds[first:], strict=False):
        round_ += [(start + src, start + dst) for start in where for src, dst in own]
