"""Which ranks are below each, what goes up and down, and in which place each is folded."""

import numpy as np

from topocomm.planning.scan_trees.rank_trees import NO_RANK, Nodes, straight

CHAIN, STAR = [1, 2, 3, 4, NO_RANK], [2, 2, NO_RANK, 2, 2]


def test_a_chain_only_goes_up():
    nodes = Nodes(np.array([CHAIN]))
    assert nodes.low.tolist() == [0] * 5 and nodes.high.tolist() == [0, 1, 2, 3, 4]
    assert nodes.goes_up.tolist() == [True] * 4 + [False] and not nodes.hears.any()
    assert nodes.own_item.tolist() == [0, 1, 1, 1, 1]


def test_what_has_the_last_rank_goes_up_to_nobody_and_before_the_first_comes_nothing():
    nodes = Nodes(np.array([CHAIN, STAR]))
    assert nodes.goes_up[5:].tolist() == [True, True, False, True, False]
    assert nodes.hears[5:].tolist() == [False, True, False, True, True]
    assert nodes.items.tolist() == [1, 2, 2, 2, 2, 1, 1, 5, 1, 1] and nodes.own_item[7] == 2
    assert nodes.item[5:].tolist() == [0, 1, 0, 3, 4]
    assert nodes.children[nodes.first_child[7] :].tolist() == [5, 6, 8, 9]
    assert nodes.sibling_before[-4:].tolist() == [4, 4, 5, 6]


def test_levels_have_roots_first():
    assert [level.tolist() for level in Nodes(np.array([STAR])).levels] == [[2], [0, 1, 3, 4]]


def test_straight_ways_have_no_relays():
    assert straight(np.array([STAR])).up.shape == (1, 5, 0)


def test_roots_of_several_trees_tell_later_ones():
    nodes = Nodes(np.array([[NO_RANK, 2, NO_RANK, NO_RANK, 3], [1, NO_RANK, NO_RANK, 4, NO_RANK]]))
    assert nodes.roots == 3 and not nodes.goes_up[[0, 2, 3, 6, 7, 9]].any()
    assert sorted(zip(*(ends.tolist() for ends in nodes.tells), strict=True)) == [
        *((0, 2), (0, 3), (2, 3)),
        *((6, 7), (6, 9), (7, 9)),
    ]
    assert np.flatnonzero(nodes.sends).tolist() == [0, 1, 2, 5, 6, 7, 8]
    assert np.flatnonzero(nodes.is_told).tolist() == [2, 3, 7, 9]
