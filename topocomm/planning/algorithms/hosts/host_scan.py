"""Scan over equal hosts, written as columns: the values of the hosts before arrive over rails, in few hops.

First all members fold the value of their host, and each its prefix in it. Then host g, which has the value W of hosts
g-w+1..g and the value X of those without itself, receives from hosts g-w, g-2w, ...: every member from another of them
on its own rail, and then the members exchange what they received (Hillis, Steele 1986, on the rails of `rails.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip_schedule import Gossip, NodeExchange, scan_messages
from topocomm.planning.algorithms.hosts.rail_assignment import rail_sets, spread_inside
from topocomm.planning.algorithms.hosts.rank_groups import Groups, Inside
from topocomm.planning.schedule.range_tree import aligned_tree
from topocomm.planning.schedule.schedule import NO_PATH, Schedule
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder, schedule_of_columns

Ints = NDArray[np.int64]
SourceRows = tuple[tuple[int, ...], ...]
NOTHING = -1
"""Slot of a value that does not exist."""


def shift_scan(groups: Groups, radices: Sequence[int], rows: int, ports: int = 1, *, own: bool) -> Schedule:
    """Return a scan: rank r ends with the fold of the values of ranks 0..r (`own`), or 0..r-1, in rank order.

    Args:
        groups: Equal groups.
        radices: Each from 2 to members * ports + 1; they multiply to at least the number of groups.
        rows: Rows of the payload.
        ports: Messages that a member receives at once (K).
        own: Whether a rank's own value belongs to its result.
    """
    (inside,) = groups.insides
    shift = _Shift(len(groups.sorts), inside.members, ports)
    shift.inside(inside, own)
    known = 1
    for radix in radices:
        shift.receive(known, radix)
        known *= radix
    return shift.finish(rows)


class _Shift:
    """Writes the columns of the schedule, level by level.

    Attributes:
        so_far: Slot of W, by host and member.
        before: Slot of X; NOTHING where a host has no values of hosts before it.
        prefix: Slot of the prefix of each member in its host; NOTHING where it is empty.
        free: First free slot.
        round: The next round.
    """

    def __init__(self, hosts: int, members: int, ports: int) -> None:
        self.hosts, self.members, self.ports = hosts, members, ports
        self.so_far = np.zeros((hosts, members), dtype=np.int64)
        self.before, self.prefix = self.so_far + NOTHING, self.so_far + NOTHING
        self.free = self.so_far + 1
        self.round = 0
        self.transfers = [np.zeros((0, 7), np.int64)]
        self.combines = [np.zeros((0, 4), np.int64)]
        self.operands: list[Ints] = []

    def inside(self, inside: Inside, own: bool) -> None:
        """Write the folds inside hosts: every member gets the value of its host and its prefix."""
        build = ScheduleBuilder(self.members, ((0, 1),))
        exchange = NodeExchange(build, inside.tree)
        for round_, messages in enumerate(scan_messages(inside.gossip, self.members, own)):
            exchange.round_before(round_, messages)
        for member in range(self.members):
            self.so_far[:, member] = exchange.value(member)
            if member + own:
                self.prefix[:, member] = exchange.value_before(member, member + own)
        self._copy(build, np.arange(self.hosts))
        self.free[:] = [build.slots_used(member) for member in range(self.members)]
        self.round = len(inside.gossip)

    def receive(self, known: int, radix: int) -> None:
        """Write a level: every host receives from up to radix - 1 hosts before it, at multiples of `known`."""
        most = min(radix - 1, (self.hosts - 1) // known)
        if most < 1:
            return
        received, gossip = _receiving(self.members, most, self.ports)
        last = self.round + len(gossip)
        so_far, before, free = self.so_far.copy(), self.before.copy(), self.free.copy()
        for count in range(1, most + 1):
            every = np.arange(self.hosts)
            where = every[np.minimum(every // known, most) == count]
            steps = [[other + 1 for other in others if other < count] for others in received]
            for member, apart in enumerate(steps):
                for turn, step in enumerate(apart):
                    src, arrives = where - step * known, free[where, member] + turn
                    ends = self._rank(src, member), self._rank(where, member)
                    self._move(self.round, ends[0], so_far[src, member], ends[1], arrives)
            held = [{count - step: turn for turn, step in enumerate(apart, start=1)} for apart in steps]
            build = ScheduleBuilder(self.members, ((0, 1),), first_slots=[1 + len(have) for have in held])
            exchange = NodeExchange(build, aligned_tree(count), held=held)
            for round_, messages in enumerate(gossip, start=1):
                exchange.round(round_, messages, everywhere=True)
            slots_of = [exchange.value(member) for member in range(self.members)]
            self._copy(build, where)
            for member, slot in enumerate(slots_of):
                arrived = free[where, member] + slot - 1
                self.free[where, member] += build.slots_used(member) - 1
                self.so_far[where, member] = self._fold(last, where, member, (arrived, so_far[where, member]))
                some = before[where, member] != NOTHING
                self.before[where, member] = arrived
                later = where[some]
                self.before[later, member] = self._fold(last, later, member, (arrived[some], before[later, member]))
        self.round = last + 1

    def finish(self, rows: int) -> Schedule:
        """Write the results, the hosts before and the prefix in the host, and return the schedule."""
        outputs = []
        for member in range(self.members):
            slot = np.where(self.before[:, member] == NOTHING, self.prefix[:, member], self.before[:, member])
            both = np.flatnonzero((self.before[:, member] != NOTHING) & (self.prefix[:, member] != NOTHING))
            parts = self.before[both, member], self.prefix[both, member]
            slot[both] = self._fold(self.round - 1, both, member, parts)
            receivers = np.flatnonzero(slot != NOTHING)
            outputs.append(np.stack([self._rank(receivers, member), slot[receivers], 0 * receivers], axis=1))
        ranks = np.arange(self.hosts * self.members)
        every = np.concatenate(outputs)
        return schedule_of_columns(
            len(ranks),
            ((0, rows),),
            inputs=np.stack([ranks, 0 * ranks, ranks], axis=1),
            outputs=every[np.argsort(every[:, 0], kind="stable")],
            transfers=np.concatenate(self.transfers),
            combines=np.concatenate(self.combines),
            operands=self.operands,
        )

    def _rank(self, hosts: Ints, member: int) -> Ints:
        return hosts * self.members + member

    def _copy(self, build: ScheduleBuilder, where: Ints) -> None:
        """Write what a builder has for one host in all these hosts; slot 0 stays, others count from the first free."""

        def slots(member: int, slot: int) -> Ints:
            return self.free[where, member] + slot - 1 if slot else 0 * where

        for t in build.transfers:
            src, dst = self._rank(where, t.src), self._rank(where, t.dst)
            self._move(self.round + t.round, src, slots(t.src, t.src_slot), dst, slots(t.dst, t.dst_slot))
        for c in build.combines:
            operands = [slots(c.rank, slot) for slot in c.operands]
            self._write(self.round + c.round, self._rank(where, c.rank), slots(c.rank, c.out_slot), operands)

    def _fold(self, round_: int, where: Ints, member: int, operands: Sequence[Ints]) -> Ints:
        """Fold values of a member in these hosts; return the slot."""
        out: Ints = self.free[where, member].copy()
        self.free[where, member] += 1
        self._write(round_, self._rank(where, member), out, operands)
        return out

    def _move(self, round_: int, src: Ints, src_slot: Ints, dst: Ints, dst_slot: Ints) -> None:
        columns = np.broadcast_arrays(round_, src, src_slot, dst, dst_slot, 0, NO_PATH)
        self.transfers.append(np.stack(columns, axis=1))

    def _write(self, round_: int, rank: Ints, out: Ints, operands: Sequence[Ints]) -> None:
        self.combines.append(np.stack(np.broadcast_arrays(round_, rank, out, 0), axis=1))
        self.operands.append(np.stack(operands, axis=1))


def _receiving(members: int, others: int, ports: int) -> tuple[SourceRows, Gossip]:
    """Return (the hosts, from 0 on, that each member receives from, the gossip of the members after that)."""
    received: list[tuple[int, ...]] = [()] * members
    for rails in rail_sets(members, others, ports):
        for place, member in enumerate(rails):
            received[member] = tuple(range(place, others, len(rails)))
    by_member = tuple(received)
    return by_member, spread_inside(members, tuple(range(members)), by_member, others, ports)
