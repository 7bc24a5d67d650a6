"""The cheapest arborescence against every choice of parents."""

from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocomm.native._native import cheapest_parents
from topocomm.planning.forests.linear_program.arborescence import (
    _parents_plainly,
    cheapest_arborescence,
    cheapest_costs,
)


def is_tree(parents, root):
    for node in range(len(parents)):
        at, steps = node, 0
        while at != root and at >= 0 and steps <= len(parents):
            at, steps = parents[at], steps + 1
        if at != root:
            return False
    return parents[root] == -1


def least(costs, root):
    """Cost of the best of all choices, infinite where there is none."""
    count, best = len(costs), np.inf
    for chosen in product(range(count), repeat=count - 1):
        parents = [*chosen[:root], -1, *chosen[root:]]
        cost = sum(costs[parents[v], v] if parents[v] != v else np.inf for v in range(count) if v != root)
        if cost < best and is_tree(parents, root):
            best = cost
    return best


@given(st.integers(2, 5), st.floats(0, 0.5), st.randoms(use_true_random=False))
def test_no_choice_of_parents_is_cheaper(count, missing, chance):
    cells = [np.inf if chance.random() < missing else float(chance.randint(0, 9)) for _ in range(count**2)]
    costs = np.array(cells).reshape(count, count)
    root = chance.randrange(count)
    parents = cheapest_arborescence(costs, root)
    if parents is None:
        assert least(costs, root) == np.inf
    else:
        assert is_tree(parents, root)
        assert sum(costs[parents[v], v] for v in range(count) if v != root) == pytest.approx(least(costs, root))


def cost(costs, parents):
    return sum(costs[parent, node] for node, parent in enumerate(parents) if parent >= 0)


@given(st.integers(1, 9), st.floats(0, 0.5), st.booleans(), st.randoms(use_true_random=False))
def test_costs_from_every_root_are_those_of_the_trees(count, missing, whole, chance):
    draw = (lambda: float(chance.randint(0, 5))) if whole else chance.random
    costs = np.array([np.inf if chance.random() < missing else draw() for _ in range(count**2)]).reshape(count, count)
    trees = [cheapest_arborescence(costs, root) for root in range(count)]
    found = cheapest_costs(costs)
    if found is None:
        assert None in trees
    else:
        assert found.tolist() == pytest.approx([cost(costs, parents) for parents in trees])


def test_costs_are_left_as_they_were():
    costs = np.ones((4, 4))
    cheapest_arborescence(costs, 0)
    assert (costs == 1).all()


@given(st.integers(1, 14), st.floats(0, 0.7), st.booleans(), st.randoms(use_true_random=False))
def test_both_ways_give_the_same_parents(count, missing, whole, chance):
    """Also of several that are equally cheap."""
    draw = (lambda: float(chance.randint(0, 3))) if whole else chance.random
    costs = np.array([np.inf if chance.random() < missing else draw() for _ in range(count**2)]).reshape(count, count)
    root = chance.randrange(count)
    found = cheapest_arborescence(costs, root)
    assert found == _parents_plainly(costs, root)
    with patch.dict("sys.modules", {"topocomm.native._native": None}):
        assert found == cheapest_arborescence(costs, root)


def test_columns_that_do_not_fit_each_other_are_refused():
    """Each would be read or written past its end."""
    costs, parents = np.array([[0.0, 1.0], [2.0, 0.0]]), np.empty(2, dtype=np.int64)
    assert cheapest_parents(costs, parents, 1) and parents.tolist() == [1, -1]
    for wrong in ((costs[:1], parents, 0), (costs, parents[:1], 0), (costs, parents, 2), (costs, parents, -1)):
        with pytest.raises(ValueError, match="do not fit each other"):
            cheapest_parents(*wrong)
    for wrong in ((costs, parents), (costs, parents, "0"), (costs, parents, 0, 0)):
        with pytest.raises((TypeError, ValueError)):
            cheapest_parents(*wrong)
