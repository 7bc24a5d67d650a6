"""Bounds against published optima, and no plan better than its bound."""

import pytest

import topocomm
from tests.machines import hosts, switch
from topocomm.planning.bounds import bounds_of, least_rounds
from topocomm.planning.collectives import Collective
from topocomm.planning.paths import PathFinder
from topocomm.planning.planner import every_plan


def bounds(topology, name="allreduce", ports=1, port_model="alpha"):
    ends = topology.endpoints
    return bounds_of(Collective(name, len(ends)), ends, PathFinder(topology), ports=ports, port_model=port_model)


@pytest.mark.parametrize(
    ("ranks", "ports", "rounds"),
    [(1, 1, 0), (2, 1, 1), (3, 1, 2), (8, 1, 3), (9, 1, 4), (8, 2, 2), (9, 2, 2), (10, 2, 3), (8, 7, 1)],
)
def test_least_rounds(ranks, ports, rounds):
    assert least_rounds(ranks, ports) == rounds


def test_eight_gpus_on_nvswitch():
    found = bounds(switch(8))
    assert found.throughput_gb_per_s == pytest.approx(1800 / 7)
    assert (found.rounds, found.alpha_us) == (3, pytest.approx(1.8))
    assert "3 messages in a row" in found.alpha_argument


def test_hosts_bind_where_the_network_is_narrow():
    """2 x 8 GPUs at 450 GB/s with 50 GB/s NICs: single GPUs bind (800/3), as published."""
    assert bounds(topocomm.catalog("dgx-h100", hosts=2)).throughput_gb_per_s == pytest.approx(800 / 3)
    assert bounds(hosts(2, 2)).throughput_gb_per_s == pytest.approx(min(4 * 500 / 6, 4 * 50 / 2))


def test_the_farthest_pair_binds_latency():
    found = bounds(hosts(2, 1))
    assert found.alpha_us == pytest.approx(5.0)
    assert "5 us apart" in found.alpha_argument


def test_dgx1_matches_the_published_optimum():
    found = bounds(topocomm.catalog("dgx-1-v100"))
    nvlink_only = 600 / 7
    assert found.throughput_gb_per_s >= nvlink_only  # PCIe adds egress to NVLink's 150 GB/s a GPU


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 12])
@pytest.mark.parametrize("collective", ["allreduce", "reduce", "broadcast"])
def test_no_plan_beats_its_bound(collective, ranks):
    topology = switch(ranks)
    for plan in every_plan(topology, collective, topocomm.SUM, topocomm.SUM.default_layout(1000)):
        certificate = plan.certificate
        assert plan.figures.rounds >= certificate.rounds_lower_bound
        assert plan.figures.alpha_us >= certificate.alpha_lower_bound_us - 1e-9
        assert plan.figures.throughput_gb_per_s <= certificate.throughput_upper_bound_gb_per_s * (1 + 1e-9)
        assert certificate.gap >= 1 - 1e-9
