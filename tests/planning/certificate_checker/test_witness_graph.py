"""Distances and capacities of the checker, against networkx."""

from math import inf

import networkx as nx
import pytest

from tests.planning.bounds.machines import random_machine
from topocomm import Device, Link, Topology
from topocomm.planning.certificate_checker.witness_graph import WitnessGraph


def length(graph, a, b, weight):
    return nx.shortest_path_length(graph, a, b, weight) if nx.has_path(graph, a, b) else inf


@pytest.mark.parametrize("seed", range(30))
def test_distances(seed):
    topology, ranks = random_machine(seed)
    ends, graph = set(ranks), nx.DiGraph()
    graph.add_nodes_from(device.id for device in topology.devices if device.kind == "switch" or device.id in ends)
    for link in topology.links:
        if link.src in graph and link.dst in graph:
            graph.add_edge(link.src, link.dst, us=link.latency_us, hops=int(link.src in ends))
    found = WitnessGraph(topology, ranks)
    for a in ends:
        for b in ends:
            assert found.relayed_us(a, b) == pytest.approx(length(graph, a, b, "us"))
            if nx.has_path(graph, a, b):
                assert found.hops(a, b) == length(graph, a, b, "hops")
    pairs = [(a, b) for a in ends for b in ends - {a}]
    direct = [length(graph.subgraph((set(graph) - ends) | {a, b}), a, b, "us") for a, b in pairs]
    assert found.cheapest_us({end: end for end in ends}) == pytest.approx(min(direct, default=inf))


@pytest.mark.parametrize("seed", range(30))
def test_fastest_routes(seed):
    """Beside the greatest rate whose links alone, endpoints not passed, still join both."""
    topology, ranks = random_machine(seed)
    ends, found = set(ranks), WitnessGraph(topology, ranks)
    rates = {rate for _, rate, _ in found.links.values()}
    for a in ends:
        for into in (False, True):
            best = found.fastest_rates(a, into=into)
            for b in ends - {a}:
                inner = (found.devices - ends) | {a, b}
                joined = [0.0]
                for rate in rates:
                    graph = nx.DiGraph([pair for pair, (_, r, _) in found.links.items() if r >= rate])
                    graph.add_nodes_from((a, b))
                    pair = (b, a) if into else (a, b)
                    joined += [rate] if nx.has_path(graph.subgraph(inner), *pair) else []
                assert best.get(b, 0.0) == max(joined)


def test_parallel_links_add_up_and_the_quicker_one_counts():
    links = (Link("a", "b", "nvlink", 1, 3.0, 2.0, 0.1), Link("a", "b", "nvlink", 1, 4.0, 1.0, 0.2))
    topology = Topology("two", "test", (Device("a", "gpu"), Device("b", "gpu")), links)
    graph = WitnessGraph(topology, ["a", "b"])
    assert graph.links["a", "b"] == (1.0, 7.0, 0.2)
    assert graph.borders([{"a"}], into=False) == 7.0 and graph.borders([{"a"}], into=True) == 0.0
    assert graph.least_gap_us() == 0.2
