"""Collectives of long values over groups of ranks: no rank sends its value whole between groups.

Inside every group each rank on a rail that no group lacks gets a part of the value: a reduce-scatter. The ranks of a
rail then reduce-scatter their part over the groups and gather it again, by Träff's circulant halving, which serves any
number of groups in ceil(log2) rounds (arXiv 2410.14234), or in fewer where each sends to several at once. Last, members
gather the parts. Of H groups and R rails a rank on a rail sends 2 (H-1)/H of 1/R of the value between groups, the
least there is. The first half is a reduce-scatter over all ranks, the second an allgather.

A part is cut into as many pieces as groups, for one to own each; into fewer where there are more groups, which send up
to log2(groups / pieces) pieces more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.schedule.schedule import NO_PATH, IntTable, Schedule, split_rows
from topocomm.planning.schedule.schedule_builder import schedule_of_columns, table_of

Ints = NDArray[np.int64]


def common_rails(groups: Groups) -> list[int]:
    """Return the rails that no group lacks."""
    return [rail for rail, members in enumerate(zip(*groups.members_on, strict=True)) if min(members) >= 0]


Rings = Sequence[Sequence[int]] | None
"""For each sort of group the order of its members in which parts travel; None: members send to each owner at once."""


@dataclass(frozen=True, eq=False)
class MemberTrees:
    """For each sort of group the messages of an allgather of its members' parts; a reduce-scatter is its reverse.

    Attributes:
        rounds: Rounds of the longest.
        messages: int64 [messages, 4] each: round, member whose part it is, source, destination.
    """

    rounds: int
    messages: tuple[Ints, ...]


Inside = Rings | MemberTrees
"""How parts travel inside groups; by trees where every member is on a rail that no group lacks."""


def rails_allreduce_in_parts(
    groups: Groups, rows: int, most_pieces: int, inside: Inside = None, most_radix: int = 2
) -> Schedule:
    """Return the allreduce for a commutative operator; groups have a common rail, parts `most_pieces` pieces at most.

    A rank sends to `most_radix` - 1 others on its rail at once, at most.
    """
    rails = len(common_rails(groups))
    pieces = min(groups.count, most_pieces)
    chunks = [(first + low, n) for first, own in split_rows(rows, rails) for low, n in split_rows(own, pieces)]
    return RailsInParts(groups, chunks, pieces, inside, most_radix).allreduce()


def fits_parts(groups: Groups) -> bool:
    """Whether every rank is on a rail that no group lacks: then each may own a part."""
    return len(common_rails(groups)) * groups.count == groups.starts[-1]


def rails_reduce_scatter(groups: Groups, parts: Sequence[int], inside: Inside = None, most_radix: int = 2) -> Schedule:
    """Return the reduce-scatter for a commutative operator; every rank is on a rail. A radix as above."""
    return _of_parts(groups, parts, inside, most_radix).reduce_scatter()


def rails_allgather(groups: Groups, parts: Sequence[int], inside: Inside = None, most_radix: int = 2) -> Schedule:
    """Return the allgather; every rank is on a rail. A radix as above."""
    return _of_parts(groups, parts, inside, most_radix).allgather()


def _of_parts(groups: Groups, parts: Sequence[int], inside: Inside, most_radix: int) -> RailsInParts:
    """Every chunk is the part of one rank: that of group and rail is piece and part here."""
    first = np.cumsum([0, *parts[:-1]]).tolist()
    made = RailsInParts(groups, list(zip(first, parts, strict=True)), groups.count, inside, most_radix)
    made.chunk_of = made.on_rail.T
    return made


def transfer_count(groups: Groups, most_pieces: int, most_radix: int = 2) -> int:
    """Return how many transfers that allreduce has at most."""
    pieces, members = min(groups.count, most_pieces), max(inside.members for inside in groups.insides)
    once = pieces == groups.count or most_radix >= groups.count
    again = 0 if once else (groups.count // pieces).bit_length() * (most_radix - 1)
    between = len(common_rails(groups)) * (pieces + again)
    return 2 * groups.count * (members * (members - 1) * pieces + between)


def _halvings(count: int, most_radix: int) -> list[tuple[int, int]]:
    """(groups ahead that a group is to serve, those that it still serves after) of each round: at most a radix less.

    The rounds are as few as the radix allows, and of these the smallest radix that needs no more.
    """

    def steps(radix: int) -> list[tuple[int, int]]:
        skips = [count]
        while skips[-1] > 1:
            skips.append(-(-skips[-1] // radix))
        return list(pairwise(skips))

    fewest = len(steps(most_radix))
    return next(made for made in map(steps, range(2, max(most_radix, 2) + 1)) if len(made) == fewest)  # one group: none


class RailsInParts:
    """Columns by phase. Slots: 0 the own value, then those inside, those between groups, and the result."""

    def __init__(
        self, groups: Groups, chunks: list[tuple[int, int]], pieces: int, inside: Inside, most_radix: int
    ) -> None:
        self.first = np.array(groups.starts[:-1], dtype=np.int64)
        self.sorts = np.array(groups.sorts)
        self.trees: MemberTrees | None = inside if isinstance(inside, MemberTrees) else None
        self.rings: Rings = None if isinstance(inside, MemberTrees) else inside
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
        self.pieces = np.arange(pieces)
        self.piece_of = np.full(count, -1)
        """Of each group, the piece that it owns; -1: none."""
        self.piece_of[self.pieces * count // pieces] = self.pieces
        self.chunks = chunks
        self.chunk_of = np.arange(len(chunks)).reshape(len(rails), -1)
        """The chunk of each part and piece."""
        self.inside_rounds = self.most - 1 if self.rings else min(1, self.most - 1)
        if self.trees:
            self.inside_rounds = self.trees.rounds
        self.steps = _halvings(count, most_radix)
        self.result = self.most + 2 + self._slots_between()
        self.transfers: list[IntTable] = []
        self.combines: list[IntTable] = []
        self.operands: list[Ints] = []

    def allreduce(self) -> Schedule:
        """Return all phases; every rank has all chunks."""
        held, round_ = self._to_owners(0)
        self._from_owners(held, round_)
        ranks, chunks = np.indices((self.ranks, len(self.chunks))).reshape(2, -1)
        return self.schedule(np.stack([ranks, self._slots(held).ravel(), chunks], 1))

    def reduce_scatter(self) -> Schedule:
        """Return the phases to the owners, whose chunks are outputs."""
        held, _ = self._to_owners(0)
        return self.schedule(self._owned(held[self.pieces, self.pieces]))

    def allgather(self) -> Schedule:
        """Return the phases from the owners, whose values are inputs."""
        held = np.zeros((len(self.first), len(self.pieces)), np.int64)
        self._from_owners(held, 0)
        ranks, chunks = np.indices((self.ranks, len(self.chunks))).reshape(2, -1)
        made = self.schedule(np.stack([ranks, self._slots(held).ravel(), chunks], 1))
        return replace(made, owners=self._owners())

    def _to_owners(self, round_: int) -> tuple[Ints, int]:
        """Write the reduce-scatter; returns the slot of each group's pieces on their rails, and the round after."""
        held = np.zeros((len(self.first), len(self.pieces)), np.int64)
        for where, size, order in self._alike():
            way = self._tree_in if self.trees else self._ring_in if self.rings else self._flat_in
            held[where] = way(where, size, order)
        return held, self._collect(held, round_ + self.inside_rounds)

    def _slots_between(self) -> int:
        """The number of slots for what groups send and fold on the way to owners."""
        return sum(-(-stop // skip) for stop, skip in self.steps)

    def _collect(self, held: Ints, round_: int) -> int:
        """Bring pieces to the groups that own them; `held` becomes the slots of the sums. Return the round after."""
        slot = self.most + 2
        for stop, skip in self.steps:
            for low in range(skip, stop, skip):
                group, other, piece = self._between(low, min(low + skip, stop))
                self._move(round_, group, held[group, piece], other, slot + low // skip - 1, piece)
            out = slot + -(-stop // skip) - 1
            for heard in range(1, -(-stop // skip)):  # what of the pieces ahead of a group so many others send
                ahead = np.arange(max(0, stop - (heard + 1) * skip), min(skip, stop - heard * skip))
                group, piece = self._owned_ahead(ahead)
                arrived = np.broadcast_to(slot + np.arange(heard), (len(group), heard))
                self._fold(round_, group, piece, out, np.concatenate([held[group, piece][:, None], arrived], 1))
                held[group, piece] = out
            round_, slot = round_ + 1, out + 1
        return round_

    def _from_owners(self, held: Ints, round_: int) -> None:
        """Write the allgather; `held` becomes the slot of the results."""
        round_ = self._spread(held, round_)
        for where, size, order in self._alike():
            out = self._tree_out if self.trees else self._ring_out if self.rings else self._flat_out
            out(round_, (where, size, order), held[where], self.result)

    def _spread(self, held: Ints, round_: int) -> int:
        """Bring the pieces of owners to all groups; `held` becomes their slots. Return the round after."""
        for stop, skip in reversed(self.steps):
            for low in range(skip, stop, skip):
                other, group, piece = self._between(low, min(low + skip, stop))
                self._move(round_, group, held[group, piece], other, self.result, piece)
            for low in range(skip, stop, skip):
                other, _, piece = self._between(low, min(low + skip, stop))
                held[other, piece] = self.result
            round_ += 1
        return round_

    def _slots(self, held: Ints) -> Ints:
        """Return the slot of every rank's chunks at the end, [ranks, chunks]."""
        slots = np.full((self.ranks, len(self.chunks)), self.result)
        slots[self.on_rail[:, :, None], self.chunk_of] = held[:, None, :]
        return slots

    def _owned(self, slots: Ints) -> Ints:
        """Return (rank, slot, chunk) of every owner; `slots` by piece."""
        owners = self.on_rail[self.pieces].T
        rows = (owners, np.broadcast_to(slots, owners.shape), self.chunk(self.rails[:, None], self.pieces))
        return np.stack([column.ravel() for column in rows], 1)

    def _owners(self) -> tuple[int, ...]:
        """The rank of every chunk's part."""
        owners = np.empty(len(self.chunks), np.int64)
        owners[self.chunk_of] = self.on_rail[self.pieces].T
        return tuple(owners.tolist())

    def schedule(self, outputs: Ints) -> Schedule:
        """Return what was written, with these outputs: rank, slot, chunk."""
        return schedule_of_columns(
            self.ranks,
            self.chunks,
            outputs=outputs,
            transfers=np.concatenate([np.zeros((0, 7), np.int32), *self.transfers]),
            combines=np.concatenate([np.zeros((0, 4), np.int32), *self.combines]),
            operands=self.operands,
        )

    def _alike(self) -> Iterator[tuple[Ints, int, Ints]]:
        """(groups, their members, order of these in the ring, or messages), for each sort of groups of several."""
        for sort in np.unique(self.sorts).tolist():
            where = np.flatnonzero(self.sorts == sort)
            size = int(self.sizes[where[0]])
            if size > 1:
                if self.trees:
                    yield where, size, self.trees.messages[sort]
                else:
                    yield where, size, np.array(self.rings[sort]) if self.rings else np.arange(size)

    def _between(self, low: int, high: int) -> tuple[Ints, Ints, Ints]:
        """(group that sends, the one `low` further, piece) of the message about the groups low..high-1 ahead."""
        group, piece = self._owned_ahead(np.arange(low, high))
        return group, (group + low) % len(self.first), piece

    def _owned_ahead(self, ahead: Ints) -> tuple[Ints, Ints]:
        """(group, piece of one so far ahead of it), of those that own one."""
        group, step = (x.ravel() for x in np.meshgrid(np.arange(len(self.first)), ahead, indexing="ij"))
        piece = self.piece_of[(group + step) % len(self.first)]
        return group[piece >= 0], piece[piece >= 0]

    def _move(self, round_: int, group: Ints, slot: Ints, other: Ints, to_slot: int, piece: Ints) -> None:
        """Send pieces between groups, on every rail."""
        chunk = self.chunk(self.rails[:, None], piece)
        self.send(round_, self.on_rail[group].T, slot, self.on_rail[other].T, to_slot, chunk)

    def _fold(self, round_: int, group: Ints, piece: Ints, out: int, operands: Ints) -> None:
        """Fold pieces of groups, on every rail."""
        self.combine(round_, self.on_rail[group].T, out, self.chunk(self.rails[:, None], piece))
        self.operands.append(np.tile(operands, (len(self.rails), 1)))

    def _flat_in(self, where: Ints, size: int, order: Ints) -> int:
        """Members send each owner its part; returns the slot in which owners have the sum of the group."""
        first = self.first[where][:, None]
        for step in range(1, size):
            src, dst = (first + order).ravel(), (first + (order + step) % size).ravel()
            gets = self.part[dst] >= 0
            slots = 1 + np.tile(order, len(where))[gets]
            chunk = self.chunk(self.part[dst[gets], None], self.pieces)
            self.send(0, src[gets, None], 0, dst[gets, None], slots[:, None], chunk)
        owners, folded = self.on_rail[where], 1 + self.most
        operands = np.where(order == (owners - first)[:, :, None], 0, 1 + order)
        self.combine(0, owners[:, :, None], folded, self.chunk(self.rails[:, None], self.pieces))
        self.operands.append(np.repeat(operands.reshape(-1, size), len(self.pieces), 0))
        return folded

    def _flat_out(self, round_: int, alike: tuple[Ints, int, Ints], held: Ints, result: int) -> None:
        """Owners send the results of their parts to the other members."""
        where, size, _ = alike
        owners, first = self.on_rail[where], self.first[where][:, None]
        for step in range(1, size):
            dst = first + (owners - first + step) % size
            chunk = self.chunk(self.rails[:, None], self.pieces)
            self.send(round_, owners[:, :, None], held[:, None, :], dst[:, :, None], result, chunk)

    def _ring_in(self, where: Ints, size: int, order: Ints) -> int:
        """Parts travel once around to their owners and are folded on the way; as `_flat_in`."""
        first, chunk, place = self._on_ring(where, size, order)
        for step in range(size - 1):
            src, dst = (first + order[(place + 1 + step + ahead) % size][:, :, None] for ahead in (0, 1))
            self.send(step, src, 2 * (step > 0), dst, 1, chunk)
            self.combine(step, dst, 2, chunk)
            self.operands.append(np.tile([0, 1], (dst.size * len(self.pieces), 1)))
        return 2

    def _ring_out(self, round_: int, alike: tuple[Ints, int, Ints], held: Ints, result: int) -> None:
        """Results travel around from their owners; as `_flat_out`."""
        where, size, order = alike
        first, chunk, place = self._on_ring(where, size, order)
        for step in range(size - 1):
            src, dst = (first + order[(place + step + ahead) % size][:, :, None] for ahead in (0, 1))
            self.send(round_ + step, src, held[:, None, :] if step == 0 else result, dst, result, chunk)

    def _on_ring(self, where: Ints, size: int, order: Ints) -> tuple[Ints, Ints, Ints]:
        """(first ranks [groups, 1, 1], chunks [1, rails, pieces], place of each owner on its ring [groups, rails])."""
        places = np.empty(size, np.int64)
        places[order] = np.arange(size)
        first = self.first[where]
        chunk = self.chunk(self.rails[:, None], self.pieces)
        return first[:, None, None], chunk, places[self.on_rail[where] - first[:, None]]

    def _tree_in(self, where: Ints, size: int, messages: Ints) -> int:
        """Parts go up the trees of their owners, the last message of an allgather first; as `_flat_in`."""
        rounds, owner, parent, child = messages.T
        rounds, folded = self.inside_rounds - 1 - rounds, 1 + self.most
        children = np.zeros((size, size, size), bool)  # of every part and member
        children[owner, parent, child] = True
        last = np.zeros((size, size), np.int64)
        np.maximum.at(last, (owner, parent), rounds)
        first, forwards = self.first[where][:, None, None], np.asarray(children.any(axis=2))
        slots = np.where(forwards[owner, child], folded, 0)[:, None]
        chunk = self.chunk(self.part[first + owner[:, None]], self.pieces)
        ends = first + child[:, None], slots, first + parent[:, None], 1 + child[:, None]
        self.send(rounds[:, None], *ends, chunk)
        operands = children | np.eye(size, dtype=bool)
        for count in np.unique(operands[forwards].sum(axis=1)).tolist():
            part, rank = np.nonzero(forwards & (operands.sum(axis=2) == count))
            chunk = self.chunk(self.part[first + part[:, None]], self.pieces)
            self.combine(last[part, rank][:, None], first + rank[:, None], folded, chunk)
            of = np.nonzero(operands[part, rank])[1].reshape(-1, count)
            of = np.where(of == rank[:, None], 0, 1 + of)
            self.operands.append(np.tile(np.repeat(of, len(self.pieces), axis=0), (len(where), 1)))
        return folded

    def _tree_out(self, round_: int, alike: tuple[Ints, int, Ints], held: Ints, result: int) -> None:
        """Results go down the trees of their owners; as `_flat_out`."""
        where, _, messages = alike
        rounds, owner, src, dst = messages.T
        first = self.first[where][:, None, None]
        part = self.part[first + owner[:, None]]
        slots = np.where((src == owner)[:, None], held[:, None, :], result)
        ends = first + src[:, None], slots, first + dst[:, None], result
        self.send(round_ + rounds[:, None], *ends, self.chunk(part, self.pieces))

    def chunk(self, part: Ints, piece: Ints) -> Ints:
        """Return the chunks of parts and pieces."""
        chunks: Ints = self.chunk_of[part, piece]
        return chunks

    def send(self, round_: Ints | int, *columns: Ints | int) -> None:
        """Write transfers: source, its slot, destination, its slot, chunk."""
        self.transfers.append(table_of(round_, *columns, NO_PATH))

    def combine(self, round_: Ints | int, *columns: Ints | int) -> None:
        """Write combines: rank, slot, chunk."""
        self.combines.append(table_of(round_, *columns))
