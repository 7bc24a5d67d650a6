"""Groups of a request's ranks: hosts by first appearance, and the rings inside."""

from dataclasses import replace

import pytest

from tests.plans import request_on
from topocomm import SUM, catalog, plan
from topocomm.planning.algorithms.gossip_schedule import gossip_reduce, gossip_scan
from topocomm.planning.algorithms.multiport import gossip_back
from topocomm.planning.collectives import collective_of
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.rank_patterns import RankPatterns, dotted
from topocomm.planning.request import BoundedBuild
from topocomm.planning.routing.paths import PathFinder


def patterns_on(machine, **other):
    request = request_on(machine, "allreduce", SUM, SUM.default_layout(4096))
    return RankPatterns(replace(request, **other), PathFinder(machine))


def test_ranks_are_taken_host_by_host():
    machine = catalog("dgx-h100", hosts=2)
    whole = patterns_on(machine)
    assert whole.in_order and whole.order == tuple(range(16))
    turned = patterns_on(machine, endpoints=(*whole.request.endpoints[1::2], *whole.request.endpoints[::2]))
    assert not turned.in_order
    assert turned.order == (*range(4), *range(8, 12), *range(4, 8), *range(12, 16))
    assert turned.hierarchy.groups.count == 2


def test_rings_are_there_where_one_sort_of_groups_wants_one():
    assert patterns_on(catalog("dgx-h100", hosts=2)).rings() is None
    rings = patterns_on(catalog("dgx-1-v100", hosts=2)).rings()
    assert rings and all(sorted(ring) == list(range(len(ring))) for ring in rings)


def test_names_of_radices():
    assert dotted((8, 2)) == "8.2"


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
def test_short_values_of_one_root_go_to_all_hosts_at_once(name):
    """From 65 hosts on they took two hops between hosts, 1.85 times as long as over 64."""
    made = {count: plan(catalog("dgx-b200", hosts=count), name, payload_bytes=2048) for count in (64, 65)}
    assert made[65].algorithm in ("rails-tree-k8", "rails-65-k8")
    assert made[65].figures.predicted_us < 1.05 * made[64].figures.predicted_us


def test_short_values_go_to_all_hosts_at_once_beyond_64_too():
    """From 65 hosts on they took two hops between hosts, 1.79 times as long as over 64."""
    made = {count: plan(catalog("dgx-h100", hosts=count), payload_bytes=2048) for count in (64, 65)}
    assert made[65].algorithm == "rails-65-k8"
    assert made[65].figures.predicted_us < 1.05 * made[64].figures.predicted_us


@pytest.mark.parametrize("ports", [1, 3])
@pytest.mark.parametrize(("system", "count"), [("dgx-h100", 33), ("rtx4090-pcie-8", 36), ("mi250x", 35)])
def test_whole_values_take_no_less_than_their_bound(system, count, ports):
    """Also without events: the port that serves most is no less busy."""
    machine = catalog(system, hosts=count)
    for name, root in (("reduce", 0), ("reduce", 100), ("broadcast", 9), ("scan", 0)):
        collective = collective_of(name, len(machine.endpoints), 1 << 18, root=root)
        own = patterns_on(machine, collective=collective, layout=SUM.default_layout(1 << 18), ports=ports)
        for pattern in own.patterns() if name == "scan" else own.to_root():
            if not pattern.least_us:
                continue
            made = {"reduce": gossip_reduce, "broadcast": gossip_back}.get(name)
            schedule = made(*pattern.made, 1 << 18, root) if made else gossip_scan(*pattern.made, 1 << 18, own=True)
            cost = Cost(schedule, machine.endpoints, own.paths, row_bytes=4, ports=ports, port_model="loggp")
            assert 0 < pattern.least_us <= cost.floor_us
            assert isinstance(pattern.whole(gossip_reduce), BoundedBuild)


def test_only_whole_values_of_many_ranks_have_a_bound():
    large, small = catalog("dgx-h100", hosts=33), catalog("dgx-h100", hosts=4)
    for machine, name in ((large, "allgather"), (small, "scan")):
        collective = collective_of(name, len(machine.endpoints), 1 << 20)
        own = patterns_on(machine, collective=collective, layout=SUM.default_layout(1 << 20))
        made = list(own.patterns())
        assert made and not any(pattern.least_us for pattern in made)
        assert not isinstance(made[0].whole(gossip_reduce), BoundedBuild)


def test_ports_at_once_share_what_a_group_is_told():
    """32 other hosts send their sums to the last one, four to each of its eight members, 1 MiB each at 50 GB/s."""
    machine = catalog("dgx-h100", hosts=33)
    collective, layout = collective_of("scan", len(machine.endpoints), 1 << 18), SUM.default_layout(1 << 18)
    for ports in (1, 4):
        own = patterns_on(machine, collective=collective, layout=layout, ports=ports)
        assert own._least_us(own.hierarchy.groups, (33,)) == pytest.approx(4 / ports * (1 << 20) / 50e3)


@pytest.mark.parametrize(("name", "payload_bytes", "most"), [("allgather", 1024, 1.85), ("allreduce", 64, 2.0)])
def test_up_to_256_hosts_send_short_values_to_all_at_once(name, payload_bytes, most):
    """By radices it was 3.07 and 3.08 times the bound: two messages in a row between hosts, in many rounds."""
    made = plan(catalog("a100-pcie-4", hosts=204), name, payload_bytes=payload_bytes)
    assert made.algorithm == "rails-204-k51" and made.certificate.gap <= most


def test_of_many_hosts_no_other_widths_are_tried():
    """They lose by far, and take as long to plan."""
    names = {
        count: [each.name for each in patterns_on(catalog("rtx3090-pair", hosts=count)).patterns()]
        for count in (150, 200)
    }
    assert [sum("-k" in name for name in names[count]) for count in (150, 200)] == [3, 1]
