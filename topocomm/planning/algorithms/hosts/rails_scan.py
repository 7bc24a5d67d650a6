"""Scan and exscan of long values over groups of ranks in rank order: every part is folded where it is collected.

Inside every group each rank gets one part of all values. Its fold over the group goes, in pieces, to one group each on
the rail, which sends every group the fold of those before it. Then the rank has what its members need, in rank order. A
rank sends and receives what it does in an allreduce by parts, in as many messages in a row, where a scan by doubling
sends its value ceil(log2 P) times. `chained`, a group hears what comes before it from the group before and passes it
on: half the bytes between groups, in a row of messages, so in slices.
"""

from __future__ import annotations

import numpy as np

from topocomm.planning.algorithms.hosts.rails_parts import Ints, RailsInParts, common_rails
from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.schedule.schedule import Schedule, split_rows

NO_SLOT = -1
"""Mark of what is not there: nothing comes before the first rank."""


def rails_scan(groups: Groups, rows: int, most_pieces: int, *, own: bool, chained: bool = False) -> Schedule:
    """Return the scan, or without `own` the exscan; every rank is on a rail (`fits_parts`), in rank order.

    Parts have `most_pieces` pieces at most; where there are more groups, those that own none send and receive less.
    """
    rails, pieces = len(common_rails(groups)), 1 if chained else min(groups.count, most_pieces)
    chunks = [(first + low, n) for first, part in split_rows(rows, rails) for low, n in split_rows(part, pieces)]
    return _RailsScan(groups, chunks, pieces).scan(own=own, chained=chained)


class _RailsScan(RailsInParts):
    """Slots: 0 the own value, then those of members, their fold, those of groups, folds before groups, and results."""

    def __init__(self, groups: Groups, chunks: list[tuple[int, int]], pieces: int) -> None:
        super().__init__(groups, chunks, pieces, None, groups.count)
        self.count = len(self.first)
        self.owner = np.flatnonzero(self.piece_of >= 0)
        """The group that owns each piece."""
        self.total = 1 + self.most if self.most > 1 else 0
        self.from_group = 2 + self.most
        self.before = self.from_group + self.count
        self.heard = self.before + self.count
        self.own_result = self.heard + 1
        self.result = self.own_result + self.most

    def scan(self, *, own: bool, chained: bool) -> Schedule:
        """Write all phases."""
        inside = int(self.most > 1)
        if inside:
            self._flat_in(np.arange(self.count), self.most, np.arange(self.most))
        if chained:
            self._pass_on(inside)
        else:
            self._tell_owners(inside)
            self._fold_before(inside)
            self._tell_groups(inside + 1)
        last = inside + max(self.count - 2, 0) if chained else inside + 1
        slots = self._fold_members(last)
        if not own:  # that of the member before, and what came before the group for its first
            first = np.broadcast_to(self._before_slots()[:, None, None], slots[:, :, :1].shape)
            slots = np.concatenate([first, slots[:, :, :-1]], axis=2)
        return self.schedule(self._tell_members(last + 1, slots))

    def _pass_on(self, round_: int) -> None:
        """Every group sends the next one what it heard with its own."""
        chunks = self.chunk(self.rails[:, None], self.pieces)
        for group in range(1, self.count):
            sent = self.before if group > 1 else self.total
            self.send(
                round_ + group - 1,
                self.on_rail[group - 1, :, None],
                sent,
                self.on_rail[group, :, None],
                self.heard,
                chunks,
            )
            if group < self.count - 1:
                self.combine(round_ + group - 1, self.on_rail[group, :, None], self.before, chunks)
                self.operands.append(np.tile([self.heard, self.total], (chunks.size, 1)))

    def _tell_owners(self, round_: int) -> None:
        """Every group sends the group that owns a piece its fold of it."""
        for step in range(1, self.count):
            group = (self.owner + step) % self.count
            where = self.on_rail[group].T, self.total, self.on_rail[self.owner].T, self.from_group + group
            self.send(round_, *where, self.chunk(self.rails[:, None], self.pieces))

    def _fold_before(self, round_: int) -> None:
        """Owners fold what comes before each group: one more value each."""
        chunks = self.chunk(self.rails[:, None], self.pieces)
        for group in range(2, self.count):
            earlier = self._at_owner(np.array(group - 1), self.owner)
            last = np.where(self.owner == group - 1, self.total, self.from_group + group - 1)
            self.combine(round_, self.on_rail[self.owner].T, self.before + group, chunks)
            self.operands.append(np.tile(np.stack([earlier, last], axis=1), (len(self.rails), 1)))

    def _at_owner(self, group: Ints, owner: Ints) -> Ints:
        """Return the slot in which an owner has the fold before a group that is not the first."""
        first = np.where(owner == 0, self.total, self.from_group)
        slots: Ints = np.where(group == 1, first, self.before + group)
        return slots

    def _tell_groups(self, round_: int) -> None:
        """Owners send every group but the first what comes before it."""
        for step in range(1, self.count):
            group = (self.owner + step) % self.count
            told = group > 0
            owner, group, piece = self.owner[told], group[told], self.pieces[told]
            where = self.on_rail[owner].T, self._at_owner(group, owner), self.on_rail[group].T, self.heard
            self.send(round_, *where, self.chunk(self.rails[:, None], piece))

    def _before_slots(self) -> Ints:
        """Return the slot of what comes before each group, [groups, pieces]; NO_SLOT before the first."""
        group = np.arange(self.count)[:, None]
        slots: Ints = np.where(group == self.owner, self._at_owner(group, self.owner), self.heard)
        slots[0] = NO_SLOT
        return slots

    def _fold_members(self, round_: int) -> Ints:
        """Ranks fold what their members get of their parts; returns these slots, [groups, rails, members, pieces]."""
        owner = self.on_rail - self.first[:, None]
        slots = np.empty((self.count, len(self.rails), self.most, len(self.pieces)), np.int64)
        earlier = np.broadcast_to(self._before_slots()[:, None], slots[:, :, 0].shape)
        for member in range(self.most):
            own = np.where(owner == member, 0, 1 + member)[:, :, None]
            own = np.broadcast_to(own, earlier.shape)
            folds = earlier != NO_SLOT
            group, rail, piece = np.nonzero(folds)
            self.combine(round_, self.on_rail[group, rail], self.own_result + member, self.chunk(rail, piece))
            self.operands.append(np.stack([earlier[folds], own[folds]], axis=1))
            earlier = slots[:, :, member] = np.where(folds, self.own_result + member, own)
        return slots

    def _tell_members(self, round_: int, slots: Ints) -> Ints:
        """Ranks send their members the results of their parts; returns the outputs (rank, slot, chunk)."""
        ends = []
        for step in range(self.most):
            member = (self.on_rail - self.first[:, None] + step) % self.most
            held = np.take_along_axis(slots, member[:, :, None, None], axis=2)[:, :, 0]
            group, rail, piece = np.nonzero(held != NO_SLOT)
            held, chunks = held[group, rail, piece], self.chunk(rail, piece)
            rank = self.first[group] + member[group, rail]
            if step:
                self.send(round_, self.on_rail[group, rail], held, rank, self.result, chunks)
                held = np.full(len(held), self.result)
            ends.append(np.stack([rank, held, chunks], axis=1))
        return np.concatenate(ends)
