"""The one search for cheapest ways: beside networkx, and what it promises to those who use it."""

import random

import networkx as nx
import pytest

from topocomm.planning.routing.nearest_first import nearest_first


@pytest.mark.parametrize("seed", range(20))
def test_lengths_are_those_of_networkx(seed):
    chance = random.Random(seed)
    graph = nx.gnp_random_graph(12, 0.25, seed=seed, directed=True)
    for _, _, link in graph.edges(data=True):
        link["us"] = chance.choice([1, 2, 3, 5])
    found, order = {}, []

    def onward(label):
        at, device = label
        assert device not in found, "once for every device"
        found[device] = at
        order.append(at)
        return [(at + link["us"], after) for after, link in graph[device].items()]

    nearest_first([(0, 0)], lambda label: label[1], onward)
    assert found == nx.single_source_dijkstra_path_length(graph, 0, weight="us")
    assert order == sorted(order)


def test_labels_to_begin_with_come_in_any_order_and_ties_go_to_the_least():
    links = {"a": ["c"], "b": ["c"], "c": []}
    found = {}

    def onward(label):
        at, source, device = label
        found[device] = (at, source)
        return [(at + 1, source, after) for after in links[device]]

    nearest_first([(0, 1, "b"), (0, 0, "a")], lambda label: label[2], onward)
    assert found == {"a": (0, 0), "b": (0, 1), "c": (1, 0)}


def test_what_is_not_reached_is_not_visited():
    visited = []
    nearest_first([(0, "a")], lambda label: label[1], lambda label: visited.append(label) or [])
    nearest_first([], lambda label: label[1], lambda label: visited.append(label) or [])
    assert visited == [(0, "a")]
