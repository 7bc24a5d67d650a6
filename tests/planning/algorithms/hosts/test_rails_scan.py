"""Every rank gets the values up to its own, in rank order, each once; what goes between groups is little."""

import re

import numpy as np
import pytest

from tests.planning.algorithms.hosts.machines import groups_of
from tests.planning.replay import replay, word
from tests.thinning import alternating
from topocomm.planning.algorithms.hosts.rails_scan import rails_scan
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify
from topocomm.planning.schedule.transforms import sliced

COUNTS = [*range(1, 18), 33]


@pytest.mark.parametrize(("count", "members"), alternating(COUNTS, [1, 2, 3, 8], 4, pytest.mark.long))
@pytest.mark.parametrize("name", ["scan", "exscan"])
def test_any_number_of_groups(name, count, members):
    groups = groups_of(*[members] * count)
    ranks = groups.starts[-1]
    if ranks < 2:
        return
    right(rails_scan(groups, 1000, 5 if count % 3 == 0 else 64, own=name == "scan"), name)
    right(rails_scan(groups, 1000, 64, own=name == "scan", chained=True), name)


def right(schedule, name):
    ranks = schedule.ranks
    for slices in (1, 3):
        proof = verify(sliced(schedule, slices, 1), Collective(name, ranks))
        assert proof.complete and proof.each_contribution_once and proof.order_kept
    spelled = replay(schedule)
    first = 0 if name == "scan" else 1
    assert spelled.keys() == {(r, chunk) for r in range(first, ranks) for chunk in range(len(schedule.chunks))}
    for (rank, _), text in spelled.items():
        assert re.findall("<[^>]*>", text) == [word(other) for other in range(rank + 1 - first)]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16])
def test_little_goes_between_groups(count):
    """Of each rank at most 2 (H-1)/H of its part, as in an allreduce."""
    groups, rows = groups_of(*[4] * count), 4 * count * 10
    schedule = rails_scan(groups, rows, 64, own=True)
    src, dst, chunk = schedule.transfers[:, [1, 3, 5]].T
    sent = np.array(schedule.chunks)[chunk, 1] * (src // 4 != dst // 4)
    assert np.bincount(src, sent, minlength=4 * count).max() <= 2 * (count - 1) / count * rows / 4
    assert len(np.unique(schedule.transfers[:, 0])) == 4


def test_rows_that_are_fewer_than_pieces():
    verify(rails_scan(groups_of(3, 3, 3), 2, 64, own=True), Collective("scan", 9))


@pytest.mark.parametrize("count", [2, 3, 7, 16])
def test_half_of_that_goes_along_a_chain_of_groups(count):
    groups, rows = groups_of(*[4] * count), 4 * 1000
    schedule = rails_scan(groups, rows, 64, own=True, chained=True)
    src, dst, chunk = schedule.transfers[:, [1, 3, 5]].T
    sent = np.array(schedule.chunks)[chunk, 1] * (src // 4 != dst // 4)
    assert np.bincount(src, sent, minlength=4 * count).max() == rows / 4
    assert len(np.unique(schedule.transfers[:, 0])) == count - 1 + 2
