"""Minimum cuts against those of networkx."""

import random

import networkx as nx
import pytest

from topocomm.planning.bounds.flows import UNLIMITED, FlowNetwork


@pytest.mark.parametrize("seed", range(150))
def test_minimum_cuts_agree_with_networkx(seed):
    chance = random.Random(seed)
    nodes, dense = chance.randint(6, 14), chance.choice([0.15, 0.25, 0.5])
    arcs = [
        (a, b, float(chance.choice([1, 2, 3, 7, 0.5])))
        for a in range(nodes)
        for b in range(nodes)
        if a != b and chance.random() < dense
    ]
    graph = nx.DiGraph()
    graph.add_nodes_from(range(nodes))
    graph.add_weighted_edges_from(arcs, weight="capacity")
    flow = nx.maximum_flow_value(graph, 0, nodes - 1)
    side = FlowNetwork(nodes, arcs).min_cut({0: UNLIMITED}, {nodes - 1: UNLIMITED})
    assert 0 in side and nodes - 1 not in side
    assert sum(rate for a, b, rate in arcs if a in side and b not in side) == pytest.approx(flow)
    assert (
        FlowNetwork(nodes, arcs).min_cut({0: UNLIMITED}, {nodes - 1: UNLIMITED}, enough=flow * 0.99) is None or not flow
    )
