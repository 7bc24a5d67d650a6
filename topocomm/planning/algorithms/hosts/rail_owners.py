"""Sums of values over groups and the rails between them, each piece with one owner that all groups send to at once.

Inside every group each rank on a rail gets a part of the value, as in `rails_parts`, in pieces. The owner of a piece is
the rank on its rail in one group: it hears the piece from all others, and sends them the sum, so two messages are in a
row between groups however many there are. Owners are spread evenly over the groups, piece by piece and rail by rail:
few pieces serve where members share a NIC, since then a group needs to own only one.

For one root the owners send to it straight, past the members of its group; in a broadcast it sends to them.
"""

from __future__ import annotations

import numpy as np

from topocomm.planning.algorithms.hosts.rails_parts import Inside, Ints, RailsInParts, common_rails
from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.schedule.rooted import broadcast_of
from topocomm.planning.schedule.schedule import Schedule, split_rows


def rail_owners_allreduce(groups: Groups, rows: int, pieces: int, inside: Inside = None) -> Schedule:
    """Return the allreduce for a commutative operator; groups have a common rail, each part `pieces` pieces."""
    return _RailOwners(groups, rows, pieces, inside).allreduce()


def rail_owners_reduce(groups: Groups, rows: int, pieces: int, inside: Inside, root: int) -> Schedule:
    """Return the reduce for a commutative operator, whose owners send to the root straight; groups as above."""
    return _RailOwners(groups, rows, pieces, inside).reduce(root)


def rail_owners_broadcast(groups: Groups, rows: int, pieces: int, inside: Inside, root: int) -> Schedule:
    """Return the broadcast whose root sends to all owners straight; groups as above."""
    return _RailOwners(groups, rows, pieces, inside).broadcast(root)


def owners_transfers(groups: Groups, pieces: int) -> int:
    """Return how many transfers that allreduce has."""
    ranks, chunks = groups.starts[-1], pieces * len(common_rails(groups))
    return 2 * chunks * (ranks - 1)


def owning_order(rails: int) -> list[int]:
    """Return the rails in the order in which groups own pieces: far apart ones after each other (van der Corput).

    Neighbours among members share a bus, and those of half a host a socket.
    """
    digits = max(1, (rails - 1).bit_length())
    return sorted(range(rails), key=lambda rail: int(f"{rail:0{digits}b}"[::-1], 2))


class _RailOwners(RailsInParts):
    """As `RailsInParts`. Slots: the own value, those inside, what arrives from each group, the result."""

    def __init__(self, groups: Groups, rows: int, pieces: int, inside: Inside) -> None:
        rails = len(common_rails(groups))
        chunks = [(first + low, n) for first, own in split_rows(rows, rails) for low, n in split_rows(own, pieces)]
        super().__init__(groups, chunks, pieces, inside, groups.count)
        of_rail, of_piece = np.meshgrid(self.rails, self.pieces, indexing="ij")
        if pieces < groups.count:  # then owners of a group have other numbers: by piece they are on rails far apart
            of_rail, of_piece = of_rail.T, of_piece.T
        self.of_rail, self.of_piece, self.chunk_at = of_rail, of_piece, self.chunk_of[of_rail, of_piece]
        """Of all chunks in the order in which they are sent: rail, piece, and number."""
        number = of_piece * rails + np.argsort(owning_order(rails))[of_rail]
        self.owner = number * groups.count // (pieces * rails)
        """The group of the owner of each."""

    def reduce(self, root: int) -> Schedule:
        """Return the phases to the owners, and from them to the root."""
        held, round_ = self._to_owners(0)
        owners, slots = self._held(self.owner, held)
        away = owners != root
        self.send(round_, owners[away], slots[away], root, self.result, self.chunk_at[away])
        chunks = np.arange(len(self.chunks))
        own = np.stack([np.full_like(chunks, root), np.full_like(chunks, self.result), chunks], 1)
        return self.schedule(own)

    def broadcast(self, root: int) -> Schedule:
        """Return the messages from the root to the owners, and the phases from them."""
        held = np.full((len(self.first), len(self.pieces)), self.result)
        owners = self._ranks(self.owner)
        away = owners != root
        self.send(0, root, 0, owners[away], self.result, self.chunk_at[away])
        self._from_owners(held, 1)
        ranks, chunks = np.indices((self.ranks, len(self.chunks))).reshape(2, -1)
        outputs = np.stack([ranks, np.full_like(ranks, self.result), chunks], 1)
        return broadcast_of(self.schedule(outputs), root)

    def _slots_between(self) -> int:
        return len(self.first) - 1

    def _ranks(self, groups: Ints) -> Ints:
        """The ranks of these groups, one for each chunk, on the rail of the chunk."""
        ranks: Ints = self.on_rail[groups, self.of_rail]
        return ranks

    def _held(self, groups: Ints, held: Ints) -> tuple[Ints, Ints]:
        """The ranks of these groups, one for each chunk, and the slots in which they have it."""
        return self._ranks(groups), held[groups, self.of_piece]

    def _collect(self, held: Ints, round_: int) -> int:
        """All groups send their pieces to the owners; `held` becomes the slot of the sums. Return the round after."""
        others, arrived, owners = len(self.first) - 1, self.most + 2, self._ranks(self.owner)
        for behind in range(1, others + 1):
            sender = (self.owner - behind) % len(self.first)
            self.send(round_, *self._held(sender, held), owners, arrived + behind - 1, self.chunk_at)
        self.combine(round_, owners, self.result, self.chunk_at)
        own = self._held(self.owner, held)[1].ravel()
        heard = np.broadcast_to(arrived + np.arange(others), (len(own), others))
        self.operands.append(np.column_stack([own, heard]))
        held[:] = self.result
        return round_ + 1

    def _spread(self, held: Ints, round_: int) -> int:
        """Owners send to all groups; `held` becomes the slots of the pieces. Return the round after."""
        for ahead in range(1, len(self.first)):
            other = (self.owner + ahead) % len(self.first)
            self.send(round_, *self._held(self.owner, held), self._ranks(other), self.result, self.chunk_at)
        held[:] = self.result
        return round_ + 1
