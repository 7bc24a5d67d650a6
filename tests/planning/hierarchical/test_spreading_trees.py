"""Trees inside a host: each reaches all members once, and those of the other turn are reached by few."""

import pytest

from tests.machines import hosts, sharing
from tests.plans import request_on
from topocomm import SUM, catalog
from topocomm.planning.hierarchical.spreading_trees import relayed_trees, spreading_trees
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.routing.paths import PathFinder


def trees_of(machine):
    request = request_on(machine, "allgather", SUM, SUM.default_layout(1 << 20))
    return list(spreading_trees(RankPatterns(request, PathFinder(machine)), request.payload_bytes))


def depths(edges, root):
    """How far each member is from the root; an edge from a member without the value is a KeyError."""
    depth = {root: 0}
    for parent, child in edges:
        assert child not in depth
        depth[child] = depth[parent] + 1
    return depth


@pytest.mark.parametrize("machine", [hosts(2, 5), catalog("dgx-1-v100", hosts=2), sharing(2, 6, 2)])
def test_every_tree_reaches_every_member_once(machine):
    members = len(machine.endpoints) // 2
    for trees in trees_of(machine):
        assert list(trees) == list(range(members))
        for root, edges in trees.items():
            assert sorted(depths(edges, root)) == list(range(members))


def test_members_of_a_switch_send_straight_and_those_of_a_mesh_both_ways_around():
    (straight,) = trees_of(hosts(2, 5))
    assert all(parent == root for root, edges in straight.items() for parent, _ in edges)
    around = trees_of(catalog("dgx-1-v100", hosts=2))[0]
    assert max(depths(around[3], 3).values()) == 4
    assert {frozenset(edge) for edge in around[3]} < {frozenset(edge) for tree in around.values() for edge in tree}
    assert len({frozenset(edge) for tree in around.values() for edge in tree}) == 8


@pytest.mark.parametrize("turns", [(0, 1, 0, 1), (0, 0, 1, 1, 0, 1), (0, 1, 2, 0, 1, 2), (0, 1, 1)])
def test_few_messages_go_from_turn_to_turn(turns):
    made = list(relayed_trees(turns))
    assert len(made) == max(map(turns.count, turns)) - 1
    for heads, trees in enumerate(made, start=1):
        for root, edges in trees.items():
            assert sorted(depths(edges, root)) == list(range(len(turns)))
            for turn in set(turns) - {turns[root]}:
                entering = [(a, b) for a, b in edges if turns[b] == turn and turns[a] != turn]
                assert len(entering) == min(heads, turns.count(turn)) and {a for a, _ in entering} == {root}


def test_one_turn_needs_no_relays():
    assert list(relayed_trees((0, 0, 0))) == []
