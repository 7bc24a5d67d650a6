"""Machines as nested groups, and the radices chosen for them."""

from dataclasses import replace

import pytest

import topocomm
from tests.machines import hosts, joined, switch
from topocomm import PlanError, plan
from topocomm.planning.algorithms.hosts.rails import rails_allreduce
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.routing import hierarchy
from topocomm.planning.routing.hierarchy import Steps, best_radices, cuts_of, hierarchy_of
from topocomm.planning.routing.paths import PathFinder


def nest(topology, ports=1):
    return hierarchy_of(topology.endpoints, PathFinder(topology), ports)


def test_groups_are_the_hosts():
    assert nest(hosts(3, 4)).edges == [(0, 4), (4, 8), (8, 12)]
    assert nest(joined([3, 1, 2])).edges == [(0, 3), (3, 4), (4, 6)]
    assert nest(switch(5)).flat


def test_sockets_are_groups_in_hosts():
    machine = topocomm.catalog("cpu-2-socket", hosts=3)
    cuts = cuts_of(machine.endpoints, PathFinder(machine))
    assert cuts == [tuple(range(0, 49, 8)), (0, 16, 32, 48)]


def test_one_rank():
    assert nest(switch(1)).soonest == ()


@pytest.mark.parametrize(
    ("groups", "members", "radices"), [(1, 8, ()), (2, 8, (2,)), (4, 8, (4,)), (9, 8, (9,)), (3, 1, (2, 2))]
)
def test_radices(groups, members, radices):
    assert best_radices(groups, members, 1, Steps(5.0, (0.6, 0.6, 0.6))) == radices


def test_many_hosts_need_few_hops():
    found = best_radices(2048, 8, 1, Steps(5.0, (0.6, 0.6, 0.6)))
    assert len(found) == 4


@pytest.mark.parametrize(
    ("count", "most_us"), [(2, 6.8), (3, 7.4), (4, 8.0), (7, 8.6), (8, 8.6), (11, 13.6), (16, 13.6), (17, 13.6)]
)
def test_plans_for_hosts_of_eight(count, most_us):
    """The best known times of hosts of 8 GPUs, 0.6 us inside and 5.0 us on the own rail."""
    made = plan(hosts(count, 8), payload_bytes=0, objective="latency")
    assert made.figures.alpha_us <= most_us + 1e-9
    assert made.proof.order_kept


@pytest.mark.parametrize(
    ("name", "best_us"),
    [
        ("dgx-h100", {1: 1.8, 2: 6.8, 4: 8.0, 8: 8.6, 16: 13.6}),
        ("mi300x-8", {1: 2.1, 2: 7.1, 4: 8.5}),
        ("dgx-1-v100", {1: 2.1, 2: 7.1, 4: 8.5}),
        ("cpu-2-socket", {1: 3 * 0.2 + 0.6}),
    ],
)
def test_catalogue(name, best_us):
    for count, us in best_us.items():
        made = plan(topocomm.catalog(name, hosts=count), payload_bytes=0, objective="latency")
        assert made.figures.alpha_us <= us + 1e-9, count
        assert made.proof.order_kept


def test_uneven_blocks_where_they_save_a_hop():
    """300 = 6 x 5 x 5 x 2 takes four hops between hosts, blocks of 8, 8 and 5 hosts or one less take three."""
    machine = hosts(300, 8)
    found = nest(machine)
    assert len(found.for_rails(few=False)[0]) == 3 < len(found.even)
    schedule = rails_allreduce(found.groups, found.spare, 1)
    cost = Cost(schedule, machine.endpoints, PathFinder(machine), row_bytes=4)
    assert cost.alpha_us == pytest.approx(1.8 + 3 * 5.0 + 8 * 0.6)


def lacking(count, *gone):
    """Hosts of eight without these devices."""
    whole = topocomm.catalog("dgx-h100", hosts=count)
    links = tuple(link for link in whole.links if not {link.src, link.dst} & set(gone))
    return replace(whole, devices=tuple(d for d in whole.devices if d.id not in gone), links=links, pairs=())


@pytest.mark.parametrize(
    ("count", "gone", "most_us"),
    [
        (2, ["h0/NIC0"], 7.4),
        (3, ["h1/NIC7"], 8.0),
        (16, ["h3/NIC7", "h3/GPU7"], 14.2),
        (16, ["h3/NIC0", "h4/NIC7"], 14.2),
        (31, ["h3/NIC0", "h3/GPU0"], 14.8),
        (64, ["h9/NIC3", "h10/NIC5", "h10/GPU5"], 15.4),
    ],
)
def test_hosts_that_lack_a_gpu_or_a_nic(count, gone, most_us):
    """A GPU without a way out is served by its host; its rail is left to the others."""
    machine = lacking(count, *gone)
    assert len(nest(machine).edges) == count
    made = plan(machine, payload_bytes=0, objective="latency")
    assert made.figures.alpha_us <= most_us + 1e-9
    topocomm.check_certificate(machine, made)


@pytest.mark.parametrize(
    ("collective", "most_us"), [("reduce", 13.6), ("broadcast", 13.6), ("allgather", 14.2), ("scan", 14.2)]
)
def test_other_collectives_on_such_hosts(collective, most_us):
    made = plan(lacking(16, "h3/NIC7", "h3/GPU7", "h9/NIC2"), collective, payload_bytes=0, objective="latency")
    assert made.figures.alpha_us <= most_us + 1e-9


def test_who_is_on_which_rail():
    machine = lacking(3, "h1/GPU2", "h1/NIC2", "h2/NIC5")
    rails = nest(machine).groups.members_on
    assert rails == (tuple(range(8)), (0, 1, -1, 2, 3, 4, 5, 6), (0, 1, 2, 3, 4, -1, 6, 7))


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter", "scan", "exscan"])
@pytest.mark.parametrize("commutative", [True, False])
def test_ranks_scattered_over_hosts(collective, commutative):
    """Launchers deal ranks round-robin: hops between hosts stay as few, and order is kept where it must be."""
    from tests.concatenation import CONCAT

    machine = hosts(4, 4)
    scattered = [f"h{rank % 4}/GPU{rank // 4}" for rank in range(16)]
    operator = topocomm.SUM if commutative else CONCAT
    try:
        made = plan(machine, collective, payload_bytes=0, objective="latency", ranks=scattered, operator=operator)
    except PlanError as error:
        pytest.fail(str(error))
    assert made.figures.alpha_us <= 2 * 0.6 + 5.0 + 2 * 0.6 + 1e-9
    assert commutative or made.proof.order_kept


def test_a_machine_is_grouped_once_for_all_its_plans():
    assert nest(hosts(3, 7)) is nest(hosts(3, 7))
    assert nest(hosts(3, 7), ports=2) is not nest(hosts(3, 7))


def test_groups_inside_hosts_that_look_alike_are_joined_once(monkeypatch):
    joined_groups, steps = [], hierarchy._Builder._steps
    monkeypatch.setattr(
        hierarchy._Builder,
        "_steps",
        lambda self, groups, first: joined_groups.append(first) or steps(self, groups, first),
    )
    machine = topocomm.catalog("dgx-1-v100", hosts=5)
    whole = nest(machine)
    assert len(cuts_of(machine.endpoints, PathFinder(machine))) > 1 and len(joined_groups) == 2
    joined_groups.clear()
    some = [end for end in machine.endpoints if end not in machine.endpoints[9:11]]  # the second host lacks two
    assert hierarchy_of(some, PathFinder(machine), 1).edges != whole.edges and len(joined_groups) == 3
