"""Binomial trees (Chan, Heimlich, Purkayastha, van de Geijn 2007): ceil(log2 P) rounds to reduce or broadcast.

The reduce tree merges aligned ranges of ranks, [r, r+2^k) with [r+2^k, r+2^(k+1)), so rank order is kept for any
root: with root 0 the left range holds the merged value, and another root takes it over in the last merges that
concern it.
"""

from __future__ import annotations

from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder


def binomial_allreduce(ranks: int, rows: int) -> Schedule:
    """Reduce to rank 0, then broadcast: 2 ceil(log2 P) rounds, the fewest messages (2(P-1))."""
    build = ScheduleBuilder(ranks, ((0, rows),))
    slot, rounds = reduce_ranges(build, list(range(ranks)), [0] * ranks, root=0, first_round=0)
    slots, _ = spread(build, list(range(ranks)), slot, root=0, first_round=rounds)
    for rank in range(ranks):
        build.output(rank, slots[rank])
    return build.build()


def binomial_reduce(ranks: int, rows: int, root: int) -> Schedule:
    """Reduce to `root` in ceil(log2 P) rounds."""
    build = ScheduleBuilder(ranks, ((0, rows),))
    slot, _ = reduce_ranges(build, list(range(ranks)), [0] * ranks, root=root, first_round=0)
    build.output(root, slot)
    return build.build()


def binomial_broadcast(ranks: int, rows: int, root: int) -> Schedule:
    """Broadcast from `root` in ceil(log2 P) rounds."""
    build = ScheduleBuilder(ranks, ((0, rows),), contributors=[root])
    slots, _ = spread(build, list(range(ranks)), 0, root=root, first_round=0)
    for rank in range(ranks):
        build.output(rank, slots[rank])
    return build.build()


def reduce_ranges(
    build: ScheduleBuilder, members: list[int], slots: list[int], *, root: int, first_round: int
) -> tuple[int, int]:
    """Reduce the members' slots, in the order of `members`, to the member at index `root`.

    Returns the slot at the root and the first round after.
    """
    holders = [(index, slots[index]) for index in range(len(members))]
    round_ = first_round
    while len(holders) > 1:
        merged = []
        for left, right in zip(holders[::2], holders[1::2], strict=False):
            merged.append(_merge(build, members, left, right, root, round_))
        if len(holders) % 2:
            merged.append(holders[-1])
        holders = merged
        round_ += 1
    return holders[0][1], round_


def spread(
    build: ScheduleBuilder, members: list[int], slot: int, *, root: int, first_round: int
) -> tuple[dict[int, int], int]:
    """Send the value in `slot` of the member at index `root` to all members.

    Returns the slot by member index and the first round after.
    """
    count = len(members)
    held = {root: slot}
    round_ = first_round
    distance = 1 << max(count - 1, 0).bit_length()
    while distance > 1:
        distance //= 2
        for offset in [o for o in range(0, count, 2 * distance) if o + distance < count]:
            src, dst = (root + offset) % count, (root + offset + distance) % count
            held[dst] = build.send(round_, members[src], held[src], members[dst])
        round_ += 1
    return held, round_


def _merge(
    build: ScheduleBuilder,
    members: list[int],
    left: tuple[int, int],
    right: tuple[int, int],
    root: int,
    round_: int,
) -> tuple[int, int]:
    """Merge two neighbouring ranges; the root keeps its range's value, else the left holder does."""
    (left_index, left_slot), (right_index, right_slot) = left, right
    if right_index == root:
        arrived = build.send(round_, members[left_index], left_slot, members[root])
        return root, build.fold(round_, members[root], [arrived, right_slot])
    arrived = build.send(round_, members[right_index], right_slot, members[left_index])
    return left_index, build.fold(round_, members[left_index], [left_slot, arrived])
