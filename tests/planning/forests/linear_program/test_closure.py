"""Cheapest ways between endpoints, and moves that ranks relay."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines import hosts, line, switch
from tests.planning.forests.machines import network, priced_links, solved, ways_between
from topocomm.planning.forests.linear_program.closure import Closure, Relays


@given(st.integers(2, 6), st.randoms(use_true_random=False))
def test_relays_lead_there_at_the_cost(count, chance):
    costs = np.array([[chance.choice([1.0, 3.0, 10.0]) for _ in range(count)] for _ in range(count)])
    relays = Relays(costs)
    for a in range(count):
        for b in (b for b in range(count) if b != a):
            path = relays.relays(a, b)
            assert (path[0], path[-1]) == (a, b)
            assert sum(costs[x, y] for x, y in pairwise(path)) == pytest.approx(relays.costs[a, b])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "topology", [switch(5), hosts(2, 3), line(4), *(solved()[case][0] for case in range(0, 32, 9))]
)
def test_ways_through_what_forwards(topology, seed):
    one = network(topology)
    prices = priced_links(one, seed)
    closure = Closure(one)
    costs = closure.search(prices)
    assert costs == pytest.approx(ways_between(one, prices))
    for a, b in np.argwhere(np.isfinite(costs)).tolist():
        path = closure.path(a, b)
        assert (path[0], path[-1]) == (a, b) and all(device >= one.ends for device in path[1:-1])
        assert sum(prices[one.index[step]] for step in pairwise(path)) == pytest.approx(costs[a, b])
