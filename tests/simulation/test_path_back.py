"""The critical path of cases that can be worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import joined, switch
from topocomm import catalog, plan
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.simulated_work import NO_TASK, WorkBuilder
from topocomm.simulation import of_plan
from topocomm.simulation.libraries import work_of
from topocomm.simulation.path_back import critical_path

MEGABYTE = 10**6
FULL_US = MEGABYTE / 450e3


def test_a_chain_of_computing_and_a_message():
    topology = switch(2)
    builder = WorkBuilder(topology.endpoints)
    first = builder.compute([0, 1], [4.0, 9.0], label="attention")
    builder.send(1, 0, MEGABYTE, after=first[1], before_us=2.0, label="merge")
    timeline = simulate(builder.build(), topology)
    path = critical_path(timeline)
    assert [step.task for step in path.steps] == [1, 2]
    computing, message = path.steps
    assert (computing.before_us, computing.bytes_us, computing.link) == (9.0, 0.0, NO_TASK)
    assert (message.before_us, message.bytes_us, message.latency_us) == pytest.approx((2.0, FULL_US, 0.6))
    assert timeline.paths.edges[message.link] == ("GPU1", "switch")
    assert message.sharers == 1
    assert path.by_cause == pytest.approx(
        {"computing: attention": 9.0, "bytes: nvlink": FULL_US, "start of messages": 2.0, "latency": 0.6}
    )


def test_the_link_that_was_shared_is_named_with_its_messages():
    """Three messages into GPU0 share its link from the switch, and the last to arrive is held by it."""
    topology = switch(4)
    builder = WorkBuilder(topology.endpoints)
    builder.send([1, 2, 3], 0, [MEGABYTE, MEGABYTE, 2 * MEGABYTE])
    timeline = simulate(builder.build(), topology)
    (step,) = critical_path(timeline).steps
    assert (timeline.paths.edges[step.link], step.sharers, step.port) == (("switch", "GPU0"), 3, False)


def test_a_limit_of_the_message_itself():
    topology = switch(2)
    builder = WorkBuilder(topology.endpoints)
    builder.send(0, 1, MEGABYTE, most_gb_per_s=100.0)
    path = critical_path(simulate(builder.build(), topology))
    assert path.steps[0].link == NO_TASK
    assert path.by_cause == pytest.approx({"bytes: limit of the message": 10.0, "latency": 0.6})


def test_a_limit_that_is_not_reached_does_not_hold_a_message():
    """Three on one link at 450 GB/s, each with a limit of 200: the link holds them."""
    topology = switch(4)
    builder = WorkBuilder(topology.endpoints)
    builder.send([1, 2, 3], 0, MEGABYTE, most_gb_per_s=200.0)
    timeline = simulate(builder.build(), topology)
    (step,) = critical_path(timeline).steps
    assert (timeline.paths.edges[step.link], step.sharers) == (("switch", "GPU0"), 3)


def test_messages_that_ended_before_are_not_counted():
    """Rates change while messages come and go; those that had ended before are not counted."""
    topology = switch(4)
    builder = WorkBuilder(topology.endpoints)
    builder.send([1, 2, 3], 0, [MEGABYTE, MEGABYTE, 4 * MEGABYTE], before_us=[0.0, 2.0, 4.0])
    timeline = simulate(builder.build(), topology)
    (step,) = critical_path(timeline).steps
    assert timeline.paths.edges[step.link] == ("switch", "GPU0")
    assert step.sharers == 2


def test_waiting_for_a_port():
    topology = switch(3)
    builder = WorkBuilder(topology.endpoints)
    builder.send(0, [1, 2], MEGABYTE)
    path = critical_path(simulate(builder.build(), topology, ports=1))
    assert [(step.task, step.port) for step in path.steps] == [(0, True), (1, False)]
    assert [step.latency_us for step in path.steps] == pytest.approx([0.0, 0.6])


def test_nothing_has_no_path():
    assert critical_path(simulate(WorkBuilder(("GPU0",)).build(), switch(2))).steps == ()


@pytest.mark.parametrize("size", [0, 1 << 10, 1 << 20])
def test_steps_follow_each_other_and_add_up(size):
    topology = catalog("dgx-h100", hosts=2)
    for work in (
        of_plan(plan(topology, payload_bytes=size), launch_us=6.6),
        work_of("ring", topology, "allreduce", size),
    ):
        timeline = simulate(work, topology, ports=1)
        path = critical_path(timeline)
        ends = [0.0, *(step.end_us for step in path.steps)]
        assert [step.start_us for step in path.steps] == pytest.approx(ends[:-1])
        assert ends[-1] == timeline.total_us
        for step in path.steps:
            assert step.before_us + step.bytes_us + step.latency_us == pytest.approx(step.took_us)
            assert min(step.before_us, step.bytes_us, step.latency_us) >= 0
        assert sum(path.by_cause.values()) == pytest.approx(timeline.total_us)


sends = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4), st.sampled_from([0, 1000, MEGABYTE])))


@examples(50)
@given(sends, st.sampled_from([None, 1]))
def test_random_messages_add_up_and_are_held_by_links_on_their_way(messages, ports):
    topology = joined([3, 2])
    builder = WorkBuilder(topology.endpoints)
    for number, (src, offset, size) in enumerate(messages):
        builder.send(src, (src + offset) % 5, size, after=number - 3 if number > 4 else None)
    timeline = simulate(builder.build(), topology, ports=ports)
    path = critical_path(timeline)
    assert sum(step.took_us for step in path.steps) == pytest.approx(timeline.total_us)
    routes, of_task = timeline.tasks.routes, timeline.tasks.of_task
    for step in path.steps:
        if step.link != NO_TASK:
            route = of_task[step.task]
            assert step.link in routes.links[routes.starts[route] : routes.starts[route + 1]]
            assert step.sharers >= 1
            assert step.bytes_us >= 0
