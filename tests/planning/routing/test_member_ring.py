"""Rings follow the fastest links; where all pairs are as good there is none."""

from itertools import islice, pairwise, permutations

import numpy as np
import pytest

from tests.machines import line, switch
from topocomm import catalog
from topocomm.planning.routing.member_ring import MOST_PATH_MEMBERS, member_path, member_ring
from topocomm.planning.routing.paths import PathFinder


def ring_of(machine):
    return member_ring(machine.endpoints, PathFinder(machine))


@pytest.mark.parametrize("name", ["dgx-h100", "mi300x-8", "hgx-a100-4"])
def test_where_all_pairs_are_alike_everybody_sends_to_everybody(name):
    assert ring_of(catalog(name)) is None


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_switch_needs_none(ranks):
    assert ring_of(switch(ranks)) is None


@pytest.mark.parametrize("name", ["dgx-1-v100", "dgx-1-p100", "mi100-8", "cpu-2-socket", "rtx4090-pcie-8"])
def test_every_member_once_over_links_as_fast_as_can_be(name):
    machine = catalog(name)
    ring, paths, count = ring_of(machine), PathFinder(machine), len(machine.endpoints)
    assert sorted(ring) == list(range(count))
    at = np.array(ring)
    found = paths.routes(machine.endpoints, at, np.roll(at, -1)).gb_per_s.min()
    in_order = paths.routes(machine.endpoints, np.arange(count), np.roll(np.arange(count), -1)).gb_per_s.min()
    assert found >= in_order


def test_the_double_links_of_a_dgx_1():
    """50 GB/s in each direction, where neighbours by number have 25 or none."""
    machine = catalog("dgx-1-v100")
    at = np.array(ring_of(machine))
    rates = PathFinder(machine).routes(machine.endpoints, at, np.roll(at, -1)).gb_per_s
    assert rates.min() == PathFinder(machine).routes(machine.endpoints, at[:1], at[1:2]).gb_per_s[0] > 25


@pytest.mark.parametrize("system", ["dgx-1-v100", "mi250x", "rtx4090-pcie-4-2-socket"])
@pytest.mark.parametrize("first", [0, 3])
def test_no_path_through_all_members_takes_less(system, first):
    machine = catalog(system)
    ends, paths = machine.endpoints, PathFinder(machine)
    path = member_path(ends, paths, first)
    assert path[0] == first and sorted(path) == list(range(len(ends)))

    def time(way):
        return sum(1 / paths.cheapest(ends[a], ends[b]).gb_per_s for a, b in pairwise(way))

    others = [(first, *rest) for rest in islice(permutations(set(path) - {first}), 0, None, 7)]
    assert time(path) <= min(map(time, others)) + 1e-12


def test_groups_without_a_path_of_their_own():
    paths = PathFinder(switch(MOST_PATH_MEMBERS + 1))
    ends = paths.topology.endpoints
    assert [member_path(ends[:count], paths, 0) for count in (1, 4, MOST_PATH_MEMBERS + 1)] == [None] * 3
    row = line(4)
    assert member_path(row.endpoints, PathFinder(row), 0) is None
