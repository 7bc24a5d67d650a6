"""Two-level allreduce over groups of neighbouring ranks (hosts, sockets, NVLink islands).

`rails`: reduce inside every group so that each member holds the group's value, then member i of every group
exchanges with the members i of the others, all rails at once: the slow level sees only P/G ranks in parallel and
no broadcast follows. Needs groups of equal size.
`leaders`: reduce to one leader a group, exchange among leaders, broadcast inside: for any group sizes.
Groups are contiguous ranges of ranks, so rank order is kept.
"""

from __future__ import annotations

from topocomm.planning.algorithms.binomial import reduce_ranges, spread
from topocomm.planning.algorithms.recursive_doubling import double
from topocomm.planning.schedule import Schedule, ScheduleBuilder


def rails_allreduce(groups: list[list[int]], rows: int) -> Schedule:
    """Recursive doubling in each group, then across groups on every rail."""
    ranks = sum(map(len, groups))
    build = ScheduleBuilder(ranks, ((0, rows),))
    inside = [double(build, group, [0] * len(group), first_round=0) for group in groups]
    round_ = max(after for _, after in inside)
    for rail in range(len(groups[0])):
        members = [group[rail] for group in groups]
        slots, _ = double(build, members, [slots[rail] for slots, _ in inside], first_round=round_)
        for rank, slot in zip(members, slots, strict=True):
            build.output(rank, slot)
    return build.build()


def leaders_allreduce(groups: list[list[int]], rows: int) -> Schedule:
    """Binomial reduce to each group's first rank, recursive doubling among these, binomial broadcast inside."""
    ranks = sum(map(len, groups))
    build = ScheduleBuilder(ranks, ((0, rows),))
    up = [reduce_ranges(build, group, [0] * len(group), root=0, first_round=0) for group in groups]
    round_ = max(after for _, after in up)
    leaders = [group[0] for group in groups]
    slots, round_ = double(build, leaders, [slot for slot, _ in up], first_round=round_)
    for group, slot in zip(groups, slots, strict=True):
        held, _ = spread(build, group, slot, root=0, first_round=round_)
        for index, rank in enumerate(group):
            build.output(rank, held[index])
    return build.build()
