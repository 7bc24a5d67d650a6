"""Allreduce by leaders of groups of neighbouring ranks: reduce inside, exchange among leaders, broadcast inside.

For groups of any size, with the fewest messages between them. Groups are contiguous, so rank order is kept.
"""

from __future__ import annotations

from topocomm.planning.algorithms.binomial import reduce_ranges, spread
from topocomm.planning.algorithms.recursive_doubling import double
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder


def leaders_allreduce(groups: list[list[int]], rows: int) -> Schedule:
    """Return an allreduce: binomial reduce to each group's first rank, recursive doubling among these, broadcast."""
    ranks = sum(map(len, groups))
    build = ScheduleBuilder(ranks, ((0, rows),))
    up = [reduce_ranges(build, group, [0] * len(group), root=0, first_round=0) for group in groups]
    round_ = max(after for _, after in up)
    leaders = [group[0] for group in groups]
    slots, round_ = double(build, leaders, [slot for slot, _ in up], first_round=round_)
    for group, slot in zip(groups, slots, strict=True):
        spread(build, group, slot, root=0, first_round=round_)
    return build.build()
