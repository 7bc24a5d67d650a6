"""Interval plans: exact among all plans that merge adjacent ranges."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocomm.planning.forests.interval import IntervalTable
from topocomm.planning.forests.linear_program.pricers import Relays


def cheapest(costs, low, high, rank):
    """By trying every split and every last move."""

    @cache
    def value(low, high, rank):
        return min(here(low, high, at) + costs[at][rank] for at in range(len(costs)))

    @cache
    def here(low, high, rank):
        if low == high:
            return 0.0 if low == rank else np.inf
        return min(value(low, k, rank) + value(k + 1, high, rank) for k in range(low, high))

    return value(low, high, rank)


@given(st.integers(1, 5), st.randoms(use_true_random=False))
def test_cheapest_plan(count, chance):
    costs = np.array([[chance.choice([1.0, 2.0, 5.0, 9.0]) for _ in range(count)] for _ in range(count)])
    relays = Relays(costs)
    table = IntervalTable(relays.costs)
    for root in range(count):
        steps, cost = table.plan(root)
        assert cost == pytest.approx(cheapest(tuple(map(tuple, relays.costs)), 0, count - 1, root))
        moved = sum(relays.costs[source, rank] for rank, _, source in steps if source >= 0)
        assert moved == pytest.approx(cost)
        assert steps[-1][0] == root
