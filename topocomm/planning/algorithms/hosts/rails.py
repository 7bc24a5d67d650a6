"""Allreduce over groups of ranks (hosts, sockets) whose members have ways of their own to the other groups: rails.

Inside every group the members first fold their values, so each has the group's. Then, level by level, blocks of r
neighbouring groups become one: in a single round every member hears, on its own rail, from another of the r-1 other
blocks, and in ceil(log2 (r-1)) rounds inside the group the members tell each other what they heard. So 4 hosts of 8
need one hop between hosts and 16 x 8 two, where recursive doubling takes two and four; r-1 is at most the number of
rails times ports. With r = 2 all members hear the same and nothing needs to be told.

Blocks are contiguous in rank order and fold in an aligned tree, the same on all ranks. Groups need not be equal, nor
their number a product: a level cuts groups in blocks whose sizes differ by at most one.

Groups that lack a rail, and blocks of one group less, are dealt with in `hearing.py`: with one rail to spare they cost
no time. What groups do that hear the same on the same rails is built once and copied to all of them as columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip_schedule import Traders
from topocomm.planning.algorithms.hosts.rail_assignment import RailAssignment, RailDemand, deal, rail_sets, told_inside
from topocomm.planning.algorithms.hosts.rank_groups import Groups, Inside
from topocomm.planning.schedule.range_tree import RangeTree, aligned_tree, nested_tree
from topocomm.planning.schedule.schedule import NO_PATH, Schedule
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder, schedule_of_columns

Ints = NDArray[np.int64]

MOST_ASKED = 8
"""Groups of a block that are asked at most, where the one of the same place cannot tell."""


def rails_tree(groups: Groups, radices: Sequence[int]) -> RangeTree:
    """The expression that `rails_allreduce` evaluates."""
    below = [groups.insides[sort].tree for sort in groups.sorts]
    return nested_tree(below, levels_of(len(groups.sorts), radices))


def rails_allreduce(groups: Groups, radices: Sequence[int], rows: int, ports: int = 1) -> Schedule:
    """Blocks of `radices[0]` groups become one, then blocks of `radices[1]` of these, and so on.

    Args:
        groups: At least one; radices multiply to at least their number.
        radices: Each at least 2; above rails * ports + 1 of the smallest group some tell two, one after the other.
        rows: Of the payload.
        ports: K, messages that a member hears at once.
    """
    return _Rails(groups, ports).schedule(radices, rows)


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
def _joining_template(
    members: int, on: tuple[int, ...], own: int, blocks: int, heard: tuple[tuple[int, ...], ...], ports: int
) -> _Template:
    """Round 0 brings what each member hears, in slots from 1 on; then the members tell each other."""
    gossip = told_inside(members, on, heard, blocks - 1, ports)
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
        self.rail_count = len(groups.members_on[0])
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
        alike: dict[tuple[Any, ...], list[tuple[int, list[int]]]] = {}
        for count in sorted({len(edges) - 1 for edges in blocks} - {1}):
            sets = [edges for edges in blocks if len(edges) - 1 == count]
            heard = self._dealt(sets, count)
            for edges in sets:
                for own, (low, high) in enumerate(pairwise(edges)):
                    for group in range(low, high):
                        by_member, tellers = self._by_member(group, heard[group])
                        key = len(by_member), self.groups.members_on[group], own, count, by_member
                        alike.setdefault(key, []).append((group, tellers))
        after = round_
        for key, found in alike.items():
            where = np.array([group for group, _ in found])
            self._hear(where, np.array([tellers for _, tellers in found]), key[-1], round_)
            after = max(after, self._copy(_joining_template(*key, self.ports), where, round_))
        self._settle()
        return after

    def _dealt(self, sets: Sequence[tuple[int, ...]], count: int) -> list[list[RailAssignment]]:
        """What every group hears of the other blocks of its set, if that has so many."""
        wishes = [wish for edges in sets for wish in _wishes(edges, self.rail_count, self.ports)]
        return deal(wishes, self.groups.members_on, self.ports, rail_sets(self.rail_count, count - 1, self.ports))

    def _by_member(self, group: int, heard: Sequence[RailAssignment]) -> tuple[tuple[tuple[int, ...], ...], list[int]]:
        """(the blocks that each member hears of, the ranks that tell them), member by member."""
        groups = self.groups
        blocks: list[list[int]] = [[] for _ in range(groups.members(group))]
        tellers: list[list[int]] = [[] for _ in blocks]
        for rail, block, source in heard:
            member = max(groups.members_on[group][rail], 0)
            blocks[member].append(block)
            tellers[member].append(groups.starts[source] + max(groups.members_on[source][rail], 0))
        return tuple(map(tuple, blocks)), [rank for own in tellers for rank in own]

    def _hear(self, where: Ints, tellers: Ints, by_member: Sequence[Sequence[int]], round_: int) -> None:
        """Messages between groups, the same for all groups of `where`: tellers [groups, messages]."""
        places = [(member, slot) for member, blocks in enumerate(by_member) for slot in range(len(blocks))]
        for src, (member, slot) in zip(tellers.T, places, strict=True):
            dst = self.first[where] + member
            self._move(round_, src, self.total[src], dst, self.next[dst] + slot)

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


def _wishes(edges: Sequence[int], rails: int, ports: int) -> Iterator[RailDemand]:
    """Every group of the blocks with these edges is to hear of all other blocks, from its like if there is one.

    Where the rails are so many sets of a power of two, they are dealt by exclusive or, so that partners hold siblings.
    """
    blocks = len(edges) - 1
    by_bits = ports == 1 and blocks & (blocks - 1) == 0 and rails % blocks == 0 and blocks > 2
    for own, (low, high) in enumerate(pairwise(edges)):
        for block, (first, end) in enumerate(pairwise(edges)):
            if block == own:
                continue
            turn = own ^ block if by_bits else (block - own - 1) % blocks
            for place, group in enumerate(range(low, high)):
                like = first + place
                begin = like if like < end else first + own % (end - first)
                sources = [*range(begin, end), *range(first, begin)][:MOST_ASKED]
                yield RailDemand(group, block, sources, turn if like < end else -1)


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
