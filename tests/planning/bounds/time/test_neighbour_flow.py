"""What results take of the ranks before them: by hand where links lack, and beside what the fastest links say."""

from itertools import pairwise

import numpy as np
import pytest

import topocomm
from tests.machines import switch
from topocomm import Device, Link, Topology, check_certificate, plan
from topocomm.planning.bounds.demand import demand_of
from topocomm.planning.bounds.machine_columns import Machine
from topocomm.planning.bounds.time.neighbour_flow import _least_shared, neighbour_flows
from topocomm.planning.collectives import collective_of
from topocomm.planning.routing.paths import PathFinder

MIB = 1 << 20


def one_way(rates, ranks=4):
    """GPUs of one host with these links, each 1 us long."""
    devices = tuple(Device(f"GPU{rank}", "gpu", host="h0") for rank in range(ranks))
    links = tuple(Link(f"GPU{a}", f"GPU{b}", "nvlink", 1, rate, 1.0, None) for (a, b), rate in rates.items())
    return Topology("one way", "test", devices, links)


def found(machine, name, ports=1, ranks=None):
    ends = ranks or machine.endpoints
    made = demand_of(collective_of(name, len(ends), 1200))
    return [each.gb_per_s for each in neighbour_flows(made, Machine(ends, PathFinder(machine)), ports)]


def test_results_of_an_exscan_share_no_message_and_those_of_a_scan_one():
    """Rank 1 sends rank 0 its value, which sends both on: of a scan that is the result of rank 1 and what rank 2 needs.

    So the slow link has one payload, and the port of rank 3 that one and what rank 2 sends. Of an exscan it has two.
    """
    machine = one_way({(1, 0): 100.0, (0, 3): 10.0, (3, 1): 100.0, (3, 2): 100.0, (2, 3): 100.0})
    assert found(machine, "exscan") == pytest.approx([1 / (2 / 10 + 1 / 100)], rel=1e-4)
    assert found(machine, "scan") == pytest.approx([1 / (1 / 10 + 1 / 100)], rel=1e-4)
    for name in ("scan", "exscan"):
        check_certificate(machine, plan(machine, name, payload_bytes=16 * MIB))


def test_ranks_without_a_link_take_a_relay():
    """Ranks 1 and 2 have no link: their neighbours carry what they exchange, each a value more."""
    machine = one_way({(a, b): 100.0 for a in range(4) for b in range(4) if a != b and {a, b} != {1, 2}})
    assert found(machine, "exscan") == pytest.approx([100 / 1.5], rel=1e-4)
    assert found(switch(4), "scan") == pytest.approx([450.0], rel=1e-6)


def test_two_ports_carry_twice_as_much_over_a_switch_of_many_links():
    rates = {(a, b): 100.0 for a in range(4) for b in range(4) if a != b}
    assert found(one_way(rates), "exscan") == pytest.approx([100.0], rel=1e-4)
    assert found(one_way(rates), "exscan", ports=2)[0] > 130.0


@pytest.mark.parametrize(
    ("system", "hosts", "gb_per_s"),
    [
        ("dgx-1-v100", 1, 27.69),
        ("mi250x", 1, 67.74),
        ("dgx-2", 3, 83.14),
        ("mi250x", 4, 52.32),
        ("dgx-1-p100", 3, 14.18),
    ],
)
def test_catalogue_systems_have_what_a_program_of_all_flows_has(system, hosts, gb_per_s):
    """Figures of a linear program of flows by arcs, not of this code; by one route a pair DGX-1 P100 has 13.82."""
    assert found(topocomm.catalog(system, hosts=hosts), "exscan") == pytest.approx([gb_per_s], rel=1e-3)


@pytest.mark.parametrize("name", ["scan", "exscan"])
@pytest.mark.parametrize(("system", "hosts"), [("dgx-1-v100", 1), ("mi250x", 2), ("v100-4", 3)])
def test_the_certificate_has_it_and_is_checked(system, hosts, name):
    machine = topocomm.catalog(system, hosts=hosts)
    one = plan(machine, name, payload_bytes=64 * MIB)
    assert one.certificate.witness["kind"] == "neighbours" and one.certificate.gap < 1.35
    check_certificate(machine, one)


def test_ranks_of_hosts_in_turns_are_bounded_as_they_lie():
    """Every rank hears of another host: the NICs of a host carry as many values as it has ranks."""
    machine = topocomm.catalog("dgx-h100", hosts=2)
    ends = tuple(end for pair in zip(machine.endpoints[:8], machine.endpoints[8:], strict=True) for end in pair)
    apart, along = (max(found(machine, "scan", ranks=own)) for own in (ends, machine.endpoints))
    assert apart < along / 4
    one = plan(machine, "scan", payload_bytes=64 * MIB, ranks=ends)
    check_certificate(machine, one)


def test_no_way_is_shorter_than_what_its_ranks_need_alone():
    """Where lengths are those of cuts nothing is saved; of any lengths not more than half."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        apart = rng.random((6, 6))
        np.fill_diagonal(apart, 0.0)
        for over in range(6):
            apart = np.minimum(apart, apart[:, over, None] + apart[None, over])
        run = [5, 0, 1, 2, 3, 4, 5]
        alone = sum(apart[a, b] for a, b in pairwise(run))
        least, ways = _least_shared(apart, run)
        assert 0.5 * alone - 1e-9 <= least <= alone + 1e-9
        assert sum(apart[way] for way in ways) == pytest.approx(least)
        side = rng.random(6) < 0.5
        cut = (side[:, None] & ~side).astype(float)
        assert _least_shared(cut, run)[0] == sum(cut[a, b] for a, b in pairwise(run))
