"""Relays stand in for slow routes only, and share what they carry."""

from collections import Counter

import pytest

from tests.machines import line, switch
from topocomm import catalog
from topocomm.planning.routing.member_relays import NO_RELAY, member_relays, nic_turns
from topocomm.planning.routing.paths import PathFinder


@pytest.mark.parametrize("machine", [switch(1), switch(5), catalog("mi300x-8")], ids=lambda machine: machine.name)
def test_where_all_pairs_are_as_fast_nobody_relays(machine):
    relays, time = member_relays(machine.endpoints, PathFinder(machine))
    assert (relays == NO_RELAY).all() and (time.diagonal() == 0).all()


def test_ranks_of_a_dgx_1_without_a_link_have_a_relay_with_two():
    machine = catalog("dgx-1-v100")
    relays, time = member_relays(machine.endpoints, PathFinder(machine))
    joined = {(int(pair.a[3:]), int(pair.b[3:])) for pair in machine.pairs if pair.code.startswith("NV")}
    joined |= {(b, a) for a, b in joined}
    for a in range(8):
        for b in range(8):
            if a == b or (a, b) in joined:
                assert relays[a, b] == NO_RELAY
            else:
                assert (a, relays[a, b]) in joined and (relays[a, b], b) in joined
                assert time[a, relays[a, b]] + time[relays[a, b], b] < time[a, b]
    assert max(Counter(relays[relays != NO_RELAY].tolist()).values()) <= 4


def test_a_rank_out_of_reach_has_a_relay():
    machine = line(3)
    assert member_relays(machine.endpoints, PathFinder(machine))[0].tolist() == [[-1, -1, 1], [-1, -1, -1], [1, -1, -1]]


@pytest.mark.parametrize(
    ("system", "turns"),
    [("dgx-1-v100", [0, 1] * 4), ("dgx-h100", [0] * 8), ("p3dn", list(range(8))), ("v100-4", [0, 0, 1, 1])],
)
def test_members_that_share_a_nic_have_turns(system, turns):
    machine = catalog(system, hosts=2)
    size = len(turns)
    found = nic_turns(machine.endpoints, (0, size, 2 * size), PathFinder(machine))
    assert sorted(found) == sorted(turns)
    assert nic_turns(machine.endpoints, (0, size, 2 * size - 1), PathFinder(machine)) == [0]
    assert nic_turns(machine.endpoints[:size], (0, size), PathFinder(machine)) == [0]
