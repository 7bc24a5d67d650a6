"""Scan over hosts that are alike, written as columns: what the hosts before have comes by rail, in few hops.

Inside every host all members fold the host's value, and each its prefix of it. Then host g, which knows the value W of
hosts g-w+1..g and, apart from it, X of those without itself, hears from hosts g-w, g-2w, ... as far as there are any:
every member on its own rail from another of them, after which the members tell each other (Hillis, Steele 1986, in the
rails of `rails.py`). A host tells as many as it hears, whatever the number of hosts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip_schedule import Gossip, Traders, told_in_order
from topocomm.planning.algorithms.hosts.rail_assignment import rail_sets, told_inside
from topocomm.planning.algorithms.hosts.rank_groups import Groups, Inside
from topocomm.planning.schedule.range_tree import aligned_tree
from topocomm.planning.schedule.schedule import NO_PATH, Schedule
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder, schedule_of_columns

Ints = NDArray[np.int64]
SourceRows = tuple[tuple[int, ...], ...]
NOTHING = -1
"""Slot of a value that is not there."""


def shift_scan(groups: Groups, radices: Sequence[int], rows: int, ports: int = 1, *, own: bool) -> Schedule:
    """Rank r ends with the fold of the values of ranks 0..r (`own`), or 0..r-1, in rank order.

    Args:
        groups: Of one sort.
        radices: Each from 2 to members * ports + 1; they multiply to at least the number of groups.
        rows: Of the payload.
        ports: K, messages that a member hears at once.
        own: Whether a rank's own value belongs to its result.
    """
    (inside,) = groups.insides
    shift = _Shift(len(groups.sorts), inside.members, ports)
    shift.inside(inside, own)
    known = 1
    for radix in radices:
        shift.hear(known, radix)
        known *= radix
    return shift.finish(rows)


class _Shift:
    """Columns of the schedule, level by level.

    Attributes:
        so_far: Slot of W, by host and member.
        before: Slot of X; NOTHING where a host knows of none before it.
        prefix: Slot of what the members up to this one, or before it, have in its host.
        free: First slot that is not taken.
        round: The next one.
    """

    def __init__(self, hosts: int, members: int, ports: int) -> None:
        self.hosts, self.members, self.ports = hosts, members, ports
        self.so_far = np.zeros((hosts, members), dtype=np.int64)
        self.before, self.prefix = self.so_far + NOTHING, self.so_far + NOTHING
        self.free = self.so_far + 1
        self.round = 0
        self.moves = [np.zeros((0, 7), np.int64)]
        self.folds = [np.zeros((0, 4), np.int64)]
        self.operands: list[Ints] = []

    def inside(self, inside: Inside, own: bool) -> None:
        """Every member gets its host's value and its prefix."""
        build = ScheduleBuilder(self.members, ((0, 1),))
        traders = Traders(build, inside.tree)
        for round_, messages in enumerate(told_in_order(inside.gossip, self.members, own)):
            traders.round_before(round_, messages)
        for member in range(self.members):
            self.so_far[:, member] = traders.value(member)
            if member + own:
                self.prefix[:, member] = traders.value_before(member, member + own)
        self._copy(build, np.arange(self.hosts))
        self.free[:] = [build.slots_used(member) for member in range(self.members)]
        self.round = len(inside.gossip)

    def hear(self, known: int, radix: int) -> None:
        """Every host hears from up to radix - 1 hosts before it, each `known` before the next."""
        most = min(radix - 1, (self.hosts - 1) // known)
        if most < 1:
            return
        heard, gossip = _heard(self.members, most, self.ports)
        last = self.round + len(gossip)
        so_far, before, free = self.so_far.copy(), self.before.copy(), self.free.copy()
        for count in range(1, most + 1):
            every = np.arange(self.hosts)
            where = every[np.minimum(every // known, most) == count]
            steps = [[other + 1 for other in others if other < count] for others in heard]
            for member, apart in enumerate(steps):
                for turn, step in enumerate(apart):
                    src, arrives = where - step * known, free[where, member] + turn
                    ends = self._rank(src, member), self._rank(where, member)
                    self._move(self.round, ends[0], so_far[src, member], ends[1], arrives)
            held = [{count - step: turn for turn, step in enumerate(apart, start=1)} for apart in steps]
            build = ScheduleBuilder(self.members, ((0, 1),), first_slots=[1 + len(have) for have in held])
            traders = Traders(build, aligned_tree(count), held=held)
            for round_, messages in enumerate(gossip, start=1):
                traders.round(round_, messages, everywhere=True)
            found = [traders.value(member) for member in range(self.members)]
            self._copy(build, where)
            for member, slot in enumerate(found):
                arrived = free[where, member] + slot - 1
                self.free[where, member] += build.slots_used(member) - 1
                self.so_far[where, member] = self._fold(last, where, member, (arrived, so_far[where, member]))
                some = before[where, member] != NOTHING
                self.before[where, member] = arrived
                later = where[some]
                self.before[later, member] = self._fold(last, later, member, (arrived[some], before[later, member]))
        self.round = last + 1

    def finish(self, rows: int) -> Schedule:
        """The results: what comes before the host, then what comes before the member in it."""
        outputs = []
        for member in range(self.members):
            slot = np.where(self.before[:, member] == NOTHING, self.prefix[:, member], self.before[:, member])
            both = np.flatnonzero((self.before[:, member] != NOTHING) & (self.prefix[:, member] != NOTHING))
            parts = self.before[both, member], self.prefix[both, member]
            slot[both] = self._fold(self.round - 1, both, member, parts)
            there = np.flatnonzero(slot != NOTHING)
            outputs.append(np.stack([self._rank(there, member), slot[there], 0 * there], axis=1))
        ranks = np.arange(self.hosts * self.members)
        every = np.concatenate(outputs)
        return schedule_of_columns(
            len(ranks),
            ((0, rows),),
            inputs=np.stack([ranks, 0 * ranks, ranks], axis=1),
            outputs=every[np.argsort(every[:, 0], kind="stable")],
            transfers=np.concatenate(self.moves),
            combines=np.concatenate(self.folds),
            operands=self.operands,
        )

    def _rank(self, hosts: Ints, member: int) -> Ints:
        return hosts * self.members + member

    def _copy(self, build: ScheduleBuilder, where: Ints) -> None:
        """What the members of one host do, in all these; slot 0 stays, others are numbered from the first free one."""

        def slots(member: int, slot: int) -> Ints:
            return self.free[where, member] + slot - 1 if slot else 0 * where

        for t in build.transfers:
            src, dst = self._rank(where, t.src), self._rank(where, t.dst)
            self._move(self.round + t.round, src, slots(t.src, t.src_slot), dst, slots(t.dst, t.dst_slot))
        for c in build.combines:
            operands = [slots(c.rank, slot) for slot in c.operands]
            self._write(self.round + c.round, self._rank(where, c.rank), slots(c.rank, c.out_slot), operands)

    def _fold(self, round_: int, where: Ints, member: int, operands: Sequence[Ints]) -> Ints:
        """Fold values of a member in these hosts; returns the slot."""
        out: Ints = self.free[where, member].copy()
        self.free[where, member] += 1
        self._write(round_, self._rank(where, member), out, operands)
        return out

    def _move(self, round_: int, src: Ints, src_slot: Ints, dst: Ints, dst_slot: Ints) -> None:
        columns = np.broadcast_arrays(round_, src, src_slot, dst, dst_slot, 0, NO_PATH)
        self.moves.append(np.stack(columns, axis=1))

    def _write(self, round_: int, rank: Ints, out: Ints, operands: Sequence[Ints]) -> None:
        self.folds.append(np.stack(np.broadcast_arrays(round_, rank, out, 0), axis=1))
        self.operands.append(np.stack(operands, axis=1))


def _heard(members: int, others: int, ports: int) -> tuple[SourceRows, Gossip]:
    """(which of the others, from 0 on, each member hears from, what members then tell each other)."""
    heard: list[tuple[int, ...]] = [()] * members
    for rails in rail_sets(members, others, ports):
        for place, member in enumerate(rails):
            heard[member] = tuple(range(place, others, len(rails)))
    found = tuple(heard)
    return found, told_inside(members, tuple(range(members)), found, others, ports)
