"""Beam search: gossips that end when the model says, within the ports, and the known optima of small machines."""

from math import inf

import numpy as np
import pytest

from tests.machines import hosts, switch
from tests.planning.search import brute
from topocomm import catalog
from topocomm.planning.search.beam import beam_search, problem_of


def found(latency, wants, ports, below_us=inf, **options):
    problem = problem_of(latency, wants, ports)
    return beam_search(problem, **({"width": 30, "variants": 4, "below_us": below_us} | options))


@pytest.mark.parametrize("ports", [1, 2])
@pytest.mark.parametrize("topology", [switch(7), hosts(2, 4), catalog("mi250x")], ids=lambda t: t.name)
def test_times_are_those_of_the_model_and_rise(topology, ports):
    latency = brute.machine(topology)
    wants = brute.everything(len(latency))
    gossips = found(latency, wants, ports)
    assert [us for us, _ in gossips] == sorted(us for us, _ in gossips)
    for us, gossip in gossips:
        assert brute.gossip_time_us(gossip, latency, wants, ports) <= us + 1e-9
        for messages in gossip:
            for side in ([src for src, _ in messages], [dst for _, dst in messages]):
                assert max(map(side.count, side)) <= ports


@pytest.mark.parametrize(
    ("topology", "best_us"), [(switch(8), 1.8), (hosts(2, 4), 6.2), (catalog("dgx-1-v100"), 2.1)], ids=str
)
def test_known_optima(topology, best_us):
    latency = brute.machine(topology)
    assert found(latency, brute.everything(len(latency)), 1)[0][0] == pytest.approx(best_us)


def test_slower_ones_are_left_out():
    latency = brute.machine(switch(8))
    assert found(latency, brute.everything(8), 1, below_us=1.8) == []


def test_only_what_is_wanted_is_waited_for():
    latency = brute.machine(hosts(2, 2))
    wants = np.zeros((4, 4), bool)
    wants[0, 1] = True
    assert found(latency, wants, 1)[0][0] == pytest.approx(0.6)


def test_turns_try_other_matchings_and_each_is_the_same_every_time():
    latency = brute.machine(hosts(3, 3))
    runs = [found(latency, brute.everything(9), 1, turn=turn, width=4, variants=2) for turn in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
