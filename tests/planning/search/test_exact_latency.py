"""The least time against that of trying everything."""

import random

import numpy as np
import pytest

from tests.planning.search import brute
from topocomm.planning.search.dissemination_bound import distances
from topocomm.planning.search.exact_latency import LatencySearch
from topocomm.planning.search.exact_rounds import OutOfNodesError
from topocomm.planning.search.gossip import assign_rounds, bit_rows
from topocomm.planning.search.local_search import Machine


def test_a_search_of_too_few_nodes_says_so():
    latency = brute.direct(7, [(i, (i + 1) % 7) for i in range(7)])
    machine = Machine(latency.tolist(), bit_rows(brute.everything(7)), 1)
    with pytest.raises(OutOfNodesError):
        LatencySearch(machine, distances(latency), 10).find(4.5)


@pytest.mark.parametrize("seed", range(3))
def test_least_time_is_that_of_trying_everything(seed):
    dice = random.Random(seed)
    latency = np.array([[dice.choice([1, 2, 3, 5]) * (a != b) for b in range(3)] for a in range(3)], float)
    wants = brute.everything(3)
    best = brute.least_time(latency, wants, 3)
    machine = Machine(latency.tolist(), bit_rows(wants.T), 1)
    search = LatencySearch(machine, distances(latency), 10**5)
    messages = search.find(best + 0.5)
    assert brute.gossip_time_us(assign_rounds(messages), latency, wants, 1) <= best
    assert search.find(best - 0.5) is None


@pytest.mark.parametrize("seed", range(12))
def test_least_broadcasts_are_those_of_trying_all_trees(seed):
    dice = random.Random(seed)
    count = dice.randint(2, 6)
    figures = [[1.0, 2.0, 3.0], [0.5, 4.0], [1.0]][seed % 3]
    latency = np.array([[dice.choice(figures) * (a != b) for b in range(count)] for a in range(count)])
    wants = np.zeros((count, count), bool)
    wants[0] = True
    best = brute.least_broadcast(latency, 0)
    machine = Machine(latency.tolist(), bit_rows(wants.T), 1)
    search = LatencySearch(machine, distances(latency), 10**5)
    assert brute.gossip_time_us(assign_rounds(search.find(best + 1e-6)), latency, wants, 1) == pytest.approx(best)
    assert search.find(best - 1e-6) is None
