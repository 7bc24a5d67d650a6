"""Sums in switches: bytes that each link carries, times by hand, and what is refused."""

import pytest

from tests.machines import switch
from topocomm import PlanError, Topology, catalog
from topocomm.planning.cost.events import simulate
from topocomm.simulation.switch_sums import switch_sum

MEGABYTE = 10**6


def folding(topology, *, rails=False):
    """The topology with SHARP in its rail switches."""
    devices = [
        device._replace(in_network="sharp") if rails and device.id.startswith("rail") else device
        for device in topology.devices
    ]
    return Topology(topology.name, "test", tuple(devices), topology.links)


def test_every_value_goes_up_once_and_down_once():
    topology = catalog("dgx-h100")
    timeline = simulate(switch_sum(topology, MEGABYTE, slices=1), topology)
    for (src, dst), carried in zip(timeline.paths.edges, timeline.link_bytes, strict=True):
        assert carried == (MEGABYTE if {"nvswitch0"} & {src, dst} and "GPU" in src + dst else 0)
    assert timeline.total_us == pytest.approx(2 * MEGABYTE / 450e3 + 0.6)


def test_slices_overlap_the_ways_up_and_down():
    """With 10 slices the way down ends one slice after the way up."""
    topology = catalog("dgx-h100")
    timeline = simulate(switch_sum(topology, 10 * MEGABYTE, slices=10), topology)
    assert timeline.total_us == pytest.approx(11 * MEGABYTE / 450e3 + 0.6)
    assert timeline.link_bytes.sum() == 16 * 10 * MEGABYTE


def test_long_payloads_take_what_a_link_takes():
    topology = catalog("dgx-h100")
    run = simulate(switch_sum(topology, 1 << 30), topology)
    assert (1 << 30) / 450e3 < run.total_us < 1.05 * (1 << 30) / 450e3


def test_over_hosts_parts_are_summed_on_their_rails():
    topology = folding(catalog("dgx-h100", hosts=4), rails=True)
    timeline = simulate(switch_sum(topology, 8 * MEGABYTE, slices=1), topology)
    carried = dict(zip(timeline.paths.edges, timeline.link_bytes.tolist(), strict=True))
    assert carried["h2/NIC3", "rail3"] == carried["rail3", "h2/NIC3"] == MEGABYTE
    assert carried["h2/GPU3", "h2/nvswitch0"] == carried["h2/nvswitch0", "h2/GPU3"] == 9 * MEGABYTE
    hosts_us = 9 * 2 * MEGABYTE / 450e3 + 2 * 0.6
    assert timeline.total_us == pytest.approx(hosts_us + 2 * MEGABYTE / 50e3 + 2 * 2.5)


def test_one_rank_of_each_host_meets_at_the_rail():
    topology = folding(catalog("dgx-h100", hosts=4), rails=True)
    ranks = [f"h{host}/GPU0" for host in range(4)]
    timeline = simulate(switch_sum(topology, MEGABYTE, ranks=ranks, slices=1), topology)
    assert timeline.total_us == pytest.approx(2 * MEGABYTE / 50e3 + 2 * 2.5)


def test_nothing_to_send_takes_the_latency():
    topology = catalog("dgx-h100")
    assert simulate(switch_sum(topology, 0), topology).total_us == pytest.approx(0.6)


def test_a_launch_is_paid_once():
    topology = catalog("dgx-h100")
    plain, launched = (
        simulate(switch_sum(topology, 10 * MEGABYTE, slices=10, launch_us=us), topology).total_us for us in (0.0, 6.6)
    )
    assert launched == pytest.approx(plain + 6.6)


def test_what_is_refused():
    with pytest.raises(PlanError, match="no switch folds; expected one with in_network nvls or sharp"):
        switch_sum(switch(4), 8)
    with pytest.raises(PlanError, match="no switch that folds is above h0/GPU0 and h1/GPU0"):
        switch_sum(catalog("dgx-h100", hosts=2), 8)
