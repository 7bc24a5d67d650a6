"""Every rank gets every contribution once, and every message leaves after what it forwards has arrived."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.machines import hosts
from tests.planning.replay import replay, word
from topocomm import catalog
from topocomm.planning.collectives import collective_of
from topocomm.planning.host_forests.host_allreduce import host_allreduce
from topocomm.planning.host_forests.host_packing import HostLoads, equal_trees, host_forest
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.transforms import sliced

MACHINES = [
    (hosts(1, 3), 1),
    (hosts(2, 2), 2),
    (hosts(3, 3), 3),
    (catalog("a100-pcie-4", hosts=2), 2),
    (catalog("mi250x", hosts=3), 3),
]


def made_of(machine, count, trees):
    loads = HostLoads(machine.endpoints, PathFinder(machine), len(machine.endpoints) // count)
    return host_allreduce(loads, equal_trees(loads, host_forest(loads), trees), 4)


@pytest.mark.parametrize(("machine", "count"), MACHINES, ids=lambda each: getattr(each, "name", str(each)))
@pytest.mark.parametrize("trees", [1, 3])
@pytest.mark.parametrize("value_us", [0.5, 50.0])
def test_everybody_gets_every_contribution_once(machine, count, trees, value_us):
    made, ranks = made_of(machine, count, trees), len(machine.endpoints)
    rows = 7 * trees * count + 1
    clock = made.clock(value_us)
    schedule = made.schedule(rows, clock)
    collective = collective_of("allreduce", ranks, rows)
    verify(schedule, collective)
    verify(sliced(schedule, 3, clock.stagger), collective)
    assert schedule.rows == rows and len(schedule.chunks) == trees * count
    for (rank, chunk), text in replay(schedule).items():
        assert sorted(re.findall("<[^>]*>", text)) == sorted(map(word, range(ranks))), (rank, chunk)


@pytest.mark.parametrize("value_us", [0.1, 3.0, 1e4])
def test_messages_wait_for_what_they_forward(value_us):
    """By an own walk along each tree; none leaves before, or a whole period late."""
    machine = catalog("mi250x", hosts=3)
    made = made_of(machine, 3, 4)
    clock = made.clock(value_us)
    leaves = made.starts + clock.periods * made.period
    arrives = leaves + made.held + made.latency_us / value_us
    for number, hop in enumerate(made.hops):
        before = [
            other
            for other, earlier in enumerate(made.hops)
            if earlier.tree == hop.tree and other != number and _feeds(earlier, hop, made.own[hop.tree].root)
        ]
        ready = max((arrives[other] for other in before), default=0.0)
        assert leaves[number] >= ready - 1e-5 * made.period
        late = max(ready, max((leaves[other] for other in before), default=0.0))
        assert leaves[number] <= late + made.period * (1 + 1 / clock.stagger + 1e-6)
        rounds = clock.periods * clock.stagger + clock.turns
        assert all(rounds[other] < rounds[number] for other in before)
    assert clock.takes == pytest.approx(arrives.max())


def test_messages_of_one_turn_go_a_period_after_what_they_forward():
    """However short they are: what a round reads was written in one before."""
    made = made_of(catalog("mi250x", hosts=3), 3, 4)
    none = np.zeros(len(made.hops))
    made = replace(made, starts=none, held=none, latency_us=none)
    schedule = made.schedule(3 * 4 * 10, made.clock(1.0))
    verify(schedule, collective_of("allreduce", 24, 120))
    assert schedule.rounds > 5 * made.clock(1.0).stagger


def _feeds(earlier, hop, root):
    """Whether what a message brings is part of what another one of its tree carries."""
    if hop.up:
        return earlier.up and not earlier.apart and earlier.parent == hop.child
    if hop.apart:
        return earlier.up and (earlier.apart > 0 or earlier.parent == root)
    if hop.parent != root:
        return not earlier.up and not earlier.apart and earlier.child == hop.parent
    return bool(earlier.apart) or (earlier.up and earlier.parent == root)


def test_hosts_give_each_other_pieces():
    """A share goes up whole, one message an edge, and a piece of it to each other host, both ways."""
    machine = catalog("mi250x", hosts=3)
    made = made_of(machine, 3, 8)
    assert made.messages == 3 * 8 * (2 * 7 + 2 * 2)
    schedule = made.schedule(3 * 8 * 10, made.clock(10.0))
    across = schedule.transfers[:, 1] // 8 != schedule.transfers[:, 3] // 8
    assert np.count_nonzero(across) == 3 * 8 * 2 * 2
    assert np.count_nonzero(~across) == 3 * 3 * 8 * 2 * 7
