"""Allreduce over groups of ranks (hosts, sockets) whose members have rails, routes of their own to the other groups.

First the members of every group fold their values. Then, level by level, blocks of r neighbouring groups become one: in
one round every member receives, on its own rail, from another of the r-1 other blocks, and in ceil(log2 (r-1)) rounds
the members of a group exchange what they received. So 4 hosts of 8 need one hop between hosts and 16 hosts two, where
recursive doubling takes two and four. r-1 is at most rails times ports; with r = 2 the rounds inside are not needed.

Blocks are contiguous in rank order and fold in an aligned tree, the same on all ranks. Groups need not be equal, nor
their number a product: a level cuts groups into blocks whose sizes differ by at most one.

`rail_assignment` serves groups that lack a rail and blocks of one group less: with one rail to spare they cost no time.
Groups that receive the same blocks on the same rails share a template, copied to all of them as columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip_schedule import NodeExchange
from topocomm.planning.algorithms.hosts.rail_assignment import (
    RailAssignment,
    RailDemand,
    assign_rails,
    rail_sets,
    spread_inside,
)
from topocomm.planning.algorithms.hosts.rank_groups import Groups, Inside
from topocomm.planning.schedule.range_tree import RangeTree, aligned_tree, nested_tree
from topocomm.planning.schedule.schedule import NO_PATH, Schedule
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder, schedule_of_columns

Ints = NDArray[np.int64]

MOST_ASKED = 8
"""Most groups of a block that may send, where the one of the same place cannot."""


def rails_tree(groups: Groups, radices: Sequence[int]) -> RangeTree:
    """Return the expression that `rails_allreduce` evaluates."""
    below = [groups.insides[sort].tree for sort in groups.sorts]
    return nested_tree(below, levels_of(len(groups.sorts), radices))


def rails_allreduce(groups: Groups, radices: Sequence[int], rows: int, ports: int = 1) -> Schedule:
    """Return an allreduce in which blocks of `radices[0]` groups become one, then blocks of `radices[1]` of these, ...

    Args:
        groups: At least one; radices multiply to at least their number.
        radices: Each at least 2; above rails * ports + 1 of the smallest group some groups send twice in a row.
        rows: Rows of the payload.
        ports: Messages that a member receives at once (K).
    """
    return _Rails(groups, ports).schedule(radices, rows)


@dataclass(frozen=True)
class _Template:
    """Messages and folds of one group in one phase, by member; slot 0 is what the member had, others count from 1."""

    rounds: int
    transfers: Ints
    """[n, 5]: round, member, slot, member, slot."""
    combines: Ints
    """[n, 3]: round, member, out slot."""
    operands: tuple[tuple[int, ...], ...]
    result: tuple[int, ...]
    """Slot of the result, by member."""
    used: tuple[int, ...]
    """Slots taken afterwards, by member."""


def _template(build: ScheduleBuilder, exchange: NodeExchange, rounds: int) -> _Template:
    result = tuple(exchange.output(member) for member in range(build.ranks))
    transfers = [(t.round, t.src, t.src_slot, t.dst, t.dst_slot) for t in build.transfers]
    combines = [(c.round, c.rank, c.out_slot) for c in build.combines]
    return _Template(
        rounds,
        np.array(transfers, dtype=np.int64).reshape(-1, 5),
        np.array(combines, dtype=np.int64).reshape(-1, 3),
        tuple(c.operands for c in build.combines),
        result,
        tuple(build.slots_used(member) for member in range(build.ranks)),
    )


def _inside_template(inside: Inside) -> _Template:
    build = ScheduleBuilder(inside.members, ((0, 1),))
    exchange = NodeExchange(build, inside.tree)
    for round_, messages in enumerate(inside.gossip):
        exchange.round(round_, messages, everywhere=True)
    return _template(build, exchange, len(inside.gossip))


@cache
def _joining_template(
    members: int, on: tuple[int, ...], own: int, blocks: int, received: tuple[tuple[int, ...], ...], ports: int
) -> _Template:
    """Return a template: round 0 brings blocks in slots from 1 on, then the members exchange them."""
    gossip = spread_inside(members, on, received, blocks - 1, ports)
    held = [{own: 0, **{block: slot for slot, block in enumerate(blocks_heard, start=1)}} for blocks_heard in received]
    build = ScheduleBuilder(members, ((0, 1),), first_slots=[len(have) for have in held])
    exchange = NodeExchange(build, aligned_tree(blocks), held=held)
    for round_, messages in enumerate(gossip, start=1):
        exchange.round(round_, messages, everywhere=True)
    return _template(build, exchange, 1 + len(gossip))


class _Rails:
    """Writes the columns of the schedule, phase by phase."""

    def __init__(self, groups: Groups, ports: int) -> None:
        self.groups, self.ports = groups, ports
        self.first = np.array(groups.starts[:-1], dtype=np.int64)
        self.sorts = np.array(groups.sorts, dtype=np.int64)
        self.rail_count = len(groups.members_on[0])
        ranks = groups.starts[-1]
        self.total = np.zeros(ranks, dtype=np.int64)
        """Slot of the value that each rank has."""
        self.next = np.ones(ranks, dtype=np.int64)
        """First free slot of each rank."""
        self.transfers: list[Ints] = []
        self.combines: list[Ints] = []
        self.operands: list[Ints] = []
        """Operand slots, a block for each entry of `folds`."""
        self.pending: list[tuple[Ints, Ints, int]] = []
        """(ranks, slot of their result, slots taken) of the phase that is being written."""

    def schedule(self, radices: Sequence[int], rows: int) -> Schedule:
        """Write all phases and return the schedule."""
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
            transfers=np.concatenate([np.zeros((0, 7), np.int64), *self.transfers]),
            combines=np.concatenate([np.zeros((0, 4), np.int64), *self.combines]),
            operands=self.operands,
        )

    def _join(self, blocks: Sequence[tuple[int, ...]], round_: int) -> int:
        """Write one level; `blocks` has the edges of each set of blocks that become one. Return the round after."""
        groups_by_template: dict[tuple[Any, ...], list[tuple[int, list[int]]]] = {}
        for count in sorted({len(edges) - 1 for edges in blocks} - {1}):
            sets = [edges for edges in blocks if len(edges) - 1 == count]
            received = self._assigned(sets, count)
            for edges in sets:
                for own, (low, high) in enumerate(pairwise(edges)):
                    for group in range(low, high):
                        by_member, senders = self._by_member(group, received[group])
                        key = len(by_member), self.groups.members_on[group], own, count, by_member
                        groups_by_template.setdefault(key, []).append((group, senders))
        after = round_
        for key, members_of in groups_by_template.items():
            where = np.array([group for group, _ in members_of])
            self._receive(where, np.array([senders for _, senders in members_of]), key[-1], round_)
            after = max(after, self._copy(_joining_template(*key, self.ports), where, round_))
        self._settle()
        return after

    def _assigned(self, sets: Sequence[tuple[int, ...]], count: int) -> list[list[RailAssignment]]:
        """Return what every group receives, in sets of `count` blocks."""
        demands = [demand for edges in sets for demand in _demands(edges, self.rail_count, self.ports)]
        return assign_rails(
            demands, self.groups.members_on, self.ports, rail_sets(self.rail_count, count - 1, self.ports)
        )

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

    def _receive(self, where: Ints, senders: Ints, by_member: Sequence[Sequence[int]], round_: int) -> None:
        """Write messages between groups, the same for all groups of `where`; senders are int64 [groups, messages]."""
        places = [(member, slot) for member, blocks in enumerate(by_member) for slot in range(len(blocks))]
        for src, (member, slot) in zip(senders.T, places, strict=True):
            dst = self.first[where] + member
            self._move(round_, src, self.total[src], dst, self.next[dst] + slot)

    def _copy(self, template: _Template, where: Ints, round_: int) -> int:
        """Write the messages and folds of a template for these groups; return the round after."""
        first = self.first[where][:, None]

        def slots(members: Ints, slot: Ints) -> Ints:
            ranks = first + members
            values: Ints = np.where(slot == 0, self.total[ranks], self.next[ranks] + slot - 1)
            return values

        t = template.transfers
        src, dst = first + t[:, 1], first + t[:, 3]
        rounds = np.broadcast_to(round_ + t[:, 0], src.shape)
        self._move(rounds, src, slots(t[:, 1], t[:, 2]), dst, slots(t[:, 3], t[:, 4]))
        for (turn, member, out_slot), operands in zip(template.combines.tolist(), template.operands, strict=True):
            at = np.full(1, member)
            out = slots(at, np.full(1, out_slot)).ravel()
            columns = np.broadcast_arrays(round_ + turn, first.ravel() + member, out, 0)
            self.combines.append(np.stack(columns, axis=1))
            self.operands.append(slots(np.full(len(operands), member), np.array(operands)))
        for member, (result, used) in enumerate(zip(template.result, template.used, strict=True)):
            outcome = slots(np.full(1, member), np.full(1, result)).ravel()
            self.pending.append((first.ravel() + member, outcome, used - 1))
        return round_ + template.rounds

    def _settle(self) -> None:
        """End a phase: its results become the values of the ranks."""
        for ranks, total, used in self.pending:
            self.total[ranks] = total
            self.next[ranks] += used
        self.pending.clear()

    def _move(self, round_: Ints | int, src: Ints, src_slot: Ints, dst: Ints, dst_slot: Ints) -> None:
        columns = np.broadcast_arrays(round_, src, src_slot, dst, dst_slot, 0, NO_PATH)
        self.transfers.append(np.stack([column.ravel() for column in columns], axis=1))


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
