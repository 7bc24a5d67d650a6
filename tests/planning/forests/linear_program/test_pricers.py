"""Pricers: the cost that nothing undercuts is that of the best column, and loads are those of the trees."""

from itertools import pairwise

import numpy as np
import pytest

from tests.machines import hosts, line, switch
from tests.planning.forests.machines import network, priced_links, solved
from topocomm.planning.forests.linear_program.pricers import (
    DirectedPairs,
    Gathers,
    OrderedPairs,
    OutTrees,
    UndirectedTrees,
)
from topocomm.planning.forests.linear_program.symmetry import no_symmetry
from topocomm.planning.forests.tree import Tree

MACHINES = [switch(5), hosts(2, 3), line(4), *(solved()[case][0] for case in range(0, 32, 6))]


def pricers(one):
    """Every pricer that fits."""
    alone, ranks = no_symmetry(one), one.ends
    found = [OutTrees(alone, 1), Gathers(alone, [1 / ranks] * ranks), DirectedPairs(alone)]
    found += [OrderedPairs(alone, [(0, ranks)], root=root) for root in (None, 1)]
    return [*found, UndirectedTrees(alone)] if one.symmetric else found


def links_of(carrier, one, *, against):
    """Uses of every link by a tree or plan."""
    uses = np.zeros(len(one.links))
    paths = [edge.path for edge in carrier.edges] if isinstance(carrier, Tree) else []
    paths = paths or [step.path for step in getattr(carrier, "steps", ()) if step.path]
    for path in paths:
        for step in pairwise(path):
            uses[one.index[step[::-1] if against else step]] += 1
    return uses


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("topology", MACHINES)
def test_no_column_undercuts_the_cost_and_one_meets_it(topology, seed):
    one = network(topology)
    prices = priced_links(one, seed, even=one.symmetric)
    for pricer in pricers(one):
        row_prices = prices[[int(np.flatnonzero(pricer.row == row)[0]) for row in range(pricer.links)]]
        least, groups = pricer.price(row_prices, 0)
        by_root = {}
        for column in (column for group in groups for column in group):
            own = column.rows < pricer.links
            cost = float((row_prices[column.rows[own]] * column.loads[own]).sum())
            by_root.setdefault(column.pair.root, []).append(cost)
        if isinstance(pricer, Gathers):
            cheapest = sum(pricer.shares[root] * min(costs) for root, costs in by_root.items())
        else:
            cheapest = min((min(costs) for costs in by_root.values()), default=np.inf)
        if isinstance(pricer, UndirectedTrees):  # which are held to a height at first
            assert cheapest >= least * (1 - 1e-9)
        else:
            assert cheapest == pytest.approx(least), type(pricer).__name__


@pytest.mark.parametrize("topology", MACHINES)
def test_loads_are_the_uses_of_links(topology):
    one = network(topology)
    for pricer in pricers(one):
        prices = np.ones(pricer.links)
        for column in (column for group in pricer.price(prices, 0)[1] for column in group):
            pair, plain = column.pair, isinstance(pricer, UndirectedTrees)
            uses = links_of(pair.down, one, against=False)
            if not plain:
                uses = uses + links_of(pair.up, one, against=isinstance(pair.up, Tree))
            loads = np.zeros(pricer.links)
            own = column.rows < pricer.links
            loads[column.rows[own]] = column.loads[own]
            assert loads.tolist() == np.bincount(pricer.row, weights=uses, minlength=pricer.links).tolist()


def test_a_packing_of_all_roots_is_as_good_as_its_worst_off_root():
    pricer = Gathers(no_symmetry(network(switch(3))), [0.5, 0.25, 0.25])
    prices = np.ones(pricer.links)
    columns = {column.pair.root: column for group in pricer.price(prices, 0)[1] for column in group}
    assert pricer.total([(5.0, columns[0]), (2.0, columns[1]), (3.0, columns[2])]) == pytest.approx(8.0)
    assert [pricer.share(columns[root]) for root in range(3)] == [0.5, 0.25, 0.25]
