"""Spanning trees over the ranks: the least, against networkx, and lower ones where depth is dear."""

from itertools import pairwise
from math import inf

import networkx as nx
import numpy as np
import pytest

from tests.machines import hosts, line, switch
from tests.planning.forests.machines import network, priced_links, solved, ways_between, without
from topocomm.planning.forests.linear_program.spanning import Spanner

EVEN = [case for case in range(32) if network(solved()[case][0]).symmetric]
MACHINES = [switch(5), hosts(3, 2), line(4), *(solved()[case][0] for case in EVEN[::4])]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("topology", MACHINES)
def test_the_least_spanning_tree(topology, seed):
    one = network(topology)
    prices = priced_links(one, seed, even=True)
    costs = ways_between(one, prices)
    graph = nx.Graph((a, b, {"weight": costs[a, b]}) for a in range(one.ends) for b in range(a) if costs[a, b] < inf)
    least = nx.minimum_spanning_tree(graph).size("weight")
    for root in range(one.ends):
        tree, cost = Spanner(one).tree(prices, root, 0.0)
        assert cost == pytest.approx(least)
        assert sum(prices[link] for link in tree.links(one)) == pytest.approx(least)
        assert tree.root == root and sorted(tree.depths) == list(range(one.ends))
        assert all((path[0], path[-1]) == (parent, child) for parent, child, path in tree.edges)
        assert all(step in one.index for _, _, path in tree.edges for step in pairwise(path))


def test_where_depth_is_dear_the_tree_is_low():
    one = network(switch(9))
    prices = np.ones(len(one.links))
    prices[one.index[0, one.ends]] = prices[one.index[one.ends, 0]] = 1.5  # the root is the last that one would ask
    cheap, dear = (Spanner(one).tree(prices, 0, price)[0] for price in (0.0, 100.0))
    assert (cheap.height, dear.height) == (2, 2)
    assert Spanner(one).tree(np.ones(len(one.links)), 0, 0.0)[0].height == 1, "the root is preferred among equals"


def test_what_cannot_be_reached_costs_infinitely_much():
    one = network(without(line(3), ("GPU1", "GPU2")))
    assert Spanner(one).tree(priced_links(one, 0, even=True), 0, 0.0)[1] == inf
