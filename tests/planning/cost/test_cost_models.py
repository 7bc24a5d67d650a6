"""Costs of small cases whose figures follow by hand from the cost models."""

from math import inf

import pytest

from tests.machines import hosts, line, switch
from topocomm import Device, Link, Topology, catalog
from topocomm.planning.algorithms.binomial import binomial_allreduce, binomial_broadcast
from topocomm.planning.algorithms.flat import flat_allreduce, flat_broadcast
from topocomm.planning.algorithms.recursive_doubling import recursive_doubling_allreduce
from topocomm.planning.algorithms.ring import ring_allreduce
from topocomm.planning.cost.cost_models import Cost, soonest
from topocomm.planning.cost.pipeline_head import adds_rounds
from topocomm.planning.routing.paths import NoRouteError, PathFinder
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder
from topocomm.planning.schedule.transforms import sliced


def cost(schedule, topology, **changes):
    return Cost(schedule, topology.endpoints, PathFinder(topology), **({"row_bytes": 4} | changes))


def test_recursive_doubling_on_a_switch_of_eight():
    figures = cost(recursive_doubling_allreduce(8, 4128), switch(8))
    assert figures.alpha_us == pytest.approx(1.8)
    assert figures.predicted_us == pytest.approx(1.8 + 3 * 16_512 / 450e3)
    assert (figures.rounds, figures.messages, figures.wire_bytes) == (3, 24, 24 * 16_512)
    assert figures.throughput_gb_per_s == pytest.approx(450 / 3)


def test_two_hosts_cross_once():
    assert cost(recursive_doubling_allreduce(16, 0), hosts(2, 8)).alpha_us == pytest.approx(3 * 0.6 + 5.0)


def test_ring_reaches_the_bandwidth_optimum():
    assert cost(ring_allreduce(8, 8), switch(8)).throughput_gb_per_s == pytest.approx(8 * 450 / 14)


def test_payload_zero_still_has_a_throughput():
    """Latency-only plans are rated for the pipelined payload they would carry."""
    assert cost(ring_allreduce(8, 0), switch(8)).throughput_gb_per_s == pytest.approx(8 * 450 / 14)


@pytest.mark.parametrize(("ports", "expected_us"), [(1, 3 * 0.6), (2, 2 * 0.6), (3, 0.6)])
def test_alpha_serialises_what_exceeds_the_ports(ports, expected_us):
    assert cost(flat_broadcast(4, 0, 0), switch(4), ports=ports).alpha_us == pytest.approx(expected_us)


@pytest.mark.parametrize(("gap_us", "expected_us"), [(0.0, 0.6), (0.25, 0.5 + 0.6)])
def test_loggp_holds_a_port_for_the_gap_only(gap_us, expected_us):
    figures = cost(flat_broadcast(4, 0, 0), switch(4, gap_us=gap_us), port_model="loggp")
    assert figures.alpha_us == pytest.approx(expected_us)


def test_loggp_nic_serves_one_message_per_gap():
    """The four messages of the first round all cross both NICs: the last one waits for three gaps."""
    names = ["a0", "a1", "b0", "b1"]
    devices = [Device(n, "gpu", host=n[0]) for n in names] + [Device("na", "nic"), Device("nb", "nic")]
    wires = [("a0", "na"), ("a1", "na"), ("na", "nb"), ("nb", "b0"), ("nb", "b1")]
    links = [Link(x, y, "network", 1, 10.0, 1.0, 0.4) for a, b in wires for x, y in ((a, b), (b, a))]
    topology = Topology("two NICs", "test", tuple(devices), tuple(links))
    schedule = recursive_doubling_allreduce(4, 0)
    both_cross = Cost(
        schedule, ["a0", "b0", "a1", "b1"], PathFinder(topology), row_bytes=4, port_model="loggp"
    ).alpha_us
    assert both_cross == pytest.approx((3 * 0.4 + 3.0) + 2.0)


def test_relays_take_two_messages():
    assert cost(binomial_broadcast(2, 0, 0), line(2)).alpha_us == pytest.approx(1.0)
    with pytest.raises(NoRouteError, match="GPU0 -> GPU2: no path leads there"):
        cost(flat_broadcast(3, 0, 0), line(3))


def test_ranks_of_one_endpoint_share_its_ports():
    topology = switch(2)
    figures = Cost(
        recursive_doubling_allreduce(4, 0), ["GPU0", "GPU0", "GPU1", "GPU1"], PathFinder(topology), row_bytes=4
    )
    assert figures.alpha_us == pytest.approx(4 * 0.6)


