"""Who hears what over which rail: every wish once a set, ports free, all members told in the end."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.examples import examples
from topocomm.planning.algorithms.hosts.rail_assignment import RailDemand, assign_rails, rail_sets, spread_inside
from topocomm.planning.algorithms.multiport import spread_gossip


def all_to_all(count):
    """Every group hears of every other."""
    return [RailDemand(d, s, [s], (s - d - 1) % count) for d in range(count) for s in range(count) if s != d]


def known(members, heard, gossip):
    knows = [set(own) for own in heard]
    for messages in gossip:
        before = [set(own) for own in knows]
        for src, dst in messages:
            knows[dst] |= before[src]
    return knows


def by_member(members, on, heard):
    found = [[] for _ in range(members)]
    for rail, block, _ in heard:
        found[on[rail]].append(block)
    return tuple(map(tuple, found))


@pytest.mark.parametrize("rails", range(1, 13))
@pytest.mark.parametrize("ports", [1, 2, 3])
def test_groups_that_are_alike_never_ask_twice(rails, ports):
    on = tuple(range(rails))
    for count in range(2, rails * ports + 2):
        sets = rail_sets(rails, count - 1, ports)
        dealt = assign_rails(all_to_all(count), [on] * count, ports, sets)
        told = [(heard.source, heard.rail) for own in dealt for heard in own]
        assert max(map(told.count, told)) <= ports
        for group, own in enumerate(dealt):
            heard = by_member(rails, on, own)
            assert max(map(len, heard)) <= ports
            gossip = spread_inside(rails, on, heard, count - 1, ports)
            assert all(knows == set(range(count)) - {group} for knows in known(rails, heard, gossip))
            full = len(sets) * len(sets[0]) == rails
            assert len(gossip) == len(spread_gossip(len(sets[0]), ports)) or not full


@examples(150)
@given(st.data())
def test_any_rails_that_groups_lack(data):
    rails, ports = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 2))
    count = data.draw(st.integers(2, rails * ports + 1))
    on, members = [], []
    for _ in range(count):
        there = data.draw(st.lists(st.booleans(), min_size=rails, max_size=rails).filter(any))
        without = data.draw(st.integers(0, 2))
        on.append(tuple(sum(there[:rail]) if there[rail] else -1 for rail in range(rails)))
        members.append(sum(there) + without)
    demands = all_to_all(count)
    common = {
        (a, b) for a in range(count) for b in range(count) if any(min(r) >= 0 for r in zip(on[a], on[b], strict=True))
    }
    demands = [demand for demand in demands if (demand.group, demand.block) in common]
    for group, own in enumerate(assign_rails(demands, on, ports, rail_sets(rails, count - 1, ports))):
        wanted = {demand.block for demand in demands if demand.group == group}
        assert {heard.block for heard in own} == wanted
        assert all(heard.source == heard.block for heard in own)
        assert all(on[group][heard.rail] >= 0 and on[heard.source][heard.rail] >= 0 for heard in own)
        heard = by_member(members[group], on[group], own)
        gossip = spread_inside(members[group], on[group], heard, len(wanted), ports)
        assert all(knows == wanted for knows in known(members[group], heard, gossip))


@examples(60)
@given(
    st.permutations([*range(-1, 3), -1, -1, -1, 3])
    | st.lists(st.sampled_from([-1, -1, -1, 0, 3, 5]), min_size=8, max_size=8)
)
def test_eight_groups_that_lack_one_rail_each_share_the_others(gone):
    """A Latin square whose diagonal is given in up to four places."""
    assume(sum(rail >= 0 for rail in gone) <= 4)
    on = [tuple(-1 if rail == lacking else rail for rail in range(8)) for lacking in gone]
    demands = [demand._replace(turn=demand.group ^ demand.block) for demand in all_to_all(8)]
    dealt = assign_rails(demands, on, 1, [range(8)])
    told = [(heard.source, heard.rail) for own in dealt for heard in own]
    heard = [(group, heard.rail) for group, own in enumerate(dealt) for heard in own]
    assert len(told) == len(set(told)) == len(set(heard)) == 56


def test_who_is_told_last():
    """One of eight has no rail: with two blocks it is told after the others, with eight beside them."""
    on = (*range(7), -1)
    assert len(spread_inside(8, on, (*(((1,),) * 7), ()), 1, 1)) == 1
    assert len(spread_inside(8, on, (*((block,) for block in range(1, 8)), ()), 7, 1)) == 3
