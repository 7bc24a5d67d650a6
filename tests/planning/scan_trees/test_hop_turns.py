"""Turns: no two hops hold a port at once, and a period is little longer than the busiest of them has to do."""

import numpy as np
import pytest

from tests.planning.scan_trees.test_tree_packing import hops_of
from topocomm import catalog
from topocomm.planning.scan_trees.hop_turns import POWERS, WORTH, HopTurns, _listed, _soonest, trees_of
from topocomm.planning.scan_trees.rank_trees import NO_RANK
from topocomm.planning.scan_trees.tree_packing import packed_trees


def test_hops_that_share_a_port_have_their_turns():
    loads = np.random.default_rng(3).uniform(0.5, 1.5, (60, 8)) * (np.random.default_rng(4).random((60, 8)) < 0.3)
    starts, period = _listed(loads, np.inf)
    for port in range(8):
        own = np.flatnonzero(loads[:, port])
        order = own[np.argsort(starts[own])]
        ends = starts[order] + loads[order, port]
        assert (ends[:-1] <= starts[order][1:] + 1e-6).all() and ends[-1] <= period + 1e-9


def test_another_order_is_taken_where_it_is_clearly_sooner():
    """What is busiest goes first in one, which is not the best for all trees."""
    hosts = hops_of(catalog("dgx-1-v100", hosts=5), 8)
    ways = [way for tree in packed_trees(hosts, 8, 0.05) for each in (tree.up, tree.down) for way in each if way]
    loads = hosts.loads[[hop for way in ways for hop in hosts.hops(way)]]
    periods = [_listed(loads, power)[1] for power in POWERS]
    assert _soonest(loads)[1] <= WORTH * periods[0]


@pytest.mark.parametrize(("system", "count"), [("dgx-1-v100", 1), ("mi250x", 1), ("dgx-1-v100", 4), ("mi250x", 4)])
def test_a_period_is_little_longer_than_what_is_busiest(system, count):
    hosts = hops_of(catalog(system, hosts=count), 8)
    trees = packed_trees(hosts, 16, 0.0)
    busiest = sum(tree.load(hosts) for tree in trees).max() / 16
    assert busiest - 1e-9 <= HopTurns(hosts, trees).period <= 1.15 * busiest


def test_all_hosts_have_the_turns_and_trees_of_the_first():
    hosts = hops_of(catalog("mi250x", hosts=3), 8)
    trees = packed_trees(hosts, 4, 0.0)
    clock, every = HopTurns(hosts, trees).clock(10.0), trees_of(hosts, trees)
    assert clock.up.shape == (4, 24, 3)
    assert (clock.up[:, :8] == clock.up[:, 16:]).all() and (clock.down_takes[:, :8] == clock.down_takes[:, 8:16]).all()
    assert (every.parents[:, 8:16] - 8 == every.parents[:, :8]).all()
    assert (every.parents[:, 16:] == NO_RANK).sum() == 4  # the spine ends on the last host
    last = every.parents[:, 16:] == NO_RANK
    assert (every.up[:, 16:][last] == NO_RANK).all() and every.up.max() < 24


def test_latency_counts_more_in_shorter_slices():
    hosts = hops_of(catalog("mi250x"), 8)
    trees = packed_trees(hosts, 4, 0.0)
    short, long = (HopTurns(hosts, trees).clock(payload_us).up_takes.max() for payload_us in (0.1, 100.0))
    assert short - long == pytest.approx(1.4 / 0.1 - 1.4 / 100)  # the longest route
