"""Wide trees are trees, share out their inner groups, and are coloured; as flat as their radix allows."""

from math import ceil, log

import numpy as np
import pytest

from topocomm.planning.algorithms.hosts.wide_trees import edge_colours, wide_trees


def levels(tree, home):
    """Messages in a row from the group furthest away."""
    parents, most = dict(tree[:, :2].tolist()), 0
    for group in parents:
        steps = 0
        while group != home:
            group, steps = parents[group], steps + 1
            assert steps <= len(parents)
        most = max(most, steps)
    return most


@pytest.mark.parametrize("count", [*range(2, 18), 33, 64])
@pytest.mark.parametrize("radix", [1, 2, 3, 4, 7, 16])
def test_no_group_sends_or_receives_more_than_another(count, radix):
    for home in {0, count // 2, count - 1}:
        trees, turns = wide_trees(count, home, radix)
        number = max(1, min(radix, count - 2))
        assert trees.shape == (number, count - 1, 3)
        assert turns == number
        for tree in trees:
            assert set(tree[:, 0].tolist()) == set(range(count)) - {home}
            assert np.count_nonzero(tree[:, 1] == home) == 1
            if radix > 1:
                assert levels(tree, home) <= 2 + ceil(log(count, number) if number > 1 else 1)
        group, parent, turn = trees.reshape(-1, 3).T
        assert np.bincount(parent, minlength=count).max() <= number
        for ends in (group, parent):
            assert len(np.unique([ends, turn], axis=1).T) == len(turn)


def test_as_many_children_as_there_are_others_is_one_level():
    trees, _ = wide_trees(16, 0, 14)
    assert [levels(tree, 0) for tree in trees] == [2] * 14
    tops = [int(tree[tree[:, 1] == 0, 0][0]) for tree in trees]
    assert len(set(tops)) == 14


@pytest.mark.parametrize("seed", range(8))
def test_edges_of_any_graph_have_as_many_colours_as_an_end_has_edges(seed):
    """Also several edges between two ends: no two of one colour meet."""
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, rng.integers(1, 9), (rng.integers(1, 60), 2))
    colours = np.array(edge_colours([(int(child), int(parent)) for child, parent in edges]))
    most = max(np.bincount(side).max() for side in edges.T)
    assert set(colours.tolist()) <= set(range(most))
    for side in edges.T:
        assert len(np.unique([side, colours], axis=1).T) == len(edges)
