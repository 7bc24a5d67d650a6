"""Trees over nested groups are over neighbours, right for any groups, and all ranks and hosts have as much to do."""

import numpy as np
import pytest

from tests.planning.scan_trees.test_tree_packing import is_over_neighbours
from tests.planning.scan_trees.test_tree_scan import right
from tests.thinning import alternating
from topocomm.planning.scan_trees.nested_trees import item_tree, nested_trees
from topocomm.planning.scan_trees.rank_trees import NO_RANK
from topocomm.planning.scan_trees.tree_scan import tree_scan
from topocomm.planning.schedule.schedule import split_rows

COUNTS = [*range(1, 18), 33]


def equal(count, members):
    """Cuts of equal groups."""
    return [tuple(range(0, count * members + 1, members))]


def scan_of(cuts, radix, most_chunks, *, own=True, rows=1000):
    trees = nested_trees(cuts, radix, most_chunks)
    return tree_scan(trees, split_rows(rows, len(trees.parents)), own=own)[0]


@pytest.mark.parametrize("radix", [1, 2, 3, 16])
def test_any_item_may_be_the_root(radix):
    for count in COUNTS:
        for root in range(count):
            tree = np.array(item_tree(count, root, radix))
            assert is_over_neighbours(tree)
            assert radix == 1 or tree[root] == -1
            assert np.bincount(tree[tree >= 0], minlength=count).max() <= radix


@pytest.mark.parametrize(("count", "members"), alternating(COUNTS, [1, 2, 3, 8], 4, pytest.mark.long))
@pytest.mark.parametrize("name", ["scan", "exscan"])
def test_any_number_of_groups(name, count, members):
    if count * members < 2:
        return
    for radix, most_chunks in ((0, 64), (1, 64), (2, 7), (count * members, 5 if count % 3 == 0 else 64)):
        right(scan_of(equal(count, members), radix, most_chunks, own=name == "scan"), 1, name)


@pytest.mark.parametrize("name", ["scan", "exscan"])
def test_groups_in_groups_of_unlike_sizes(name):
    cuts = [(0, 2, 3, 7, 8, 12), (0, 3, 8, 12)]
    for radix in (0, 1, 2, 12):
        right(scan_of(cuts, radix, 30, own=name == "scan"), 1, name)


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16])
def test_little_goes_between_groups(count):
    """Of each rank at most 2 (H-1)/H of its part, as in an allreduce; along a chain the part."""
    for radix, most in ((4 * count, 2 * (count - 1) / count), (1, 1.0)):
        schedule = scan_of(equal(count, 4), radix, 4 * count, rows=4 * count * 10)
        src, dst, chunk = schedule.transfers[:, [1, 3, 5]].T
        sent = np.array(schedule.chunks)[chunk, 1] * (src // 4 != dst // 4)
        assert np.bincount(src, sent, minlength=4 * count).max() <= most * count * 10
    schedule = scan_of(equal(count, 4), 4 * count, 4 * count)
    assert len(np.unique(schedule.transfers[:, 0])) == 3 + (count > 2)  # inside, to owners, back to others, inside


@pytest.mark.parametrize(("most", "chunks"), [(1, 1), (4, 4), (7, 4), (8, 8), (15, 12), (16, 16), (99, 16)])
def test_of_few_chunks_every_group_has_its_turn(most, chunks):
    """Members of all groups are roots as often, and so are groups of groups."""
    trees = nested_trees([(0, 4, 8, 12, 16), (0, 8, 16)], 16, most)
    roots = np.argwhere(trees.parents == NO_RANK)[:, 1]
    assert len(roots) == chunks
    if most >= 4:
        assert np.ptp(np.bincount(roots % 4, minlength=4)) == 0
        assert np.bincount(roots // 8, minlength=2).tolist() == [chunks // 2] * 2


def test_without_a_radix_each_of_the_largest_groups_has_a_tree():
    trees = nested_trees([(0, 2, 4, 6, 8), (0, 4, 8)], 0, 99)
    roots = np.argwhere(trees.parents == NO_RANK)[:, 1].reshape(-1, 2)
    assert len(trees.parents) == 4 and roots.T.tolist() == [[0, 2, 1, 3], [4, 6, 5, 7]]


def test_rows_that_are_fewer_than_chunks():
    right(scan_of(equal(3, 3), 9, 64, rows=2), 1, "scan")
