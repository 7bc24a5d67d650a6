"""Each piece has one owner that all groups send to at once, whatever groups there are."""

import numpy as np
import pytest

from tests.planning.algorithms.hosts.machines import GONE, groups_of, without
from tests.planning.algorithms.hosts.test_rails_parts import check, rings_of, trees_of
from topocomm.planning.algorithms.hosts.rail_owners import (
    owners_transfers,
    owning_order,
    rail_owners_allreduce,
    rail_owners_broadcast,
    rail_owners_reduce,
)
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify

SIZES = [(1, 1), (2, 2, 2), (8,) * 5, (3, 5), (8, 7, 8), (1, 2, 3, 4), (4,) * 17]


def ways_of(groups):
    """At once and around rings; by trees where all have the same members."""
    alike = len(set(np.diff(groups.starts).tolist())) == 1
    return [None, rings_of(groups), *([trees_of(groups)] if alike else [])]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("pieces", [1, 2, 3, 0])
def test_all_ranks_get_the_sum(sizes, pieces):
    groups = groups_of(*sizes)
    for inside in ways_of(groups):
        schedule = rail_owners_allreduce(groups, 1000, pieces or len(sizes), inside)
        check(groups, schedule)
        assert len(schedule.transfers) <= owners_transfers(groups, pieces or len(sizes))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("pieces", [1, 3, 0])
def test_one_root(sizes, pieces):
    """It has the sum, or all have its value; also where it owns pieces itself."""
    groups = groups_of(*sizes)
    ranks = groups.starts[-1]
    for inside in ways_of(groups):
        for root in {0, ranks // 2, ranks - 1}:
            for name, make in (("reduce", rail_owners_reduce), ("broadcast", rail_owners_broadcast)):
                schedule = make(groups, 1000, pieces or len(sizes), inside, root)
                verify(schedule, Collective(name, ranks, root=root))


@pytest.mark.parametrize("gone", GONE)
def test_groups_that_lack_a_rail(gone):
    groups = without(5, gone)
    for inside in (None, rings_of(groups)):
        check(groups, rail_owners_allreduce(groups, 200, 3, inside))
        verify(rail_owners_reduce(groups, 200, 3, inside, 4), Collective("reduce", groups.starts[-1], root=4))


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
def test_two_messages_are_in_a_row_between_groups(name):
    """Owners and the root send to each other past the other members of its group."""
    groups, root = groups_of(*[4] * 9), 5
    make = rail_owners_reduce if name == "reduce" else rail_owners_broadcast
    round_, src, dst = make(groups, 1000, 3, None, root).transfers[:, [0, 1, 3]].T
    assert len(np.unique(round_)) == 3 and len(np.unique(round_[src // 4 != dst // 4])) == 2
    at_root = (dst if name == "reduce" else src) == root
    assert set(round_[at_root & (src // 4 != dst // 4)].tolist()) <= {0, 1, 2}
    into_host = (dst // 4 == 1) & (src // 4 != 1) if name == "reduce" else (src // 4 == 1) & (dst // 4 != 1)
    last = round_ == (2 if name == "reduce" else 0)
    assert (at_root[into_host & last]).all() and (into_host & last).any()


@pytest.mark.parametrize(("count", "pieces"), [(12, 3), (12, 12), (13, 3), (40, 5)])
def test_owners_are_spread_over_the_groups(count, pieces):
    """No group owns more than one piece more than another."""
    groups = groups_of(*[4] * count)
    src, dst, chunk = rail_owners_allreduce(groups, 5000, pieces).transfers[:, [1, 3, 5]].T
    heard = np.zeros((count, 4 * pieces), np.int64)
    np.add.at(heard, (dst // 4, chunk), src // 4 != dst // 4)
    owned = (heard == count - 1).sum(axis=1)
    assert owned.sum() == 4 * pieces and np.ptp(owned) <= 1


def test_neighbours_do_not_own_after_each_other():
    assert owning_order(8) == [0, 4, 2, 6, 1, 5, 3, 7]
    assert sorted(owning_order(6)) == list(range(6)) and owning_order(1) == [0]