@pytest.mark.parametrize("model", ["alpha", "loggp"])
def test_fluid_time_is_alpha_time_when_bytes_vanish(model):
    for build in (recursive_doubling_allreduce, ring_allreduce, flat_allreduce):
        for ranks in (2, 3, 5, 8):
            machine = (
                hosts(2, ranks // 2) if ranks % 2 == 0 and build is recursive_doubling_allreduce else switch(ranks)
            )
            thin = cost(build(ranks, 10**6), machine, row_bytes=1, port_model=model)
            none = cost(build(ranks, 0), machine, row_bytes=1, port_model=model)
            fast = cost(build(ranks, 40), machine, row_bytes=1, port_model=model)
            assert fast.predicted_us == pytest.approx(none.alpha_us, abs=0.05)
            assert thin.alpha_us == pytest.approx(none.alpha_us)
            assert thin.predicted_us > none.alpha_us


def test_flows_share_a_link_max_min_fairly():
    """Root 0 sends 1 MB to three others at once over its one 450 GB/s uplink."""
    megabyte = 10**6
    figures = cost(flat_broadcast(4, megabyte, 0), switch(4), row_bytes=1, ports=3)
    assert figures.predicted_us == pytest.approx(0.6 + 3 * megabyte / 450e3)


def test_a_slow_flow_leaves_its_share_to_the_others():
    devices = (Device("a", "gpu"), Device("b", "gpu"), Device("c", "gpu"), Device("s", "switch"))
    rates = {"a": 30.0, "b": 10.0, "c": 100.0}
    links = tuple(
        Link(x, y, "nvlink", 1, rate, 0.0) for end, rate in rates.items() for x, y in ((end, "s"), ("s", end))
    )
    topology = Topology("uneven", "test", devices, links)
    kilobytes = 30_000
    figures = Cost(flat_broadcast(3, kilobytes, 0), ["a", "b", "c"], PathFinder(topology), row_bytes=1, ports=2)
    assert figures.predicted_us == pytest.approx(kilobytes / 10e3)  # b at 10, c at the 20 left: b ends last


def test_bytes_by_rounds_are_those_of_rounds_that_wait_for_each_other():
    machine = hosts(2, 4)
    figures = cost(recursive_doubling_allreduce(8, 1000), machine)
    assert figures.by_rounds_us == pytest.approx(5.0 + 2 * 0.6 + 4000 / 50e3 + 2 * 4000 / 450e3)
    assert figures.by_rounds_us == pytest.approx(figures.predicted_us)


def test_schedules_of_very_many_messages_are_reckoned_by_rounds(monkeypatch):
    ring = ring_allreduce(16, 16 * 800)
    assert cost(sliced(ring, 4, 1), switch(16)).predicted_us != cost(sliced(ring, 4, 1), switch(16)).by_rounds_us
    monkeypatch.setattr("topocomm.planning.cost.pipeline_head.MOST_MESSAGES", 400)
    assert cost(ring, switch(16)).adds_rounds
    assert not cost(sliced(ring, 4, 1), switch(16)).adds_rounds, "of pipelines more messages are followed"
    monkeypatch.setattr("topocomm.planning.cost.pipeline_head.MOST_PIPELINED", 500)
    many = cost(sliced(ring, 4, 1), switch(16))
    assert many.adds_rounds and many.predicted_us == many.by_rounds_us
    assert adds_rounds(sliced(ring, 4, 1), ring, 4 * 500) is False, "a head of as many messages is followed"


@pytest.mark.parametrize("stagger", [0, 1, 2, 3, 7])
def test_messages_of_slices_are_counted_without_all_of_them(stagger):
    """Those of several slices in one round from one rank to another are one."""
    for schedule in (ring_allreduce(6, 6 * 800), binomial_allreduce(6, 800), recursive_doubling_allreduce(8, 800)):
        figures = cost(sliced(schedule, 5, stagger), switch(schedule.ranks))
        every = figures._messages
        assert figures.messages == len(every) and figures.rounds == len(set(every.round.tolist()))
        assert figures.wire_bytes == every.payload_bytes.sum()


def test_a_very_long_pipeline_takes_what_its_head_says_without_bytes(monkeypatch):
    pipeline = sliced(ring_allreduce(8, 8 * 64 * 300), 300, 1)
    machine = switch(8, gap_us=0.1)
    exact_us = cost(pipeline, machine, port_model="loggp").alpha_us
    monkeypatch.setattr("topocomm.planning.cost.cost_models.MOST_UNROLLED", 1000)
    monkeypatch.setattr("topocomm.planning.cost.cost_models.Cost.unrolled", None)  # never asked for
    assert cost(pipeline, machine, port_model="loggp").alpha_us == pytest.approx(exact_us, rel=0.01)


def test_latencies_of_pipelines_pass_while_others_send():
    """Two hops, the second two rounds later; four slices of 0.4 us: a round waits for what it forwards, 0.6 us long."""
    build = ScheduleBuilder(3, ((0, 180_000),), contributors=[0])
    build.output(2, build.send(2, 1, build.send(0, 0, 0, 1), 2))
    figures = cost(sliced(build.build(), 4, 1), switch(3), port_model="loggp")
    second_hops_us = [0.4 + 0.6, 0.4 + 0.6 + 0.4, 1.4 + 0.6, 2.0 + 0.4]
    assert figures.by_rounds_us == pytest.approx(second_hops_us[-1] + 0.4 + 0.6)


def test_what_takes_longer_than_asked_is_not_worked_out():
    figures = cost(ring_allreduce(8, 8000), switch(8))
    known = cost(ring_allreduce(8, 8000), switch(8)).predicted_us
    assert figures.predicted_within(known / 2) == figures.predicted_within(known * 0.99) == inf
    assert figures.predicted_within(known * 1.01) == figures.predicted_us == known


@pytest.mark.parametrize(("port_model", "busiest_us"), [("alpha", 3 * 0.1 + 2 * 0.6), ("loggp", 3 * 0.1 + 2 * 0.25)])
def test_the_busiest_port_serves_all_but_the_last_hold(port_model, busiest_us):
    """Three messages of 45 kB, 0.1 us each, and what their port is held beside, which nothing waits for at last."""
    figures = cost(flat_broadcast(4, 11_250, 0), switch(4, gap_us=0.25), port_model=port_model)
    assert figures.busiest_us == pytest.approx(busiest_us) and figures.predicted_us == pytest.approx(busiest_us + 0.6)


@pytest.mark.parametrize("port_model", ["alpha", "loggp"])
@pytest.mark.parametrize("ports", [1, 2])
def test_no_time_is_below_that_of_the_busiest_port(port_model, ports):
    for rows in (8, 8000, 8_000_000):
        for schedule in (ring_allreduce(8, rows), sliced(ring_allreduce(8, rows), 2, 1), flat_allreduce(8, rows)):
            figures = cost(schedule, catalog("rtx4090-pcie-8"), ports=ports, port_model=port_model)
            assert figures.busiest_us <= figures.predicted_us


def test_a_pipeline_exceeds_what_its_bytes_or_its_latencies_take():
    figures = cost(sliced(ring_allreduce(8, 8000), 2, 1), switch(8))
    least_us = max(figures.busiest_us, figures.alpha_us)
    assert figures.exceeds(0.999 * least_us) and not figures.exceeds(least_us)


def test_only_what_may_be_soonest_is_simulated():
    """GPUs behind host bridges: flows share links, so that times take events; bounds say that two are too slow."""
    machine = catalog("rtx4090-pcie-8")
    costs = [cost(build(8, 8_000_000), machine) for build in (flat_allreduce, ring_allreduce, binomial_allreduce)]
    assert soonest(costs, 1e-6) == [1]
    for known in ("floor_us", "predicted_us"):
        assert [known in vars(each) for each in costs] == [False, True, False]
    times_us = [each.predicted_us for each in costs]
    assert times_us[1] == min(times_us)


def test_long_simulations_can_be_left_out():
    machine = catalog("rtx4090-pcie-8")
    costs = [cost(build(8, 8_000_000), machine) for build in (flat_allreduce, ring_allreduce)]
    assert [each.simulates(10) for each in costs] == [True, False]
    assert soonest(costs[:1], 1e-6, most_simulated=10) == []
    assert "predicted_us" not in vars(costs[0])
    assert soonest(costs[:1], 1e-6, most_simulated=costs[0].messages) == [0]
    assert not costs[0].simulates(10), "what is known is not simulated"


@pytest.mark.parametrize("rows", [8, 8000, 800_000])
@pytest.mark.parametrize("system", ["dgx-1-v100", "dgx-h100", "rtx4090-pcie-8", "mi250x"])
def test_bounds_are_below_the_time(system, rows):
    for port_model in ("alpha", "loggp"):
        for whole in (flat_allreduce(8, rows), ring_allreduce(8, rows), recursive_doubling_allreduce(8, rows)):
            for schedule in (whole, sliced(whole, 4, 1)):
                figures = cost(schedule, catalog(system), port_model=port_model)
                bounds_us = [figures.least_us, figures.floor_us, figures.least_us]
                assert max(bounds_us) <= figures.predicted_us == figures.least_us


def test_what_shares_no_link_is_not_simulated(monkeypatch):
    monkeypatch.setattr("topocomm.planning.cost.cost_models.simulate", None)
    assert cost(ring_allreduce(8, 8000), switch(8)).predicted_us == pytest.approx(14 * (0.6 + 4000 / 450e3))
    with pytest.raises(TypeError):
        cost(flat_broadcast(4, 10**6, 0), switch(4), ports=3).predicted_us  # noqa: B018 - what it takes is the point
