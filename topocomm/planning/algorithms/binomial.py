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
    reduce_and_spread(build)
    return build.build()


def reduce_and_spread(build: ScheduleBuilder) -> None:
    """Reduce the ranks' slots 0 to rank 0, send the result to all, and declare it."""
    slot, rounds = reduce_ranges(build, list(range(build.ranks)), [0] * build.ranks, root=0, first_round=0)
    spread(build, list(range(build.ranks)), slot, root=0, first_round=rounds)


def binomial_reduce(ranks: int, rows: int, root: int) -> Schedule:
    """Reduce to `root` in ceil(log2 P) rounds."""
    build = ScheduleBuilder(ranks, ((0, rows),))
    slot, _ = reduce_ranges(build, list(range(ranks)), [0] * ranks, root=root, first_round=0)
    return build.build([(root, slot)])


def binomial_broadcast(ranks: int, rows: int, root: int) -> Schedule:
    """Broadcast from `root` in ceil(log2 P) rounds."""
    build = ScheduleBuilder(ranks, ((0, rows),), contributors=[root])
    spread(build, list(range(ranks)), 0, root=root, first_round=0)
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
        for (left, left_slot), (right, right_slot) in zip(holders[::2], holders[1::2], strict=False):
            if right == root:  # it keeps its range's value, else the left holder does
                operands = [build.send(round_, members[left], left_slot, members[root]), right_slot]
            else:
                operands = [left_slot, build.send(round_, members[right], right_slot, members[left])]
            holder = root if right == root else left
            merged.append((holder, build.fold(round_, members[holder], operands)))
        holders = merged + holders[len(holders) & ~1 :]
        round_ += 1
    return holders[0][1], round_


def spread(build: ScheduleBuilder, members: list[int], slot: int, *, root: int, first_round: int) -> None:
    """Send the value in `slot` of the member at index `root` to all members, and declare it their result."""
    count, round_ = len(members), first_round
    held = {root: slot}
    distance = 1 << max(count - 1, 0).bit_length()
    while distance > 1:
        distance //= 2
        for offset in [o for o in range(0, count, 2 * distance) if o + distance < count]:
            src, dst = (root + offset) % count, (root + offset + distance) % count
            held[dst] = build.send(round_, members[src], held[src], members[dst])
        round_ += 1
    for index, member in enumerate(members):
        build.output(member, held[index])
