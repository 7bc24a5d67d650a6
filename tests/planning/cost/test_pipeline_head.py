"""Long pipelines by their first slices, against the events of all of them."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

import topocomm
from tests.machines import switch
from tests.plans import request_on
from topocomm import SUM
from topocomm.planning.algorithms.ring import ring_allreduce
from topocomm.planning.candidates import candidate_builds
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.pipeline_head import (
    FIRST_HOSTS,
    STEADY_SLICES,
    Arrivals,
    Head,
    followed_hosts,
    head_of,
    is_steady,
)
from topocomm.planning.cost.port_time import turn_times
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
    head = head_of(schedule).schedule
    assert head.repeat.count < schedule.repeat.count and head.repeat.count <= head.rounds + STEADY_SLICES
    paths = PathFinder(machine)
    told = Cost(schedule, asked.endpoints, paths, row_bytes=4, port_model="loggp", collective=asked.collective)
    exact_us = simulate(of_schedule(schedule, asked.endpoints, LONG), paths, ports=1).total_us
    assert told.predicted_us == pytest.approx(exact_us, rel=error)


def test_short_pipelines_are_their_own_head():
    ring = ring_allreduce(4, 4 << 20)
    assert head_of(ring).schedule is ring
    for slices, stagger in ((2, 1), (ring.rounds + STEADY_SLICES, 1), (64, 0)):
        pipeline = sliced(ring, slices, stagger)
        assert head_of(pipeline).schedule is pipeline
    pipeline = sliced(ring, 64, 2)
    head = head_of(pipeline).schedule
    assert head.repeat.count == 3 + STEADY_SLICES
    assert {rows for _, rows in unrolled(head).chunks} == {rows for _, rows in unrolled(pipeline).chunks}


def test_slices_of_few_rows_are_all_followed():
    pipeline = sliced(ring_allreduce(4, 4 * 100), 64, 2)
    assert head_of(pipeline).schedule is pipeline, "of 100 rows some slices have two rows and others one"


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


def chained(machine, collective, algorithm, payload_bytes=LONG):
    """(request, schedule, cost) of an algorithm of a long value on a machine."""
    asked = request_on(machine, collective, SUM, SUM.default_layout(payload_bytes // 4))
    paths = PathFinder(machine)
    schedule = next(build() for name, build in candidate_builds(asked, paths) if name == algorithm)
    told = Cost(schedule, asked.endpoints, paths, row_bytes=4, port_model="loggp", collective=asked.collective)
    return asked, schedule, told


@pytest.mark.parametrize(
    ("system", "hosts", "collective", "algorithm", "error"),
    [
        ("p3dn", 11, "scan", "rails-chain-32", 1e-3),
        ("rtx4090-pcie-4", 12, "exscan", "chain-64", 1e-3),
        ("dgx-h100", 12, "scan", "chain-128", 1e-3),
        ("rtx3090-pair", 20, "scan", "chain-64", 1e-3),
        ("a100-pcie-2", 16, "scan", "rails-chain-16", 0.03),
    ],
)
def test_few_hosts_of_a_chain_tell_the_time_of_all(system, hosts, collective, algorithm, error):
    machine = topocomm.catalog(system, hosts=hosts)
    asked, schedule, told = chained(machine, collective, algorithm)
    head = head_of(schedule, asked.endpoints, PathFinder(machine))
    assert head.hosts == hosts - head.chain.followed > 0 and told._head.hosts == head.hosts
    most = head.chain.members * head.chain.followed
    assert head.schedule.transfers[:, [1, 3]].max() == most - 1 < schedule.ranks - 1
    exact_us = simulate(of_schedule(schedule, asked.endpoints, LONG), PathFinder(machine), ports=1).total_us
    assert told.predicted_us == pytest.approx(exact_us, rel=error)


def test_where_rounds_pass_sooner_than_messages_all_hosts_are_followed():
    """Six hosts alone say 27 % less: at later ones what comes from others is behind what ports have to send before."""
    machine = topocomm.catalog("dgx-h100-taper2", hosts=16)
    asked, schedule, told = chained(machine, "scan", "rails-chain-256", 243960936)
    assert head_of(schedule, asked.endpoints, PathFinder(machine)).hosts and not told._head.hosts
    times = turn_times(
        told.unrolled, *told._traffic, bytes_us=told._messages.payload_bytes / told._routes.gb_per_s / 1e3
    )
    assert told.predicted_us == pytest.approx(times.total_us, rel=0.01)


def test_of_steady_hosts_rounds_pass_as_messages_go_on():
    machine = topocomm.catalog("dgx-h100", hosts=12)
    asked, schedule, told = chained(machine, "scan", "rails-chain-16")
    head = head_of(schedule, asked.endpoints, PathFinder(machine))
    turns = told._turns_of(head)
    arrivals = Arrivals(turns.messages.round, turns.messages.dst, turns.times.arrival_us)
    assert is_steady(head, arrivals) and is_steady(Head(schedule), arrivals)
    assert not is_steady(head._replace(chain=head.chain._replace(later=0)), arrivals)


def test_hosts_that_differ_are_all_followed():
    machine = topocomm.catalog("dgx-h100", hosts=12)
    paths = PathFinder(machine)
    _, schedule, _ = chained(machine, "scan", "chain-64")
    assert head_of(schedule, machine.endpoints, paths).hosts
    fewer = topocomm.catalog("dgx-h100", hosts=8)
    assert not head_of(chained(fewer, "scan", "chain-64")[1], fewer.endpoints, PathFinder(fewer)).hosts
    turned = (*machine.endpoints[8:16], *machine.endpoints[:8], *machine.endpoints[16:][::-1])
    assert not head_of(schedule, turned, paths).hosts, "the ranks of some hosts are in another order"
    moves = schedule.transfers.copy()
    later = moves[:, 1] // 8 == 7
    moves[later, 5] = 0
    moves[np.flatnonzero(later)[0], 3] = 7 * 8
    assert not head_of(replace(schedule, transfers=moves), machine.endpoints, paths).hosts, "one sends to others"
    moves = schedule.transfers.copy()
    moves[moves[:, 1] // 8 >= 7, 0] += 5
    assert not head_of(replace(schedule, transfers=moves), machine.endpoints, paths).hosts, "from one on they are late"
    ring = sliced(ring_allreduce(96, 96 << 16), 512, 2)
    assert not head_of(ring, machine.endpoints, paths).hosts, "the last one sends to the first"


def test_hosts_whose_messages_share_a_link_are_all_followed():
    """The spine has half the rate of all hosts: of those that are followed alone messages would go faster."""
    for system, lacks in (("dgx-h100", True), ("dgx-h100-taper2", False)):
        machine = topocomm.catalog(system, hosts=16)
        _, schedule, _ = chained(machine, "scan", "chain-64")
        assert (head_of(schedule, machine.endpoints, PathFinder(machine)).hosts > 0) == lacks


def test_hosts_are_followed_until_they_are_alike():
    rounds = np.array([[0, 0], [3, 0], [4, 2], [5, 4], [6, 6], [7, 8], [8, 10], [9, 12], [10, 14], [0, 0]])
    assert followed_hosts(rounds) == FIRST_HOSTS
    rounds[:4, 1] = 0  # what comes from others waits for their own values
    rounds[4:, 1] += 8
    assert followed_hosts(rounds) == FIRST_HOSTS + 2 == followed_hosts(rounds[2:8], 2)
