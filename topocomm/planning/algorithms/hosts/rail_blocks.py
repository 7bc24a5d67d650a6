"""Sums of long values over rails of many groups, in blocks of groups: three messages in a row between groups.

Inside every group each rank on a rail gets a part of the value, as in `rails_parts`, here in pieces. The groups of a
block send each piece to the one among them that owns it; the owners of a piece, one in each block, send each other what
they have, and all fold the same; then they send it to their blocks. With blocks as large as a plan's transfers allow a
group sends little more than in one block of all groups, whose pieces would be too many.
"""

from __future__ import annotations

import numpy as np

from topocomm.planning.algorithms.hosts.rails_parts import Inside, Ints, RailsInParts, common_rails
from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.schedule.schedule import Schedule, split_rows


def most_blocks_pieces(groups: Groups, most_transfers: int) -> int:
    """Return the most pieces of a part with which the allreduce has about so many transfers at most; 0 for none."""
    members, rails = max(inside.members for inside in groups.insides), len(common_rails(groups))
    return most_transfers // (2 * groups.count * (members * (members - 1) + rails))


def rail_blocks_allreduce(groups: Groups, rows: int, most_pieces: int, inside: Inside = None) -> Schedule:
    """Return the allreduce for a commutative operator, in as few blocks as have `most_pieces` groups at most.

    Groups have a common rail; `inside` is as of `rails_allreduce_in_parts`. With one piece every group is a block: all
    groups send each other what they have, in one message each.
    """
    blocks = -(-groups.count // most_pieces)
    pieces, rails = groups.count // blocks, len(common_rails(groups))  # no group owns two pieces
    chunks = [(first + low, n) for first, own in split_rows(rows, rails) for low, n in split_rows(own, pieces)]
    return _RailBlocks(groups, chunks, pieces, inside, blocks).allreduce()


class _RailBlocks(RailsInParts):
    """As `RailsInParts`. Slots: what arrives in a block, its fold, what arrives from each block, its fold, the result.

    Attributes:
        low, size: First group and number of groups of every block.
        owner: The group that owns each piece in each block, [blocks, pieces].
        collects: Rounds in which blocks collect, and spread: none where every group is a block.
    """

    def __init__(self, groups: Groups, chunks: list[tuple[int, int]], pieces: int, inside: Inside, blocks: int) -> None:
        edges = np.arange(blocks + 1) * groups.count // blocks
        self.low, self.size = edges[:-1, None], np.diff(edges)[:, None]
        self.owner = self.low + np.arange(pieces) * self.size // pieces
        self.collects = int(self.size.max() > 1)
        super().__init__(groups, chunks, pieces, inside, 2)

    def _slots_between(self) -> int:
        return int(self.size.max()) + len(self.size) + 1

    def _collect(self, held: Ints, round_: int) -> int:
        """Sums of blocks come to their owners, and of all blocks to each of these."""
        arrived, blocks = self.most + 2, len(self.size)
        folded = arrived + int(self.size.max()) - 1
        piece = np.broadcast_to(self.pieces, self.owner.shape)
        for behind in range(1, int(self.size.max())):
            sends = np.broadcast_to(self.size > behind, self.owner.shape)
            group = (self.low + (self.owner - self.low - behind) % self.size)[sends]
            own = held[group, piece[sends]]
            self._move(round_, group, own, self.owner[sends], arrived + behind - 1, piece[sends])
        for block in np.flatnonzero(self.size > 1).tolist():
            others = np.tile(arrived + np.arange(self.size[block, 0] - 1), (len(self.pieces), 1))
            own = held[self.owner[block], self.pieces]
            self._fold(round_, self.owner[block], self.pieces, folded, np.column_stack([own, others]))
            held[self.owner[block], self.pieces] = folded
        round_ += self.collects
        return self._exchange(held, round_, folded + 1) if blocks > 1 else round_

    def _exchange(self, held: Ints, round_: int, arrived: int) -> int:
        """The owners of a piece in all blocks send each other its sums, and fold them in the order of the blocks."""
        blocks = len(self.size)
        sums = held[self.owner, self.pieces]
        for ahead in range(1, blocks):
            for block in range(blocks):
                other = self.owner[(block + ahead) % blocks]
                self._move(round_, self.owner[block], sums[block], other, arrived + block, self.pieces)
        for block in range(blocks):
            operands = np.tile(arrived + np.arange(blocks), (len(self.pieces), 1))
            operands[:, block] = sums[block]
            self._fold(round_, self.owner[block], self.pieces, arrived + blocks, operands)
        held[self.owner, self.pieces] = arrived + blocks
        return round_ + 1

    def _spread(self, held: Ints, round_: int) -> int:
        """Every owner sends the result to its block."""
        piece = np.broadcast_to(self.pieces, self.owner.shape)
        for ahead in range(1, int(self.size.max())):
            gets = np.broadcast_to(self.size > ahead, self.owner.shape)
            group = (self.low + (self.owner - self.low + ahead) % self.size)[gets]
            self._move(round_, self.owner[gets], held[self.owner[gets], piece[gets]], group, self.result, piece[gets])
            held[group, piece[gets]] = self.result
        return round_ + self.collects
