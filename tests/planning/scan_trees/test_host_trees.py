"""Rooted trees of hosts that are alike, below one another: right, over relays, and in turn for every host."""

import numpy as np
import pytest

from tests.machines import hosts as machine_of
from tests.planning.scan_trees.test_tree_packing import hops_of, is_over_neighbours
from tests.planning.scan_trees.test_tree_scan import right
from topocomm import catalog
from topocomm.planning.scan_trees.host_trees import groups_of_hosts, heights, owners, rooted_trees
from topocomm.planning.scan_trees.rank_trees import NO_RANK
from topocomm.planning.scan_trees.tree_packing import packed_trees
from topocomm.planning.scan_trees.tree_scan import tree_scan


@pytest.mark.parametrize("count", range(2, 18))
@pytest.mark.parametrize("name", ["scan", "exscan"])
def test_any_number_of_hosts(name, count):
    hosts = hops_of(catalog("mi250x" if count % 2 else "p3dn", hosts=count), 8)
    made = rooted_trees(hosts, packed_trees(hosts, 2, 0.1, rooted=True), owners(count, 2))
    assert made.parents.shape == (2 * count, 8 * count)
    assert all(map(is_over_neighbours, made.parents))
    right(*tree_scan(made, [(10 * chunk, 10) for chunk in range(2 * count)], own=name == "scan"), name)


@pytest.mark.parametrize("count", [2, 7, 32, 33, 35, 64, 100, 130])
def test_every_host_is_above_as_often(count):
    """Of many hosts owners of groups are below one of them: two levels, and few children of any."""
    above, group = owners(count, 16), groups_of_hosts(count)
    assert above.shape == (16, group, count)
    own = above.reshape(-1, count)
    assert all(map(is_over_neighbours, own))
    assert heights(own).max() == (1 if group == count else 2)
    children = np.array([np.bincount(each[each != NO_RANK], minlength=count) for each in own])
    assert children.max() <= 2 * group
    assert children.sum(axis=0).max() <= 3 * children.sum() / count
    assert np.bincount(np.argwhere(own == NO_RANK)[:, 1] // group).all()


def test_relays_are_on_the_hosts_of_both_ends():
    """Roots that go over another rank on either host."""
    hosts = hops_of(machine_of(4, 4), 4)
    trees = []
    for tree in packed_trees(hosts, 3, 0.0, rooted=True):
        root = tree.parents.index(NO_RANK)
        ways = [list(each) for each in (tree.up, tree.down)]
        for each in ways:
            each[root] = (root, root ^ 1, 4 + (root ^ 2), 4 + root)
        trees.append(tree._replace(up=tuple(ways[0]), down=tuple(ways[1])))
    made = rooted_trees(hosts, trees, owners(4, 3))
    right(*tree_scan(made, [(10 * chunk, 10) for chunk in range(12)], own=True), "scan")
    for chunk, rank in np.argwhere((made.parents // 4 != np.arange(16) // 4) & (made.parents != NO_RANK)):
        above = made.parents[chunk, rank]
        assert made.up[chunk, rank].tolist() == [rank ^ 1, above ^ 2]
        assert made.down[chunk, rank].tolist() == [above ^ 1, rank ^ 2]
    assert (made.up[made.parents == NO_RANK] == NO_RANK).all()
