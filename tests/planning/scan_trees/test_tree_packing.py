"""Packed trees cover every rank over neighbours, and no other tree is cheaper at the prices that they are chosen by."""

from copy import copy
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest

from tests.machines import hosts as machine_of
from tests.machines import switch
from topocomm import Device, Link, Topology, catalog
from topocomm.native._native import pack_intervals, price_steps
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.scan_trees.hop_turns import trees_of
from topocomm.planning.scan_trees.host_hops import HostHops
from topocomm.planning.scan_trees.rank_trees import NO_RANK, Nodes
from topocomm.planning.scan_trees.tree_packing import _Cheapest, packed_trees


def hops_of(machine, members):
    return HostHops(machine.endpoints, PathFinder(machine), members, 1)


def is_over_neighbours(parents):
    """Whether all is one tree, and below every rank are neighbours."""
    nodes = Nodes(parents[None])
    below = np.ones(len(parents), np.int64)
    for level in reversed(nodes.levels[1:]):
        np.add.at(below, nodes.parent[level], below[level])
    return sum(map(len, nodes.levels)) == len(parents) and (nodes.high - nodes.low + 1 == below).all()


@pytest.mark.parametrize("ranks", [*range(2, 6)])
def test_none_of_one_host_is_cheaper(ranks):
    """Every tree over neighbours of so few ranks, at random prices."""
    hosts = hops_of(switch(ranks), ranks)
    rng = np.random.default_rng(ranks)
    for _ in range(5):
        price = rng.uniform(0.1, 2, hosts.loads.shape[1])
        ways = hosts.ways(price, 0.0)
        tree = _Cheapest(hosts, price, 0.0).tree()
        got = float(tree.load(hosts) @ price)
        prices = []
        for parents in product(range(-1, ranks), repeat=ranks):
            made = np.array(parents)
            if (made == NO_RANK).sum() != 1 or (made == np.arange(ranks)).any():
                continue
            if is_over_neighbours(made):
                nodes, own = Nodes(made[None]), np.arange(ranks)
                up, down = (ways.inside[own, made], ways.inside[made, own])
                prices.append(float((up * nodes.goes_up + down * nodes.hears).sum()))
        assert got == pytest.approx(min(prices))


@pytest.mark.parametrize(
    ("system", "count", "most"),
    [("dgx-1-v100", 1, 2.0), ("mi250x", 1, 3.1), ("dgx-1-v100", 3, 2.7), ("mi250x", 3, 4.6)],
)
def test_no_port_or_link_is_much_busier_than_others(system, count, most):
    """In units of the payload at the fastest rate. Along a chain with relays it was up to 2.0 and 3.2."""
    hosts = hops_of(catalog(system, hosts=count), 8)
    trees = packed_trees(hosts, 16, 0.0)
    assert sum(tree.load(hosts) for tree in trees).max() / 16 <= most
    every = trees_of(hosts, trees)
    assert every.parents.shape == (16, 8 * count)
    assert all(map(is_over_neighbours, every.parents))


@pytest.mark.parametrize("count", range(2, 18))
def test_any_number_of_hosts(count):
    hosts = hops_of(machine_of(count, 4), 4)
    assert all(map(is_over_neighbours, trees_of(hosts, packed_trees(hosts, 4, 0.1)).parents))


def test_without_a_route_there_is_none():
    ends = tuple(Device(name, "gpu") for name in "abc")
    links = (Link("a", "b", "nvlink", 1, 10.0, 1.0), Link("b", "a", "nvlink", 1, 10.0, 1.0))
    assert packed_trees(hops_of(Topology("apart", "test", ends, links), 3), 2, 0.0) is None


def test_hops_are_those_of_all_ways():
    hosts = hops_of(catalog("dgx-1-v100", hosts=2), 8)
    for tree in packed_trees(hosts, 4, 0.0):
        assert tree.hops == sum(max(0, len(way) - 1) for way in (*tree.up, *tree.down))


def test_where_latency_on_the_spine_costs_it_has_one_rank_of_a_host():
    """Else the value passes all of them, which is the fewest messages."""
    hosts = hops_of(catalog("dgx-h100", hosts=3), 8)
    for spine_price, hops in ((0.0, 11), (10.0, 15)):
        trees = packed_trees(hosts, 8, 0.0, spine_price=spine_price)
        assert max(tree.hops for tree in trees) <= hops
        lengths = {
            sum(parent != NO_RANK and not tree.down[rank] for rank, parent in enumerate(tree.parents)) for tree in trees
        }
        assert (max(lengths) <= 2) == (spine_price > 0)


@pytest.mark.parametrize("seed", range(12))
def test_both_ways_find_the_same_trees(seed):
    """Bit by bit: on one host and on several, where prices are equal and where some ways are missing."""
    rng = np.random.default_rng(seed)
    members = int(rng.integers(1, 9))
    hosts = hops_of(machine_of(int(rng.integers(1, 3)), members) if members > 1 else switch(1), members)
    prices = rng.integers(0, 3, hosts.loads.shape[1]) if seed % 2 else rng.random(hosts.loads.shape[1])
    one = _Cheapest(hosts, prices.astype(float), 0.1, spine_us_price=0.2)
    if seed % 3 == 0:
        one.ways.inside[rng.random(one.ways.inside.shape) < 0.3] = np.inf
        one.single[:], one.below[:] = np.inf, 0.0
        one._intervals()
    shape = (members, members)
    with patch.dict("sys.modules", {"topocomm.native._native": None}):
        other = copy(one)
        other.single, other.below = np.full_like(one.single, np.inf), np.zeros_like(one.below)
        other.root, other.last = np.zeros_like(one.root), np.zeros_like(one.last)
        other._intervals()
        steps, cuts = other._steps()
    assert steps.shape == shape and one._steps()[0].tobytes() == steps.tobytes()
    assert one._steps()[1].tolist() == cuts.tolist()
    for name in ("single", "root", "below", "last"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name


def test_columns_that_do_not_fit_each_other_are_refused():
    """Each would be read or written past its end."""

    def columns():
        cells = np.full((3, 3, 2), np.inf), np.zeros((3, 3, 2), int), np.zeros((3, 3, 2)), np.zeros((3, 3, 2), int)
        return [np.ones((2, 2)), np.array([True]), *cells]

    pack_intervals(*(good := columns()))
    assert good[2][0, 1].tolist() == [2.0, 2.0]
    step = [good[4], np.ones((2, 2)), np.zeros((2, 2)), np.zeros((2, 2), int)]
    price_steps(*step)
    assert step[2][0, 1] == 1.0 and step[3][0, 1] == 1
    for call, made in ((pack_intervals, columns()), (price_steps, step)):
        for which in range(len(made)):
            wrong = [*made[:which], made[which][..., :-1].copy(), *made[which + 1 :]]
            with pytest.raises(ValueError, match="do not fit each other"):
                call(*wrong)
