"""Recursive doubling (Thakur, Rabenseifner, Gropp 2005): log2 P exchange rounds, the whole payload in each.

For P that is not a power of two, P - 2^k neighbours fold in pairs first and get the result back last, so all
merges join neighbouring ranges and rank order is kept. Both partners of an exchange evaluate left.right in the
same order, so all ranks evaluate one expression tree.
"""

from __future__ import annotations

from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder


def recursive_doubling_allreduce(ranks: int, rows: int) -> Schedule:
    """floor(log2 P) rounds, two more where P is not a power of two."""
    build = ScheduleBuilder(ranks, ((0, rows),))
    slots, _ = double(build, list(range(ranks)), [0] * ranks, first_round=0)
    for rank in range(ranks):
        build.output(rank, slots[rank])
    return build.build()


def double(build: ScheduleBuilder, members: list[int], slots: list[int], *, first_round: int) -> tuple[list[int], int]:
    """Allreduce the members' slots, in the order of `members`; returns their result slots and the round after."""
    count, slots, round_ = len(members), list(slots), first_round
    core_size = 1 << (count.bit_length() - 1)
    surplus = count - core_size
    for pair in range(surplus):
        odd, even = 2 * pair + 1, 2 * pair
        received = build.send(round_, members[odd], slots[odd], members[even])
        slots[even] = build.fold(round_, members[even], [slots[even], received])
    round_ += bool(surplus)
    core = [2 * i for i in range(surplus)] + list(range(2 * surplus, count))
    distance = 1
    while distance < core_size:
        arrived = {}
        for position, index in enumerate(core):
            partner = core[position ^ distance]
            arrived[partner] = build.send(round_, members[index], slots[index], members[partner])
        for position, index in enumerate(core):
            own, other = slots[index], arrived[index]
            slots[index] = build.fold(round_, members[index], [other, own] if position & distance else [own, other])
        round_ += 1
        distance *= 2
    for pair in range(surplus):
        odd, even = 2 * pair + 1, 2 * pair
        slots[odd] = build.send(round_, members[even], slots[even], members[odd])
    return slots, round_ + bool(surplus)
