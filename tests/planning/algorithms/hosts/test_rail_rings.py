"""Every rank gets every value once, each group sends to the next one only, and sends the least there is."""

import re

import numpy as np
import pytest

from tests.planning.algorithms.hosts.machines import GONE, groups_of, without
from tests.planning.replay import replay, word
from topocomm.planning.algorithms.hosts.rail_rings import rail_rings_allreduce
from topocomm.planning.algorithms.hosts.rails_parts import transfer_count
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify
from topocomm.planning.schedule.transforms import sliced


def check(groups, schedule):
    ranks = groups.starts[-1]
    verify(schedule, Collective("allreduce", ranks))
    spelled = replay(sliced(schedule, 1, 1))
    assert spelled.keys() == {(rank, chunk) for rank in range(ranks) for chunk in range(len(schedule.chunks))}
    for text in spelled.values():
        assert sorted(re.findall("<[^>]*>", text)) == sorted(map(word, range(ranks)))


@pytest.mark.parametrize("count", [2, 3, 4, 7])
@pytest.mark.parametrize("members", [1, 2, 3])
def test_any_number_of_groups(count, members):
    groups = groups_of(*[members] * count)
    for rings in (None, [tuple(reversed(range(members)))]):
        schedule = rail_rings_allreduce(groups, 1000, rings)
        check(groups, schedule)
        verify(sliced(schedule, 3, 1), Collective("allreduce", groups.starts[-1]))
        assert len(schedule.transfers) <= transfer_count(groups, count)


@pytest.mark.parametrize("groups", [groups_of(3, 5, 2), without(5, GONE[0]), without(5, GONE[2])])
def test_uneven_groups_and_rails_that_are_gone(groups):
    check(groups, rail_rings_allreduce(groups, 200))


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_a_group_sends_the_fewest_rows_and_to_the_next_one_only(count):
    rows = 4 * count * 10
    schedule = rail_rings_allreduce(groups_of(*[4] * count), rows)
    src, dst, chunk = schedule.transfers[:, [1, 3, 5]].T
    crossing = src // 4 != dst // 4
    assert ((src[crossing] // 4 + 1) % count == dst[crossing] // 4).all()
    sent = np.bincount(src[crossing] // 4, np.array(schedule.chunks)[chunk[crossing], 1])
    assert (sent == 2 * (count - 1) / count * rows).all()
    assert schedule.rounds == 2 + 2 * (count - 1)
