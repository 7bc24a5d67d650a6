"""Leaders: groups of any size in rank order, and the fewest messages between them."""

import pytest

from tests.planning.replay import expected, replay
from topocomm.planning.algorithms.hosts.leaders import leaders_allreduce
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify


@pytest.mark.parametrize("sizes", [(1,), (4,), (3, 3), (1, 2, 3), (4, 1, 4, 2), (2, 2, 2, 2, 2)])
def test_only_leaders_talk_across_groups(sizes):
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    groups = [list(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]
    schedule = leaders_allreduce(groups, 2)
    collective = Collective("allreduce", sum(sizes))
    assert verify(schedule, collective).order_kept
    assert replay(schedule) == expected(collective, schedule.chunks)
    group_of = {rank: index for index, group in enumerate(groups) for rank in group}
    across = [move for move in schedule.transfer_list() if group_of[move.src] != group_of[move.dst]]
    assert {rank for move in across for rank in (move.src, move.dst)} <= set(starts)
    core = 1 << len(sizes).bit_length() - 1
    assert len(across) == core * (core.bit_length() - 1) + 2 * (len(sizes) - core)
