"""Groups of ranks, and who of them is on which rail."""

from topocomm.planning.algorithms.hosts.rank_groups import Groups, Inside
from topocomm.planning.schedule.range_tree import aligned_tree


def groups(**fields):
    """A group of three ranks and one of two."""
    return Groups((0, 3, 5), (0, 1), tuple(Inside((), aligned_tree(size)) for size in (3, 2)), **fields)


def test_the_members_of_a_group_are_those_of_its_sort():
    assert (groups().count, groups().members(0), groups().members(1)) == (2, 3, 2)


def test_rails_are_the_members_in_order_unless_they_are_given():
    assert groups().members_on == ((0, 1, 2), (0, 1, -1))
    assert groups(rails=((0, 1, 2), (0, -1, 1))).members_on == ((0, 1, 2), (0, -1, 1))
