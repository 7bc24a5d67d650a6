"""Gossips to start from: closed forms, flooding and broadcast trees."""

import random

import numpy as np
import pytest

from tests.machines import hosts, line, switch
from tests.planning.search import brute
from topocomm import catalog
from topocomm.planning.search.dissemination_bound import distances
from topocomm.planning.search.gossip import assign_rounds
from topocomm.planning.search.seeds import broadcast_tree, flood, patterns


def end_us(tree):
    return max((message.arrival_us for message in tree), default=0.0)


@pytest.mark.parametrize("count", range(1, 18))
def test_every_rank_hears_once_and_the_times_are_those_of_the_model(count):
    dice = random.Random(count)
    latency = np.array([[dice.choice([1.0, 2.0, 6.0]) * (a != b) for b in range(count)] for a in range(count)])
    routes = np.where(np.eye(count, dtype=bool), np.inf, latency)
    for ports in (1, 2):
        tree = broadcast_tree(range(count), routes, count // 2, ports)
        assert sorted(message.dst for message in tree) == [r for r in range(count) if r != count // 2]
        wants = np.zeros((count, count), bool)
        wants[count // 2] = True
        assert brute.gossip_time_us(assign_rounds(tree), latency, wants, ports) == pytest.approx(end_us(tree))


@pytest.mark.parametrize(("hosts", "expected_us"), [(1, 1.8), (2, 6.8), (4, 8.0), (256, 21.0)])
def test_kinds_do_for_machines_of_many_ranks(hosts, expected_us):
    latency = np.full((hosts, hosts), 5.0)
    np.fill_diagonal(latency, 0.6)
    tree = broadcast_tree([rank // 8 for rank in range(8 * hosts)], latency, 0)
    assert len(tree) == 8 * hosts - 1
    assert end_us(tree) <= expected_us + 1e-9


def test_a_kind_nobody_has_reached_comes_first_where_that_is_faster():
    # Rank 0 reaches 7 near ranks in 1 us each, and far ones, which know no other way, in 4 us.
    latency = np.array([[1.0, 4.0], [4.0, 1.0]])
    assert end_us(broadcast_tree([0, 1, 1, 1, 1], latency, 0)) == 6.0


def test_a_rank_without_a_route_is_left_out():
    latency = np.array([[np.inf, 1.0, np.inf], [np.inf, np.inf, np.inf], [np.inf, np.inf, np.inf]])
    assert [message.dst for message in broadcast_tree([0, 1, 2], latency, 0)] == [1]


@pytest.mark.parametrize("ports", [1, 2])
def test_flooding_brings_everything_everywhere(ports):
    one_way = np.full((5, 5), np.inf)
    one_way[range(5), [1, 2, 3, 4, 0]] = 1.0
    np.fill_diagonal(one_way, 0.0)
    for latency in (one_way, brute.machine(line(6)), brute.machine(hosts(2, 3))):
        gossip = flood(latency, ports)
        assert brute.gossip_time_us(gossip, latency, brute.everything(len(latency)), ports) < np.inf


@pytest.mark.parametrize("ports", [1, 2])
@pytest.mark.parametrize("topology", [switch(8), switch(9), catalog("mi300x-8")], ids=lambda t: t.name)
def test_closed_forms_are_complete_and_use_routes_only(topology, ports):
    latency = brute.machine(topology)
    found = list(patterns(distances(latency), latency, ports))
    assert found
    for gossip in found:
        assert brute.gossip_time_us(gossip, latency, brute.everything(len(latency)), ports) < np.inf


def test_a_line_has_no_closed_form():
    latency = brute.machine(line(5))
    assert not list(patterns(distances(latency), latency, 1))
