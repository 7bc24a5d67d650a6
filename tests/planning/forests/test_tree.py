"""Trees over ranks: depths, roots, centres, images."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines import switch
from tests.planning.forests.machines import network
from topocomm.planning.forests.tree import Edge, Tree, without_loops


@st.composite
def trees(draw):
    """A random tree over ranks whose edges all pass device 100."""
    ranks = draw(st.permutations(range(draw(st.integers(1, 9)))))
    parents = [draw(st.sampled_from(ranks[:place])) for place in range(1, len(ranks))]
    return Tree(ranks[0], [Edge(a, b, (a, 100, b)) for a, b in zip(parents, ranks[1:], strict=True)])


@given(trees())
def test_centres_are_the_roots_of_least_height(tree):
    heights = {rank: tree.at(rank).height for rank in tree.depths}
    least = min(heights.values())
    assert tree.centres() == tuple(sorted(rank for rank, height in heights.items() if height == least))


@given(trees(), st.data())
def test_another_root_keeps_the_edges(tree, data):
    root = data.draw(st.sampled_from(sorted(tree.depths)))
    other = tree.at(root)
    assert other.root == root and sorted(other.depths) == sorted(tree.depths)
    assert {frozenset(edge[:2]) for edge in other.edges} == {frozenset(edge[:2]) for edge in tree.edges}
    assert all((edge.path[0], edge.path[-1]) == (edge.parent, edge.child) for edge in other.edges)
    assert all(other.depths[edge.child] == other.depths[edge.parent] + 1 for edge in other.edges)


@given(trees())
def test_an_image_has_the_same_shape(tree):
    image = [*range(1, 101), 0]
    mapped = tree.mapped(image)
    assert {image[rank]: depth for rank, depth in tree.depths.items()} == mapped.depths
    assert all(edge.path == (edge.parent, image[100], edge.child) for edge in mapped.edges)


def test_links_are_counted_as_often_as_they_are_used():
    one = network(switch(3))
    tree = Tree(0, [Edge(0, 1, (0, 3, 1)), Edge(0, 2, (0, 3, 2))])
    wanted = [one.index[step] for edge in tree.edges for step in pairwise(edge.path)]
    assert tree.links(one).tolist() == wanted and len(set(wanted)) == 3


@pytest.mark.parametrize(
    ("path", "short"),
    [((1,), (1,)), ((1, 2, 3), (1, 2, 3)), ((1, 5, 2, 5, 3), (1, 5, 3)), ((1, 2, 1, 4, 2, 6), (1, 4, 2, 6))],
)
def test_a_way_without_its_loops(path, short):
    assert without_loops(path) == short
