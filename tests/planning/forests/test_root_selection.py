"""Roots of trees that may have any: low, spread over the ranks, or such that rank order is kept."""

from itertools import pairwise

import pytest

from tests.machines import hosts, switch
from tests.planning.forests.machines import network
from topocomm.planning.forests.linear_program.packing import Column, Pair, pack
from topocomm.planning.forests.linear_program.pricers import UndirectedTrees
from topocomm.planning.forests.linear_program.symmetry import no_symmetry
from topocomm.planning.forests.root_selection import keeps_order, root_in_order, root_trees
from topocomm.planning.forests.tree import Edge, Tree


def chain(*ranks):
    return Tree(ranks[0], [Edge(a, b, (a, 100, b)) for a, b in pairwise(ranks)])


def column(tree):
    return Column(None, None, Pair(tree, tree))


@pytest.mark.parametrize("topology", [switch(6), hosts(2, 3)], ids=lambda t: t.name)
def test_trees_get_their_least_height(topology):
    symmetry = no_symmetry(network(topology))
    parts = pack(UndirectedTrees(symmetry), 1e-6, 600).parts
    for (weight, before), (kept, after) in zip(parts, root_trees(parts, symmetry, None), strict=True):
        assert kept == weight
        assert after.pair.up is after.pair.down
        assert after.pair.root in before.pair.tree.centres()


def test_a_root_has_no_more_than_it_may():
    symmetry = no_symmetry(network(switch(4)))
    parts = [(1.0, column(chain(1, 0, 2, 3)))] * 5
    roots = [one.pair.root for _, one in root_trees(parts, symmetry, 1)]
    assert roots == [0, 2, 1, 3], "the centres first; the fifth finds none"


def test_ranges_that_are_merged_must_be_neighbours():
    assert keeps_order(chain(0, 1, 2, 3)) and keeps_order(Tree(1, chain(1, 0).edges + chain(1, 2, 3).edges))
    assert not keeps_order(chain(0, 2, 1, 3))


def test_the_root_that_keeps_order_is_the_lowest_such():
    symmetry = no_symmetry(network(switch(4)))
    (found,) = root_in_order([column(chain(0, 1, 2, 3)), column(chain(0, 2, 1, 3))], symmetry)
    assert found.pair.tree.height == 2 and keeps_order(found.pair.tree)
