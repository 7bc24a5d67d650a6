"""Allreduce of long values over groups of ranks: no rank sends its value whole between groups.

Inside every group each rank on a rail that no group lacks gets a part of the value: a reduce-scatter. The ranks of a
rail then reduce-scatter their part over the groups and gather it again, by Träff's circulant halving, which serves any
number of groups in ceil(log2) rounds (arXiv 2410.14234). Last, members gather the parts. Of H groups and R rails a rank
on a rail sends 2 (H-1)/H of 1/R of the value between groups, the least there is.

A part is cut into as many pieces as groups, for one to own each; into fewer where there are more groups, which send up
to log2(groups / pieces) pieces more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.schedule.schedule import NO_PATH, Schedule, split_rows
from topocomm.planning.schedule.schedule_builder import schedule_of_columns

Ints = NDArray[np.int64]


def common_rails(groups: Groups) -> list[int]:
    """Return the rails that no group lacks."""
    return [rail for rail, members in enumerate(zip(*groups.members_on, strict=True)) if min(members) >= 0]


def rails_halving_allreduce(
    groups: Groups, rows: int, most_pieces: int, rings: Sequence[Sequence[int]] | None = None
) -> Schedule:
    """Return the allreduce for a commutative operator; groups have a common rail, parts `most_pieces` pieces at most.

    Inside groups everybody sends to each owner at once; with `rings`, for each sort of group the order of its members,
    parts travel from neighbour to neighbour instead.
    """
    return _RailsHalving(groups, rows, most_pieces, rings).schedule()


def transfer_count(groups: Groups, most_pieces: int) -> int:
    """Return how many transfers that schedule has at most."""
    pieces, members = min(groups.count, most_pieces), max(inside.members for inside in groups.insides)
    between = len(common_rails(groups)) * (pieces + (groups.count // pieces).bit_length())
    return 2 * groups.count * (members * (members - 1) * pieces + between)


class _RailsHalving:
    """Columns by phase. Slots: 0 the own value, then those inside, two a round between groups, and the result."""

    def __init__(self, groups: Groups, rows: int, most_pieces: int, rings: Sequence[Sequence[int]] | None) -> None:
        self.first = np.array(groups.starts[:-1], dtype=np.int64)
        self.sorts, self.rings = np.array(groups.sorts), rings
        self.sizes = np.diff(np.array(groups.starts))
        self.ranks, self.most = groups.starts[-1], int(self.sizes.max())
        rails = common_rails(groups)
        self.rails = np.arange(len(rails))
        members = np.array(groups.members_on, dtype=np.int64)[:, rails]
        self.on_rail = self.first[:, None] + members
        """The rank of each group on each rail."""
        self.part = np.full(self.ranks, -1)
        """Of each rank, the part that it gets; -1: none."""
        self.part[self.on_rail] = self.rails
        count = len(self.first)
        self.pieces = np.arange(min(count, most_pieces))
        self.piece_of = np.full(count, -1)
        """Of each group, the piece that it owns; -1: none."""
        self.piece_of[self.pieces * count // len(self.pieces)] = self.pieces
        parts = split_rows(rows, len(rails))
        self.chunks = [(first + low, n) for first, own in parts for low, n in split_rows(own, len(self.pieces))]
        self.inside_rounds = self.most - 1 if rings else min(1, self.most - 1)
        self.transfers: list[Ints] = []
        self.combines: list[Ints] = []
        self.operands: list[Ints] = []

    def schedule(self) -> Schedule:
        """Write all phases."""
        held = np.zeros((len(self.first), len(self.pieces)), np.int64)
        for where, size, order in self._alike():
            held[where] = (self._ring_in if self.rings else self._flat_in)(where, size, order)
        skips = [len(self.first)]
        while skips[-1] > 1:
            skips.append((skips[-1] + 1) // 2)
        round_, result = self.inside_rounds, self.most + 2 * len(skips)
        for number, (stop, skip) in enumerate(pairwise(skips)):
            group, other, piece = self._between(stop, skip)
            slot = self.most + 2 + 2 * number
            self._move(round_ + number, group, held[group, piece], other, slot, piece)
            self._fold(round_ + number, other, piece, slot + 1, np.stack([held[other, piece], 0 * other + slot], 1))
            held[other, piece] = slot + 1
        round_ += len(skips) - 1
        for number, (skip, stop) in enumerate(pairwise(reversed(skips))):
            other, group, piece = self._between(stop, skip)
            self._move(round_ + number, group, held[group, piece], other, result, piece)
            held[other, piece] = result
        for where, size, order in self._alike():
            (self._ring_out if self.rings else self._flat_out)(
                round_ + len(skips) - 1, (where, size, order), held[where], result
            )
        slots = np.full((self.ranks, len(self.rails), len(self.pieces)), result)
        slots[self.on_rail, self.rails] = held[:, None, :]
        ranks, chunks = np.indices((self.ranks, len(self.chunks))).reshape(2, -1)
        return schedule_of_columns(
            self.ranks,
            self.chunks,
            outputs=np.stack([ranks, slots.ravel(), chunks], 1),
            transfers=np.concatenate([np.zeros((0, 7), np.int64), *self.transfers]),
            combines=np.concatenate([np.zeros((0, 4), np.int64), *self.combines]),
            operands=self.operands,
        )

    def _alike(self) -> Iterator[tuple[Ints, int, Ints]]:
        """(groups, their members, order of these in the ring), for each sort of groups of several members."""
        for sort in np.unique(self.sorts).tolist():
            where = np.flatnonzero(self.sorts == sort)
            size = int(self.sizes[where[0]])
            if size > 1:
                yield where, size, np.array(self.rings[sort]) if self.rings else np.arange(size)

    def _between(self, stop: int, skip: int) -> tuple[Ints, Ints, Ints]:
        """(group that sends, the one `skip` further, piece) of the round that halves ranges of `stop` groups."""
        group, ahead = (x.ravel() for x in np.indices((len(self.first), stop - skip)))
        piece = self.piece_of[(group + ahead + skip) % len(self.first)]
        sends = piece >= 0
        return group[sends], (group[sends] + skip) % len(self.first), piece[sends]

    def _move(self, round_: int, group: Ints, slot: Ints, other: Ints, to_slot: int, piece: Ints) -> None:
        """Send pieces between groups, on every rail."""
        chunk = self._chunk(self.rails[:, None], piece)
        self._send(round_, self.on_rail[group].T, slot, self.on_rail[other].T, to_slot, chunk)

    def _fold(self, round_: int, group: Ints, piece: Ints, out: int, operands: Ints) -> None:
        """Fold pieces of groups, on every rail."""
        self._combine(round_, self.on_rail[group].T, out, self._chunk(self.rails[:, None], piece))
        self.operands.append(np.tile(operands, (len(self.rails), 1)))

    def _flat_in(self, where: Ints, size: int, order: Ints) -> int:
        """Members send each owner its part; returns the slot in which owners have the sum of the group."""
        first = self.first[where][:, None]
        for step in range(1, size):
            src, dst = (first + order).ravel(), (first + (order + step) % size).ravel()
            gets = self.part[dst] >= 0
            slots = 1 + np.tile(order, len(where))[gets]
            chunk = self._chunk(self.part[dst[gets], None], self.pieces)
            self._send(0, src[gets, None], 0, dst[gets, None], slots[:, None], chunk)
        owners, folded = self.on_rail[where], 1 + self.most
        operands = np.where(order == (owners - first)[:, :, None], 0, 1 + order)
        self._combine(0, owners[:, :, None], folded, self._chunk(self.rails[:, None], self.pieces))
        self.operands.append(np.repeat(operands.reshape(-1, size), len(self.pieces), 0))
        return folded

    def _flat_out(self, round_: int, alike: tuple[Ints, int, Ints], held: Ints, result: int) -> None:
        """Owners send the results of their parts to the other members."""
        where, size, _ = alike
        owners, first = self.on_rail[where], self.first[where][:, None]
        for step in range(1, size):
            dst = first + (owners - first + step) % size
            chunk = self._chunk(self.rails[:, None], self.pieces)
            self._send(round_, owners[:, :, None], held[:, None, :], dst[:, :, None], result, chunk)

    def _ring_in(self, where: Ints, size: int, order: Ints) -> int:
        """Parts travel once around to their owners and are folded on the way; as `_flat_in`."""
        first, chunk, place = self._on_ring(where, size, order)
        for step in range(size - 1):
            src, dst = (first + order[(place + 1 + step + ahead) % size][:, :, None] for ahead in (0, 1))
            self._send(step, src, 2 * (step > 0), dst, 1, chunk)
            self._combine(step, dst, 2, chunk)
            self.operands.append(np.tile([0, 1], (dst.size * len(self.pieces), 1)))
        return 2

    def _ring_out(self, round_: int, alike: tuple[Ints, int, Ints], held: Ints, result: int) -> None:
        """Results travel around from their owners; as `_flat_out`."""
        where, size, order = alike
        first, chunk, place = self._on_ring(where, size, order)
        for step in range(size - 1):
            src, dst = (first + order[(place + step + ahead) % size][:, :, None] for ahead in (0, 1))
            self._send(round_ + step, src, held[:, None, :] if step == 0 else result, dst, result, chunk)

    def _on_ring(self, where: Ints, size: int, order: Ints) -> tuple[Ints, Ints, Ints]:
        """(first ranks [groups, 1, 1], chunks [1, rails, pieces], place of each owner on its ring [groups, rails])."""
        places = np.empty(size, np.int64)
        places[order] = np.arange(size)
        first = self.first[where]
        chunk = self._chunk(self.rails[:, None], self.pieces)
        return first[:, None, None], chunk, places[self.on_rail[where] - first[:, None]]

    def _chunk(self, part: Ints, piece: Ints) -> Ints:
        return part * len(self.pieces) + piece

    def _send(self, round_: int, *columns: Ints | int) -> None:
        """Write transfers: source, its slot, destination, its slot, chunk."""
        self.transfers.append(np.stack(np.broadcast_arrays(round_, *columns, NO_PATH), -1).reshape(-1, 7))

    def _combine(self, round_: int, *columns: Ints | int) -> None:
        """Write combines: rank, slot, chunk."""
        self.combines.append(np.stack(np.broadcast_arrays(round_, *columns), -1).reshape(-1, 4))
