"""The fewest rounds against those of trying everything."""

import random

import numpy as np
import pytest

from tests.planning.search import brute
from topocomm.planning.search.exact_rounds import OutOfNodesError, RoundsSearch
from topocomm.planning.search.gossip import bit_rows
from topocomm.planning.search.local_search import Machine


def rounds_search(latency, wants, ports, nodes=10**6):
    machine = Machine(latency.tolist(), bit_rows(wants.T), ports)
    return RoundsSearch(machine.sources, machine.wanted, ports, nodes)


def connected(count, dice, extra):
    """Links of 1 us: a random tree and some more."""
    edges = [(dice.randrange(b), b) for b in range(1, count)]
    return brute.direct(count, edges + [tuple(dice.sample(range(count), 2)) for _ in range(extra)])


@pytest.mark.parametrize("ports", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_fewest_rounds_are_those_of_trying_everything(seed, ports):
    dice = random.Random(seed)
    count = dice.randint(2, 4)
    latency = connected(count, dice, dice.randint(0, 2))
    wants = np.array([[dice.random() < 0.8 or a == b for b in range(count)] for a in range(count)])
    best = brute.fewest_rounds(latency, wants, ports)
    search = rounds_search(latency, wants, ports)
    gossip = search.find(best)
    assert len(gossip) <= best
    assert brute.gossip_time_us(gossip, latency, wants, ports) <= best
    assert best == 0 or search.find(best - 1) is None


@pytest.mark.parametrize(
    ("edges", "count", "rounds"),
    [
        ([(i, i + 1) for i in range(6)], 7, 7),  # a line: one more than its length where the number is odd
        ([(i, i + 1) for i in range(7)], 8, 7),
        ([(i, (i + 1) % 5) for i in range(5)], 5, 4),  # a ring
        ([(i, (i + 1) % 8) for i in range(8)], 8, 4),
        ([(0, i) for i in range(1, 4)], 4, 5),  # a star: all but one in, then all but one out
    ],
)
def test_known_rounds_of_sparse_machines(edges, count, rounds):
    latency = brute.direct(count, edges)
    search = rounds_search(latency, brute.everything(count), 1)
    assert len(search.find(rounds)) == rounds
    assert search.find(rounds - 1) is None


def test_a_search_of_too_few_nodes_says_so():
    latency = brute.direct(7, [(i, (i + 1) % 7) for i in range(7)])
    with pytest.raises(OutOfNodesError):
        rounds_search(latency, brute.everything(7), 1, nodes=10).find(4)
