"""Gossip over groups: a circulant over their rails for any number of them, and a tree to one."""

import pytest

from tests.machines import hosts
from tests.planning.algorithms.hosts.machines import GONE, groups_of, machine_without, repeated, without
from topocomm.planning.algorithms.gossip_parts import gossip_gather
from topocomm.planning.algorithms.gossip_schedule import gossip_allreduce, gossip_reduce
from topocomm.planning.algorithms.hosts.group_gossip import (
    cyclic_gossip,
    cyclic_tree,
    gather_over_groups,
    rails_to_root,
)
from topocomm.planning.algorithms.hosts.rails import rails_allreduce
from topocomm.planning.collectives import Collective
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder


def cyclic_allreduce(groups, radices, rows, ports=1):
    return gossip_allreduce(cyclic_gossip(groups, radices, ports), cyclic_tree(groups), rows)


def test_cyclic_groups_never_tell_two_at_once():
    """11 groups in two levels: blocks of uneven size would keep a port busy twice."""
    machine = hosts(11, 8)
    paths = PathFinder(machine)
    us = [
        Cost(build(groups_of(*[8] * 11), (6, 2), 1), machine.endpoints, paths, row_bytes=4).alpha_us
        for build in (cyclic_allreduce, rails_allreduce)
    ]
    assert us[0] == pytest.approx(13.6) and us[1] > us[0]


@pytest.mark.parametrize("count", [*range(1, 18), 33])
@pytest.mark.parametrize("members", [1, 3, 8])
def test_any_number_of_groups(count, members):
    groups, collective = groups_of(*[members] * count), Collective("allreduce", count * members)
    for radix in {2, 3, members + 1}:
        assert verify(cyclic_allreduce(groups, repeated(radix, count), 1), collective).order_kept


@pytest.mark.parametrize("ports", [1, 2])
@pytest.mark.parametrize("sizes", [(2, 1), (8, 7, 8), (1, 2, 3, 4), (4, 4, 3, 4, 4)])
def test_uneven_groups(sizes, ports):
    groups, collective = groups_of(*sizes, ports=ports), Collective("allreduce", sum(sizes))
    for radix in range(2, min(sizes) + 2):
        assert verify(cyclic_allreduce(groups, repeated(radix, len(sizes)), 1, ports), collective).order_kept


@pytest.mark.parametrize(("count", "best_us"), [(2, 6.8), (5, 8.0), (9, 8.6)])
def test_known_optima_of_hosts_of_eight(count, best_us):
    machine = hosts(count, 8)
    schedule = cyclic_allreduce(groups_of(*[8] * count), (count,), 1)
    assert Cost(schedule, machine.endpoints, PathFinder(machine), row_bytes=4).alpha_us == pytest.approx(best_us)


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("count", range(4, 18, 3))
def test_groups_that_lack_rails(count, gone):
    groups, machine = without(count, gone), machine_without(count, gone)
    where = {"paths": PathFinder(machine), "endpoints": machine.endpoints}
    for radix in (2, 9):
        schedule = cyclic_allreduce(groups, repeated(radix, count), 1)
        verify(schedule, Collective("allreduce", groups.starts[-1]), keep_order=True, **where)
    reduce = gossip_reduce(gather_over_groups(groups, 9), cyclic_tree(groups), 1, 9)
    verify(reduce, Collective("reduce", groups.starts[-1], root=9), **where)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 9, 2), (8, 8, 8), (1, 2, 3, 4)])
def test_parts_come_to_the_root_over_all_its_rails(sizes):
    ranks, groups = sum(sizes), groups_of(*sizes)
    for root in {0, ranks // 2, ranks - 1}:
        schedule = gossip_gather(rails_to_root(groups, root), [1] * ranks, root)
        verify(schedule, Collective("gather", ranks, root, (1,) * ranks))
        assert len(schedule.transfers) <= 3 * ranks
        if set(sizes) == {8}:  # one part of each group by every member of the root's
            home = [rank for rank in range(ranks) if rank // 8 == root // 8]
            across = [t for t in schedule.transfer_list() if t.src // 8 != t.dst // 8]
            assert sorted(t.dst for t in across) == sorted(home * 2)
