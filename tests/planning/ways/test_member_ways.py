"""Ways between the members of a host: who relays, how blocks are cut, what hosts that look alike share."""

from itertools import pairwise

import numpy as np
import pytest

from tests.machines import line, switch
from topocomm import Device, Link, Topology, catalog
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.ways.member_ways import member_ways


def even(count):
    return 1.0 - np.eye(count)


@pytest.mark.parametrize("machine", [switch(5), catalog("mi300x-8"), catalog("dgx-a100")], ids=lambda m: m.name)
def test_where_all_pairs_are_as_fast_nobody_relays(machine):
    ways = member_ways(machine.endpoints, PathFinder(machine), even(len(machine.endpoints)), 1)
    assert ways.are_alike and not ways.has_relays
    assert {len(each) for each in ways.shares.values()} == {1}


def test_ranks_of_a_dgx_1_without_a_link_have_relays_with_two():
    machine = catalog("dgx-1-v100")
    ways = member_ways(machine.endpoints, PathFinder(machine), even(8), 1)
    joined = {(int(pair.a[3:]), int(pair.b[3:])) for pair in machine.pairs if pair.code.startswith("NV")}
    joined |= {(b, a) for a, b in joined}
    assert ways.has_relays and set(ways.ends) <= joined
    for (src, dst), own in ways.shares.items():
        assert sum(share for share, _ in own) == pytest.approx(1.0)
        for _, lines in own:
            stops = [ways.ends[line] for line in lines]
            assert stops[0][0] == src and stops[-1][1] == dst
            assert all(a[1] == b[0] for a, b in pairwise(stops))


def test_hosts_that_look_alike_have_equal_ways_and_devices_of_their_own():
    machine = catalog("dgx-1-v100", hosts=2)
    first, second = (member_ways(machine.endpoints[low : low + 8], PathFinder(machine), even(8), 1) for low in (0, 8))
    assert first.key == second.key


def test_members_that_are_far_apart_relay_and_those_out_of_reach_have_no_ways():
    machine = line(4)
    ways = member_ways(machine.endpoints, PathFinder(machine), even(4), 1)
    assert [len(lines) for _, lines in ways.shares[0, 3]] == [3]
    devices = tuple(Device(f"GPU{i}", "gpu") for i in range(3))
    cut = Topology("cut", "test", devices, (Link("GPU0", "GPU1", "nvlink", 1, 1.0, 1.0),))
    assert member_ways(cut.endpoints, PathFinder(cut), even(3), 1) is None
    one_way = np.zeros((3, 3))
    one_way[0, 1] = 5.0
    assert member_ways(cut.endpoints, PathFinder(cut), one_way, 1).shares == {(0, 1): ((1.0, (0,)),)}


def test_members_on_one_endpoint_send_straight():
    machine = catalog("dgx-1-v100")
    ends = ("GPU0", "GPU0", "GPU5")
    ways = member_ways(ends, PathFinder(machine), even(3), 1)
    assert not ways.has_relays and len(ways.shares) == 6


def test_a_large_group_without_symmetry_sends_straight():
    count = 17
    devices = tuple(Device(f"GPU{i}", "gpu") for i in range(count))
    links = [
        Link(f"GPU{a}", f"GPU{b}", "nvlink", 1, 1.0 + 3 * a + b, 1.0)
        for a in range(count)
        for b in range(count)
        if a != b
    ]
    machine = Topology("uneven", "test", devices, tuple(links))
    ways = member_ways(machine.endpoints, PathFinder(machine), even(count), 1)
    assert not ways.has_relays and len(ways.shares) == count * (count - 1)


def test_nobody_sends():
    machine = switch(3)
    ways = member_ways(machine.endpoints, PathFinder(machine), np.zeros((3, 3)), 1)
    assert ways.shares == {} and ways.ends == ()


@pytest.mark.parametrize("rows", [1, 2, 7, 1000])
@pytest.mark.parametrize("slices", [1, 4, 16])
def test_pieces_have_all_rows(rows, slices):
    machine = catalog("mi250x")
    ways = member_ways(machine.endpoints, PathFinder(machine), even(8), 1)
    pair = next(pair for pair, own in ways.shares.items() if len(own) > 1)
    pieces = ways.pieces(pair, rows, slices, 4)
    assert sum(own for own, _ in pieces) == rows and all(own > 0 and each.size == 4 * own for own, each in pieces)
    assert len(pieces) <= max(slices + 1, 2)
