"""The engine on cases that can be worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import hosts, joined, line, switch
from tests.simulation.slow_simulation import arrivals_us
from topocomm import Device, Link, PlanError, Topology, catalog
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.simulated_work import NO_TASK, WorkBuilder
from topocomm.planning.routing.paths import NoRouteError, PathFinder
from topocomm.simulation.libraries import work_of

MEGABYTE = 10**6
HOP_US = 0.6
"""From GPU to GPU over the switch."""
FULL_US = MEGABYTE / 450e3
"""A megabyte at the 450 GB/s of a GPU."""


def builder(topology):
    return WorkBuilder(topology.endpoints)


def test_a_message_takes_what_comes_before_it_its_bytes_and_its_latency():
    own = builder(switch(2))
    own.send(0, 1, MEGABYTE, before_us=2.0)
    timeline = simulate(own.build(), switch(2))
    assert timeline.start_us.tolist() == [0.0]
    assert timeline.first_byte_us.tolist() == [2.0]
    assert timeline.last_byte_us.tolist() == pytest.approx([2.0 + FULL_US])
    assert timeline.arrival_us.tolist() == pytest.approx([2.0 + FULL_US + HOP_US])
    assert timeline.total_us == timeline.arrival_us[0]


def test_two_flows_over_one_link_take_twice_as_long():
    own = builder(switch(3))
    own.send(0, [1, 2], MEGABYTE)
    assert simulate(own.build(), switch(3)).arrival_us.tolist() == pytest.approx([2 * FULL_US + HOP_US] * 2)


def test_a_flow_has_the_link_to_itself_once_the_other_has_ended():
    """1 MB and 3 MB share a link: the short one ends when 2 MB have passed, the long one after all 4."""
    own = builder(switch(3))
    own.send(0, [1, 2], [MEGABYTE, 3 * MEGABYTE])
    ends = simulate(own.build(), switch(3)).last_byte_us.tolist()
    assert ends == pytest.approx([2 * FULL_US, 4 * FULL_US])


def test_three_links_share_as_the_textbook_says():
    """The parking lot of test_link_sharing, with equal payloads of 30 kB: rates 3, 7, 3 and 5 GB/s at first."""
    devices = [Device(f"GPU{i}", "gpu") for i in range(8)] + [Device(f"s{i}", "switch") for i in range(4)]
    wide = [(f"GPU{i}", f"s{s}") for i, s in enumerate((0, 0, 1, 2, 1, 2, 3, 3))]
    links = [Link(a, b, "x", 1, 1000.0, 0.0) for pair in wide for a, b in (pair, pair[::-1])]
    links += [Link(f"s{i}", f"s{i + 1}", "x", 1, rate, 0.0) for i, rate in enumerate((10.0, 6.0, 8.0))]
    topology = Topology("parking lot", "test", tuple(devices), tuple(links))
    own = builder(topology)
    own.send([0, 1, 2, 3], [6, 4, 5, 7], 30_000)
    long, first, second, third = simulate(own.build(), topology).last_byte_us.tolist()
    assert first == pytest.approx(30_000 / 7e3)
    # The third ends at 30/5 = 6 us; until 10 us the long flow and the second one have 3 GB/s each: both end there.
    assert (third, second, long) == pytest.approx((6.0, 10.0, 10.0))


def test_a_limit_on_the_rate_of_a_message():
    own = builder(switch(2))
    own.send(0, 1, MEGABYTE, most_gb_per_s=[100.0, np.inf])
    ends = simulate(own.build(), switch(2)).last_byte_us.tolist()
    assert ends == pytest.approx([10.0, MEGABYTE / 350e3])


def test_a_chain_adds_up_and_says_what_it_awaited():
    own = builder(switch(3))
    first = own.send(0, 1, MEGABYTE)
    middle = own.compute(1, 7.0, after=first)
    own.send(1, 2, MEGABYTE, after=middle)
    timeline = simulate(own.build(), switch(3))
    there = FULL_US + HOP_US
    assert timeline.arrival_us.tolist() == pytest.approx([there, there + 7.0, 2 * there + 7.0])
    assert timeline.awaited.tolist() == [NO_TASK, 0, 1]
    assert timeline.last == 2


def test_an_endpoint_computes_one_phase_at_a_time():
    own = builder(switch(2))
    own.compute([0, 0, 1], [3.0, 4.0, 5.0])
    timeline = simulate(own.build(), switch(2))
    assert timeline.arrival_us.tolist() == [3.0, 7.0, 5.0]
    assert timeline.awaited.tolist() == [NO_TASK, 0, NO_TASK]


@pytest.mark.parametrize(("port_model", "held_us"), [("alpha", HOP_US), ("loggp", 0.0)])
def test_a_port_serves_messages_one_after_the_other(port_model, held_us):
    """Under alpha a port is held until the arrival, under loggp until the last byte."""
    own = builder(switch(4))
    own.send(0, [1, 2, 3], MEGABYTE)
    timeline = simulate(own.build(), switch(4), ports=1, port_model=port_model)
    each_us = FULL_US + held_us
    assert timeline.start_us.tolist() == pytest.approx([0.0, each_us, 2 * each_us])
    assert timeline.awaited.tolist() == [NO_TASK, 0, 1]
    two = simulate(own.build(), switch(4), ports=2, port_model=port_model)
    assert two.start_us.tolist() == pytest.approx([0.0, 0.0, 2 * FULL_US + held_us])


def test_messages_of_a_port_keep_their_order():
    """The second message is ready first, and waits: ports serve in the order of tasks."""
    own = builder(switch(3))
    late = own.compute(0, 5.0)
    own.send(0, 1, 0, after=late)
    own.send(0, 2, 0)
    assert simulate(own.build(), switch(3), ports=1).start_us.tolist() == pytest.approx([0.0, 5.0, 5.0])
    assert simulate(own.build(), switch(3)).start_us.tolist() == [0.0, 5.0, 0.0]


def test_a_nic_serves_one_message_per_gap():
    topology = hosts(2, 1)
    links = tuple(link._replace(gap_us=1.5) if "NIC0" in link.src + link.dst else link for link in topology.links)
    own = builder(topology)
    own.send([0, 0, 0], 1, 0)
    starts = simulate(own.build(), Topology("gaps", "test", topology.devices, links)).start_us.tolist()
    assert starts == pytest.approx([0.0, 1.5, 3.0])


def test_ranks_on_one_endpoint_share_its_ports():
    own = WorkBuilder(("GPU0", "GPU0", "GPU1"))
    own.send([0, 1], 2, MEGABYTE)
    assert simulate(own.build(), switch(2), ports=1).start_us.tolist() == pytest.approx([0.0, FULL_US])


def test_a_message_without_a_route_is_refused():
    own = builder(line(3))
    own.send(0, 2, 8)
    with pytest.raises(NoRouteError, match="GPU0 -> GPU2"):
        simulate(own.build(), line(3))


def test_a_path_leads_to_a_switch_too():
    own = WorkBuilder(("GPU0", "switch"))
    own.send(0, 1, MEGABYTE, path=own.path(("GPU0", "switch")))
    assert simulate(own.build(), switch(2)).arrival_us.tolist() == pytest.approx([FULL_US + 0.3])
    own = WorkBuilder(("GPU0", "switch"))
    own.send(0, 1, MEGABYTE, path=own.path(("GPU1", "switch")))
    with pytest.raises(PlanError, match="does not lead from GPU0 to switch"):
        simulate(own.build(), switch(2))


def test_nothing_takes_no_time():
    timeline = simulate(builder(switch(2)).build(), switch(2))
    assert (timeline.total_us, timeline.last, timeline.events) == (0.0, NO_TASK, 0)


@pytest.mark.parametrize("ranks", [2, 3, 8, 17])
def test_a_ring_takes_what_its_formula_says(ranks):
    chunk = 4500
    work = work_of("ring", switch(ranks), "allreduce", chunk * ranks)
    rounds = 2 * (ranks - 1)
    assert simulate(work, switch(ranks)).total_us == pytest.approx(rounds * (chunk / 450e3 + HOP_US))


random_tasks = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(1, 3), st.sampled_from([0, 1, 1000, MEGABYTE]), st.lists(st.integers(0, 30))
    ),
    min_size=1,
    max_size=30,
)


@examples(100)
@given(random_tasks, st.sampled_from([None, 1, 2]), st.sampled_from(["alpha", "loggp"]))
def test_what_holds_of_every_timeline(tasks, ports, port_model):
    """Times are in order, nothing starts before what it comes after, no link carries more than it can."""
    topology = joined([2, 2])
    own = builder(topology)
    for number, (src, offset, size, after) in enumerate(tasks):
        waits = sorted({task % number for task in after}) if number else []
        own.send(src, (src + offset) % 4, size, after=np.array([waits]) if waits else None)
    work = own.build()
    timeline = simulate(work, topology, ports=ports, port_model=port_model)
    assert (timeline.start_us <= timeline.first_byte_us).all()
    assert (timeline.first_byte_us <= timeline.last_byte_us).all()
    assert timeline.arrival_us - timeline.last_byte_us == pytest.approx(timeline.tasks.latency_us)
    waiting = np.repeat(np.arange(len(work)), np.diff(work.after_starts))
    assert (timeline.start_us[waiting] >= timeline.arrival_us[work.after] - 1e-9).all()
    flowing_us = timeline.last_byte_us - timeline.first_byte_us
    assert (
        flowing_us >= work.payload_bytes / (timeline.tasks.routes.gb_per_s[timeline.tasks.of_task] * 1e3) - 1e-6
    ).all()
    assert (timeline.link_bytes <= timeline.paths.link_gb_per_s * 1e3 * timeline.link_busy_us * (1 + 1e-9) + 1e-3).all()
    assert timeline.link_bytes.sum() == (work.payload_bytes * timeline.tasks.routes.hops[timeline.tasks.of_task]).sum()
    if ports == 1 and port_model == "alpha":
        for end in range(4):
            own_ = np.flatnonzero(work.src == end)
            assert (timeline.start_us[own_[1:]] >= timeline.arrival_us[own_[:-1]] - 1e-9).all()
    for task, awaited in enumerate(timeline.awaited.tolist()):
        assert (awaited == NO_TASK) == (timeline.start_us[task] == 0.0) or timeline.start_us[task] == 0.0
        assert awaited < task


mixed_tasks = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "send", "compute", "join"]),
        st.integers(0, 3),
        st.integers(1, 3),
        st.sampled_from([0, 7_000, 50_000, MEGABYTE]),
        st.sampled_from([0.0, 0.0, 2.5]),
        st.sampled_from([np.inf, np.inf, 3.0]),
        st.lists(st.integers(0, 30), max_size=2),
    ),
    min_size=1,
    max_size=14,
)


def mixed(topology, tasks):
    own = builder(topology)
    for number, (kind, src, offset, size, before_us, most, after) in enumerate(tasks):
        waits = sorted({task % number for task in after}) if number else []
        after = np.array([waits]) if waits else None
        if kind == "send":
            own.send(src, (src + offset) % 4, size, before_us=before_us, most_gb_per_s=most, after=after)
        elif kind == "compute":
            own.compute(src, before_us + 1.0, after=after)
        else:
            own.join(src, before_us=before_us, after=np.array([[NO_TASK]]) if after is None else after)
    return own.build()


@examples(200)
@given(mixed_tasks, st.sampled_from([None, 1, 2]), st.sampled_from(["alpha", "loggp"]), st.booleans())
def test_random_works_arrive_as_by_a_slow_simulation(tasks, ports, port_model, with_gaps):
    """Messages, phases and joins with limits of rate, on links that are shared; under loggp NICs with gaps."""
    topology = catalog("dgx-h100", hosts=2)
    if with_gaps:
        links = tuple(link._replace(gap_us=0.7) if link.kind == "network" else link for link in topology.links)
        topology = Topology("gaps", "test", topology.devices, links)
    ends = ("h0/GPU0", "h0/GPU1", "h1/GPU0", "h1/GPU1")
    paths = PathFinder(topology)
    work = replace(mixed(joined([2, 2]), tasks), devices=ends)
    timeline = simulate(work, paths, ports=ports, port_model=port_model)
    slow = arrivals_us(work, timeline.tasks, paths, ports=ports, loggp=port_model == "loggp")
    assert timeline.arrival_us.tolist() == pytest.approx(slow, abs=1e-6)


def test_after_so_many_instants_events_are_one_that_are_close():
    """1,000 messages of unlike sizes, each after another: most arrive at a time of their own."""
    rng, machine = np.random.default_rng(3), switch(8)
    builder = WorkBuilder(machine.endpoints)
    for number in range(1000):
        src, step = rng.integers(8), rng.integers(1, 8)
        after = rng.integers(max(0, number - 40), number) if number else NO_TASK
        builder.send([src], [(src + step) % 8], [rng.integers(10_000, 900_000)], after=[after])
    work = builder.build()
    exact, same, coarse = (
        simulate(work, machine, ports=2, **how) for how in ({}, {"exact_instants": 1e6}, {"exact_instants": 100})
    )
    assert (same.arrival_us == exact.arrival_us).all()
    early = exact.arrival_us < np.sort(exact.arrival_us)[20]
    assert (coarse.arrival_us[early] == exact.arrival_us[early]).all()
    assert coarse.total_us == pytest.approx(exact.total_us, rel=2e-3)
    assert len(np.unique(coarse.arrival_us)) < len(np.unique(exact.arrival_us))
