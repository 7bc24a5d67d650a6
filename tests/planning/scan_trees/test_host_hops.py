"""The cheapest ways at given prices: over relays where pairs have no fast link, and over any NIC to the next host."""

from itertools import pairwise

import numpy as np
import pytest

from topocomm import catalog
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.scan_trees.host_hops import HostHops


def hops_of(system, count):
    machine = catalog(system, hosts=count)
    return HostHops(machine.endpoints, PathFinder(machine), len(machine.endpoints) // count, 1)


def ways_of(hosts, us_price=0.0):
    return hosts.ways(np.ones(hosts.loads.shape[1]), us_price)


def test_pairs_without_a_link_go_over_a_neighbour_of_both():
    hosts = hops_of("dgx-1-v100", 1)
    way = ways_of(hosts).way(3, 4)
    assert way in ((3, 0, 4), (3, 7, 4)) and ways_of(hosts).way(0, 3) == (0, 3)
    assert hosts.takes[hosts.hops(way)].tolist() == [1.0, 1.0]  # both links are double, 50 GB/s


def test_latency_has_a_price_too():
    """A relay is two messages of 0.7 us; where only latency counts the straight route of 2 us is no cheaper."""
    hosts = hops_of("mi250x", 1)
    assert ways_of(hosts, 1e6).way(1, 2) in ((1, 2), (1, 0, 2), (1, 3, 2))
    assert hosts.latency_us[hosts.hops((1, 0, 2))].sum() == pytest.approx(1.4)


def test_the_next_host_is_reached_by_any_nic():
    hosts = hops_of("dgx-1-v100", 3)
    ways = ways_of(hosts)
    way = ways.way(7, 8)
    assert (way[0], way[-1]) == (7, 8) and sum(a < 8 <= b for a, b in pairwise(way)) == 1
    every = [hosts.loads[hosts.hops((7, *([leaves] if leaves != 7 else []), 8))].sum() for leaves in range(8)]
    assert hosts.loads[hosts.hops(way)].sum() <= min(every) + 1e-9
    assert ways.across[7, 0] == pytest.approx(hosts.loads[hosts.hops(way)].sum())


def test_one_host_has_no_next():
    assert hops_of("mi250x", 1).ways(np.ones(hops_of("mi250x", 1).loads.shape[1]), 0.0).across.size == 0


def test_the_latency_to_the_next_host_is_that_of_the_nearest_pair():
    assert hops_of("dgx-h100", 3).across_us == pytest.approx(5.0) and hops_of("dgx-h100", 1).across_us == 0.0


def test_what_fills_a_shared_link_excludes_messages_between_those_that_share_it():
    """GPUs 0 and 1 share a NIC: while 0 sends to the next 0, and 1 to the next 1, neither can send to the other."""
    hosts = hops_of("v100-4", 3)
    more = hosts.with_exclusions()
    assert hosts.loads.shape[1] < more.loads.shape[1] and (more.loads[:, : hosts.loads.shape[1]] == hosts.loads).all()
    together = more.loads[[hop for way in ((0, 4), (1, 5), (0, 1)) for hop in hosts.hops(way)]]
    assert together.sum(axis=0).max() == pytest.approx(
        sum(hosts.takes[hosts.hops(way)[0]] for way in ((0, 4), (1, 5), (0, 1)))
    )
    crossed = more.loads[[hop for way in ((1, 4), (0, 1)) for hop in hosts.hops(way)], hosts.loads.shape[1] :]
    assert (crossed > 0).sum(axis=0).max() == 1  # 1 sends while 0 does, and another gets what 0 sends
    for alone in ("dgx-h100", "cpu-2-socket"):
        assert hops_of(alone, 2).with_exclusions().loads.shape == hops_of(alone, 2).loads.shape


def test_with_more_ports_nothing_is_excluded():
    machine = catalog("v100-4", hosts=3)
    hosts = HostHops(machine.endpoints, PathFinder(machine), 4, 2)
    assert hosts.with_exclusions().loads.shape == hosts.loads.shape
