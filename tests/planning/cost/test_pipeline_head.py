"""Long pipelines by their first slices, against the events of all of them."""

from math import inf

import pytest

import topocomm
from tests.machines import switch
from topocomm.planning.algorithms.ring import ring_allreduce
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.pipeline_head import STEADY_SLICES, head_of
from topocomm.planning.cost.schedule_work import of_schedule
from topocomm.planning.planner import every_plan
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.transforms import sliced, unrolled

LONG = 64 << 20


@pytest.mark.parametrize(
    ("system", "hosts", "collective", "algorithm", "error"),
    [
        ("dgx-1-v100", 1, "allreduce", "forest-64", 1e-3),
        ("dgx-1-v100", 1, "reduce", "rails-trees-1.128", 1e-3),
        ("dgx-h100", 4, "reduce", "rails-trees-2.128", 0.01),
        ("dgx-h100", 4, "broadcast", "rails-trees-2.128", 0.01),
        ("dgx-h100", 4, "broadcast", "rails-fork-2.256", 1e-3),
        ("mi300x-8", 1, "reduce", "two-tree-64", 0.01),
        ("cpu-2-socket", 2, "scan", "chain-128", 0.01),
    ],
)
def test_few_slices_tell_the_time_of_all(system, hosts, collective, algorithm, error):
    machine = topocomm.catalog(system, hosts=hosts)
    asked = topocomm.plan(machine, collective, payload_bytes=LONG).request
    schedule = next(made for made in every_plan(machine, asked) if made.algorithm == algorithm).schedule
    head = head_of(schedule)
    assert head.repeat.count < schedule.repeat.count and head.repeat.count <= head.rounds + STEADY_SLICES
    paths = PathFinder(machine)
    told = Cost(schedule, asked.endpoints, paths, row_bytes=4, port_model="loggp", collective=asked.collective)
    exact_us = simulate(of_schedule(schedule, asked.endpoints, LONG), paths, ports=1).total_us
    assert told.predicted_us == pytest.approx(exact_us, rel=error)


def test_short_pipelines_are_their_own_head():
    ring = ring_allreduce(4, 4 << 20)
    assert head_of(ring) is ring
    for slices, stagger in ((2, 1), (ring.rounds + STEADY_SLICES, 1), (64, 0)):
        pipeline = sliced(ring, slices, stagger)
        assert head_of(pipeline) is pipeline
    pipeline = sliced(ring, 64, 2)
    head = head_of(pipeline)
    assert head.repeat.count == 3 + STEADY_SLICES
    assert {rows for _, rows in unrolled(head).chunks} == {rows for _, rows in unrolled(pipeline).chunks}


def test_slices_of_few_rows_are_all_followed():
    pipeline = sliced(ring_allreduce(4, 4 * 100), 64, 2)
    assert head_of(pipeline) is pipeline, "of 100 rows some slices have two rows and others one"


def test_a_head_that_takes_too_long_is_not_extrapolated():
    pipeline = sliced(ring_allreduce(4, 4 << 20), 64, 2)

    def cost():
        return Cost(pipeline, switch(4).endpoints, PathFinder(switch(4)), row_bytes=4, port_model="loggp")

    known = cost().predicted_us
    assert cost().predicted_within(known * 1.01) == known
    beyond = cost()
    assert beyond.predicted_within(known * 0.1) == inf == beyond.predicted_within(known * 0.05)
    assert beyond.predicted_us == known


def test_a_long_pipeline_takes_no_less_than_its_bytes_and_one_message():
    """Periods of the head alone say 5368.709 us, the bytes through one NIC, which arrive a latency later."""
    machine = topocomm.catalog("rtx4090-pcie-8", hosts=2)
    made = topocomm.plan(machine, "broadcast", payload_bytes=LONG)
    assert made.schedule.repeat and made.certificate.gap >= 1
    topocomm.check_certificate(machine, made)
