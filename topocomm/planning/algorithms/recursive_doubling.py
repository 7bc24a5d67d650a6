"""Recursive doubling (Thakur, Rabenseifner, Gropp 2005): log2 P exchange rounds, the whole payload in each.

For P that is not a power of two, P - 2^k neighbours fold in pairs first and get the result back last, so all
merges join neighbouring ranges and rank order is kept. Both partners of an exchange evaluate left.right in the
same order, so all ranks evaluate one expression tree.
"""

from __future__ import annotations

from topocomm.planning.algorithms.multiport import powers_below
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder


class Core:
    """The 2^k ranks that exchange: of each of the first P - 2^k pairs of neighbours, `surplus`, the even one.

    Attributes:
        ranks: The rank of each position.
        distances: Of partners in each round, in positions.
    """

    def __init__(self, ranks: int) -> None:
        size = 1 << (ranks.bit_length() - 1)
        self.surplus = ranks - size
        self.ranks = [*range(0, 2 * self.surplus, 2), *range(2 * self.surplus, ranks)]
        self.distances = powers_below(size, 2)


def recursive_doubling_allreduce(ranks: int, rows: int) -> Schedule:
    """floor(log2 P) rounds, two more where P is not a power of two."""
    build = ScheduleBuilder(ranks, ((0, rows),))
    slots, _ = double(build, list(range(ranks)), [0] * ranks, first_round=0)
    return build.build(enumerate(slots))


def double(build: ScheduleBuilder, members: list[int], slots: list[int], *, first_round: int) -> tuple[list[int], int]:
    """Allreduce the members' slots, in the order of `members`; returns their result slots and the round after."""
    core, slots, round_ = Core(len(members)), list(slots), first_round
    for even in core.ranks[: core.surplus]:
        received = build.send(round_, members[even + 1], slots[even + 1], members[even])
        slots[even] = build.fold(round_, members[even], [slots[even], received])
    round_ += bool(core.surplus)
    for distance in core.distances:
        arrived = {}
        for position, index in enumerate(core.ranks):
            partner = core.ranks[position ^ distance]
            arrived[partner] = build.send(round_, members[index], slots[index], members[partner])
        for position, index in enumerate(core.ranks):
            own, other = slots[index], arrived[index]
            slots[index] = build.fold(round_, members[index], [other, own] if position & distance else [own, other])
        round_ += 1
    for even in core.ranks[: core.surplus]:
        slots[even + 1] = build.send(round_, members[even], slots[even], members[even + 1])
    return slots, round_ + bool(core.surplus)
