"""Groups with ways of their own between members: the known optima, any sizes, any number of groups."""

from dataclasses import replace

import pytest

from tests.machines import hosts
from tests.planning.algorithms.hosts.machines import GONE, groups_of, machine_without, repeated, without
from tests.planning.replay import expected, replay
from tests.thinning import alternating, thinned
from topocomm import catalog
from topocomm.planning.algorithms.gossip_schedule import gossip_of, gossip_scan
from topocomm.planning.algorithms.hosts.rails import rails_allreduce, rails_gossip, rails_tree
from topocomm.planning.collectives import Collective
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder


@pytest.mark.parametrize("count", [*range(1, 18), 33])
@pytest.mark.parametrize("members", thinned([1, 2, 3, 4, 8]))
def test_every_radix_for_any_number_of_groups(count, members):
    groups = groups_of(*[members] * count)
    collective = Collective("allreduce", count * members)
    for radix in range(2, members + 2):
        radices = repeated(radix, count)
        assert verify(rails_allreduce(groups, radices, 1), collective).order_kept
    assert replay(rails_allreduce(groups, radices, 1)) == expected(collective, [(0, 1)])


@pytest.mark.parametrize("sizes", [(2, 1), (3, 5), (8, 7, 8), (1, 2, 3, 4), (4, 4, 3, 4, 4), (8, 4)])
def test_uneven_groups(sizes):
    collective = Collective("allreduce", sum(sizes))
    for radix in range(2, min(sizes) + 2):
        for ports in (1, 2):
            groups, radices = groups_of(*sizes, ports=ports), repeated(radix, len(sizes))
            assert verify(rails_allreduce(groups, radices, 1, ports), collective).order_kept


@pytest.mark.parametrize(
    ("count", "radices", "best_us"),
    [(2, (2,), 6.8), (4, (4,), 8.0), (5, (5,), 8.0), (8, (8,), 8.6), (9, (9,), 8.6), (16, (8, 2), 13.6)],
)
def test_known_optima_of_hosts_of_eight(count, radices, best_us):
    """0.6 us inside, 5.0 us on the own rail: 16 hosts need two hops between hosts, 4 and 8 hosts one."""
    machine = hosts(count, 8)
    paths = PathFinder(machine)
    groups = groups_of(*[8] * count)
    cost = Cost(rails_allreduce(groups, radices, 1), machine.endpoints, paths, row_bytes=4)
    assert cost.alpha_us == pytest.approx(best_us)


def test_one_value_a_message_where_the_radix_is_a_power_of_two():
    moves = rails_allreduce(groups_of(*[8] * 64), (8, 8), 1).transfer_list()
    assert len({(m.round, m.src, m.dst) for m in moves}) == len(moves)


def test_a_group_that_lacks_a_rail_is_heard_on_the_others():
    """Members of the smaller group are on rails 0 and 2; who has no partner on rail 1 is told inside."""
    even = groups_of(3, 2)
    groups = replace(even, rails=((0, 1, 2), (0, -1, 1)))
    moves = [m for m in rails_allreduce(groups, (2,), 1).transfer_list() if (m.src < 3) != (m.dst < 3)]
    assert sorted((m.src, m.dst) for m in moves) == [(0, 3), (2, 4), (3, 0), (4, 2)]


@pytest.mark.parametrize(("known", "gone"), alternating([(8, (8,)), (32, (8, 4)), (64, (8, 8)), (60, (8, 8))], GONE))
def test_groups_that_lack_a_rail_cost_no_time_where_one_is_to_spare(known, gone):
    count, radices = known
    groups, machine = without(count, gone), machine_without(count, gone)
    us = {
        name: Cost(rails_allreduce(these, radices, 1), top.endpoints, PathFinder(top), row_bytes=4).alpha_us
        for name, these, top in (("whole", groups_of(*[8] * count), hosts(count, 8)), ("lacking", groups, machine))
    }
    assert us["lacking"] <= us["whole"] + 1e-9
    verify(rails_allreduce(groups, radices, 1), Collective("allreduce", groups.starts[-1]), keep_order=True)


@pytest.mark.parametrize(("count", "gone"), alternating(range(4, 18), GONE))
def test_every_number_of_groups_that_lack_rails(count, gone):
    groups, machine = without(count, gone), machine_without(count, gone)
    ranks, paths = Collective("allreduce", groups.starts[-1]), PathFinder(machine)
    for radices in (repeated(2, count), repeated(3, count), repeated(8, count), repeated(9, count)):
        schedule = rails_allreduce(groups, radices, 1)
        verify(schedule, ranks, keep_order=True, paths=paths, endpoints=machine.endpoints)


@pytest.mark.parametrize("count", [2, 3, 4, 8, 11])
@pytest.mark.parametrize("own", [True, False])
def test_a_scan_takes_no_longer(count, own):
    machine = hosts(count, 4)
    groups, radices = groups_of(*[4] * count), repeated(5, count)
    told = rails_allreduce(groups, radices, 1)
    scan = gossip_scan(gossip_of(told), rails_tree(groups, radices), 1, own=own)
    verify(scan, Collective("scan" if own else "exscan", 4 * count), keep_order=True)
    us = [Cost(schedule, machine.endpoints, PathFinder(machine), row_bytes=4).alpha_us for schedule in (scan, told)]
    assert us[0] <= us[1] + 1e-9


def test_ports_that_keep_to_their_order_do_not_make_groups_wait_in_a_row():
    """Messages stood by destination, so that with bytes each host waited for the one before: 45 us."""
    machine = catalog("rtx4090-pcie-8", hosts=16)
    schedule = rails_allreduce(groups_of(*[8] * 16, ports=4), (16,), 256, 4)
    rules = {"row_bytes": 4, "port_model": "loggp"}
    assert Cost(schedule, machine.endpoints, PathFinder(machine), **rules).predicted_us < 17


def test_payloads_of_one_machine_share_the_columns():
    groups = groups_of(8, 8, 8)
    short, long = (rails_allreduce(groups, (3,), rows) for rows in (5, 1000))
    assert long.transfers is short.transfers and long.combines is short.combines
    assert (short.chunks, long.chunks) == (((0, 5),), ((0, 1000),))
    assert rails_allreduce(groups, (2, 2), 5).transfers is not short.transfers
    assert len(rails_allreduce(groups, (3,), 5, 2).transfers) > 0


@pytest.mark.parametrize("ports", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(1,), (5,), (2, 1), (3, 5), (8, 7, 8), (1, 2, 3, 4), (4,) * 7, (8,) * 16, (2,) * 11])
def test_messages_without_values_are_those_of_the_allreduce(sizes, ports):
    groups = groups_of(*sizes, ports=ports)
    for radix in (2, 3, 5, 9, 16):
        radices = repeated(radix, len(sizes))
        told = gossip_of(rails_allreduce(groups, radices, 1, ports))
        assert [list(messages) for messages in rails_gossip(groups, radices, ports)] == told


@pytest.mark.parametrize("gone", GONE)
def test_messages_without_values_where_groups_lack_rails(gone):
    for count in (4, 9, 16):
        groups = without(count, gone)
        for radices in (repeated(2, count), repeated(8, count), repeated(9, count)):
            assert rails_gossip(groups, radices) == gossip_of(rails_allreduce(groups, radices, 1))


def test_messages_of_one_machine_are_found_once():
    groups = groups_of(4, 4, 4)
    assert rails_gossip(groups, (3,)) is rails_gossip(groups_of(4, 4, 4), (3,))
    assert rails_gossip(groups, (3,)) is not rails_gossip(groups, (3,), 2)
