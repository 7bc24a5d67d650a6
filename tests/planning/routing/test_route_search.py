"""The search for cheapest routes beside networkx; by classes of hosts it gives those of whole machines, in few runs."""

import random

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.planning.routing.reference import linked, same_as_reference, without
from topocomm import Device, Topology
from topocomm.planning.routing import route_search
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.route_search import nearest_first
from topocomm.topology.catalog.systems import catalog


def _railed(count, spine_us):
    """Hosts whose two NICs hang on one PCIe switch, each on its rail; the rails are joined, or not at all."""
    devices = [Device("rail0", "switch", "network"), Device("rail1", "switch", "network")]
    edges = [] if spine_us is None else [("rail0", "rail1", spine_us, 10.0)]
    for host in range(count):
        own = [Device(f"h{host}/{name}", kind, f"h{host}") for name, kind in _PARTS]
        devices += own
        edges += [(f"h{host}/{a}", f"h{host}/{b}", latency, 10.0) for a, b, latency in _WIRES]
        edges += [(f"h{host}/NIC{rail}", f"rail{rail}", 1.0, 10.0) for rail in range(2)]
    return Topology("railed", "test", tuple(devices), tuple(linked(edges)))


_PARTS = (("GPU0", "gpu"), ("GPU1", "gpu"), ("NIC0", "nic"), ("NIC1", "nic"), ("pcie", "switch"))


_WIRES = (("GPU0", "pcie", 0.5), ("GPU1", "pcie", 0.5), ("NIC0", "pcie", 0.5), ("NIC1", "pcie", 0.5))


@pytest.mark.parametrize("spine_us", [None, 0.25, 3.0, 100.0])
def test_hosts_that_forward_between_rails(spine_us):
    """A third host could carry a message from rail to rail; it is cheaper, or as cheap, where the spine is slow."""
    topology = _railed(4, spine_us)
    same_as_reference(topology)
    one_rail = [("h1/NIC0", "rail0"), ("rail0", "h1/NIC0"), ("h3/NIC1", "rail1"), ("rail1", "h3/NIC1")]
    paths = same_as_reference(without(topology, links=one_rail))
    route = paths.cheapest("h1/GPU0", "h3/GPU0")
    assert ("h0/pcie" in route.devices) == (spine_us is None or spine_us >= 3.0)


@st.composite
def clusters(draw):
    """Hosts of a few kinds under names in any order, on a network that may have several ways, with equal figures."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    names = chance.sample(["a", "b", "m", "n1", "n10", "n2", "z", "h"], chance.randint(2, 5))
    network = chance.sample(["c", "leaf", "o", "spine", "zz"], chance.randint(1, 3))
    latency, rate = (lambda: chance.choice([0.25, 0.5, 0.1, 0.2, 0.3])), (lambda: chance.choice([5.0, 10.0]))
    devices = [Device(name, "switch", "network") for name in network]
    edges = [(a, b, latency(), rate()) for a in network for b in network if a < b and chance.random() < 0.7]
    kinds = [_kind(chance, network, latency, rate) for _ in range(chance.randint(1, 2))]
    for name in names:
        parts, wires = chance.choice(kinds)
        apart = chance.choice(["", "/", "-"])
        ids = {part: f"{name}{apart}{part}" for part, _ in parts}
        devices += [Device(ids[part], kind, name) for part, kind in parts]
        edges += [(ids.get(a, a), ids.get(b, b), *figures) for a, b, *figures in wires]
    chance.shuffle(devices)
    links = linked(edges)
    chance.shuffle(links)
    links = [link for link in links if chance.random() < draw(st.sampled_from([1.0, 0.95]))]
    return Topology("drawn", "test", tuple(devices), tuple(links))


def _kind(chance, network, latency, rate):
    parts = [(f"g{i}", "gpu") for i in range(chance.randint(1, 3))] + [
        (f"s{i}", "nic") for i in range(chance.randint(1, 3))
    ]
    names = [name for name, _ in parts]
    wires = [(a, b, latency(), rate()) for a in names for b in names if a < b and chance.random() < 0.6]
    wires += [
        (a, b, latency(), rate()) for a in names for b in network if chance.random() < (0.5 if a[0] == "s" else 0.1)
    ]
    return parts, wires


@examples(150)
@given(clusters())
def test_any_cluster(topology):
    same_as_reference(topology)


def searches(topology, monkeypatch):
    """How many searches it takes to find the routes of all pairs."""
    searched, spread = [], route_search.spread
    monkeypatch.setattr(route_search, "spread", lambda *given: searched.append(given) or spread(*given))
    ranks = len(topology.endpoints)
    src, dst = (side.ravel() for side in np.meshgrid(np.arange(ranks), np.arange(ranks)))
    PathFinder(topology).routes(topology.endpoints, src, dst)
    monkeypatch.undo()
    return len(searched)


@pytest.mark.parametrize("lost", [(), ("h1/GPU3", "h2/NIC5")])
def test_searches_do_not_grow_with_the_hosts(lost, monkeypatch):
    """Eight of each class for its passages, its sources and each class that they enter; none for a host or a pair."""
    few, many = (searches(without(catalog("dgx-h100", hosts=count), devices=lost), monkeypatch) for count in (4, 32))
    classes = 1 + len(lost)
    assert few == many <= 8 * classes * (2 + classes)


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
