"""Sums of long values around rings of hosts, one ring on every rail, where the network between hosts has tiers.

Inside every host each rank on a rail gets a part of the value, as in `rails_parts`. The pieces of a part then travel
around the hosts as in a ring of ranks (Patarasuk, Yuan 2009), and so do the results. A host sends 2 (H-1)/H of the
value, the least there is, and always to the same other one: hosts in the order of the network's tree cross every link
between its switches once in each direction, where halving crosses them with every host at once.
"""

from __future__ import annotations

import numpy as np

from topocomm.planning.algorithms.hosts.rails_parts import Ints, RailsInParts, Rings, common_rails
from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.schedule.schedule import Schedule, split_rows


def rail_rings_allreduce(groups: Groups, rows: int, rings: Rings = None) -> Schedule:
    """Return the allreduce for a commutative operator; groups follow each other around, and have a common rail.

    `rings` has the order of the members inside a group of each sort, as of `rails_allreduce_in_parts`.
    """
    rails = len(common_rails(groups))
    chunks = [(first + low, n) for first, own in split_rows(rows, rails) for low, n in split_rows(own, groups.count)]
    return _RailRings(groups, chunks, groups.count, rings, 2).allreduce()


class _RailRings(RailsInParts):
    """As `RailsInParts`; pieces go from each group to the next one only. Slots: what arrives, its fold, the result."""

    def _slots_between(self) -> int:
        return 2

    def _collect(self, held: Ints, round_: int) -> int:
        """The piece of the group before goes around once, folded on its way, and every other piece with it."""
        arrived, folded = self.most + 2, self.most + 3
        for ahead in range(len(self.first) - 1, 0, -1):
            group, other, piece = self._to_next(ahead)
            self._move(round_, group, held[group, piece], other, arrived, piece)
            self._fold(round_, other, piece, folded, np.stack([held[other, piece], 0 * other + arrived], 1))
            held[other, piece] = folded
            round_ += 1
        return round_

    def _spread(self, held: Ints, round_: int) -> int:
        """Every result goes around from its owner."""
        for behind in range(len(self.first) - 1):
            group, other, piece = self._to_next(-behind)
            self._move(round_, group, held[group, piece], other, self.result, piece)
            held[other, piece] = self.result
            round_ += 1
        return round_

    def _to_next(self, ahead: int) -> tuple[Ints, Ints, Ints]:
        """(group that sends, the next one, piece of the group so far ahead of it)."""
        group, piece = self._owned_ahead(np.array([ahead]))
        return group, (group + 1) % len(self.first), piece
