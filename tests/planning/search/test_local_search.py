"""Local search on gossips: never worse, complete, within the ports, the same every time."""

import random

import pytest

from tests.machines import hosts, switch
from tests.planning.search import brute
from topocomm.planning.search.gossip import bit_rows
from topocomm.planning.search.local_search import Machine, improve
from topocomm.planning.search.seeds import flood


def machine_of(topology, ports=1):
    latency = brute.machine(topology)
    return Machine(latency.tolist(), bit_rows(brute.everything(len(latency))), ports)


def one_after_the_other(count):
    """All to rank 0, then from it to all, a message a round."""
    gather = [((rank, 0),) for rank in range(1, count)]
    return (*gather, *(((dst, src),) for ((src, dst),) in gather))


@pytest.mark.parametrize(("count", "best_us"), [(2, 0.6), (4, 1.2)])
def test_a_poor_gossip_becomes_the_best(count, best_us):
    machine = machine_of(switch(count))
    gossip = improve(machine, one_after_the_other(count), moves=4000, enough_us=best_us)
    assert machine.run(gossip).time_us == pytest.approx(best_us)


@pytest.mark.parametrize("ports", [1, 2])
@pytest.mark.parametrize("topology", [switch(5), hosts(2, 3)], ids=lambda t: t.name)
def test_any_number_of_moves_leaves_a_complete_gossip_that_is_no_slower(topology, ports):
    machine = machine_of(topology, ports)
    before = flood(brute.machine(topology), ports)
    for seed in range(5):
        after = improve(machine, before, moves=random.Random(seed).randrange(200), enough_us=0.0, seed=seed)
        run = machine.run(after)
        assert not run.missing and run.time_us <= machine.run(before).time_us + 1e-9
        for messages in after:
            for side in ([src for src, _ in messages], [dst for _, dst in messages]):
                assert max(map(side.count, side), default=0) <= ports


def test_the_seed_decides():
    machine = machine_of(hosts(2, 3))
    runs = [improve(machine, one_after_the_other(6), moves=300, enough_us=0.0, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_it_ends_at_what_is_enough():
    machine, gossip = machine_of(switch(4)), one_after_the_other(4)
    assert improve(machine, gossip, moves=1000, enough_us=machine.run(gossip).time_us) == gossip
