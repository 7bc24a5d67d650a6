"""The trees over ranks: contiguous, complete, and the canonical one where the radix is two."""

import pytest

from topocomm.planning.schedule.canonical_tree import canonical_split
from topocomm.planning.schedule.range_tree import aligned_tree, nested_tree


def spans(tree, node=None):
    """The tree as nested tuples of ranks."""
    node = tree.root if node is None else node
    left, right = tree.children[node]
    return node if left < 0 else (spans(tree, left), spans(tree, right))


def check(tree):
    assert (tree.low[tree.root], tree.high[tree.root]) == (0, tree.ranks)
    for node in range(tree.ranks, tree.root + 1):
        left, right = tree.children[node]
        assert tree.high[left] == tree.low[right]
        assert (tree.low[node], tree.high[node]) == (tree.low[left], tree.high[right])
        assert tree.parent[left] == tree.parent[right] == node
        assert tree.sibling(left) == right and tree.sibling(right) == left
    assert tree.sibling(tree.root) == -1


@pytest.mark.parametrize("ranks", [*range(1, 18), 100])
@pytest.mark.parametrize("radix", [2, 3, 5])
def test_nodes_are_neighbouring_ranges(ranks, radix):
    check(aligned_tree(ranks, radix))


@pytest.mark.parametrize("ranks", range(2, 40))
def test_radix_two_is_the_canonical_tree(ranks):
    tree = aligned_tree(ranks)
    for node in range(ranks, tree.root + 1):
        left, _ = tree.children[node]
        assert tree.high[left] - tree.low[left] == canonical_split(tree.high[node] - tree.low[node])


def test_blocks_of_a_larger_radix_fold_from_the_left():
    assert spans(aligned_tree(9, 3)) == ((((0, 1), 2), ((3, 4), 5)), ((6, 7), 8))


def test_trees_are_nested():
    below = [aligned_tree(3), aligned_tree(1), aligned_tree(2)]
    tree = nested_tree(below, [[(0, 1), (1, 2, 3)], [(0, 1, 3)]])
    check(tree)
    assert spans(tree) == (((0, 1), 2), (3, (4, 5)))
