"""The machine as integers: what forwards nothing is left out, links and latencies are kept."""

from math import inf

import networkx as nx
import pytest

from tests.machines import hosts, line, switch
from tests.planning.forests.machines import network, slower, without
from topocomm import Device, Link, Topology
from topocomm.planning.forests.linear_program.integer_network import network_of
from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.catalog.systems import catalog


@pytest.mark.parametrize("topology", [switch(3), hosts(2, 3), catalog("dgx-1-v100")], ids=lambda t: t.name)
def test_links_are_those_of_the_machine(topology):
    one = network(topology)
    assert one.devices[: one.ends] == tuple(topology.endpoints)
    rates = {(link.src, link.dst): 0.0 for link in topology.links}
    for link in topology.links:
        rates[link.src, link.dst] += link.gb_per_s
    kept = {pair: rate for pair, rate in rates.items() if set(pair) <= set(one.devices)}
    found = {(one.devices[a], one.devices[b]): rate for (a, b), rate in zip(one.links, one.gb_per_s, strict=True)}
    assert found == pytest.approx(kept)
    assert list(one.links) == sorted(one.links) and one.symmetric and one.connected


def test_dead_ends_and_endpoints_without_a_rank_are_left_out():
    """A chain of switches that leads nowhere, and an endpoint that would only pass messages on."""
    pairs = [("a", "s"), ("b", "s"), ("s", "dead0"), ("dead0", "dead1"), ("a", "idle"), ("idle", "b")]
    links = tuple(Link(*ends, "nvlink", 1, 10.0, 1.0) for a, b in pairs for ends in ((a, b), (b, a)))
    devices = [
        Device(name, "switch" if name[0] in "sd" else "gpu") for name in ("a", "b", "idle", "s", "dead0", "dead1")
    ]
    one = network_of(PathFinder(Topology("dead", "test", tuple(devices), links)), ["b", "a"])
    assert one.devices == ("b", "a", "s")
    assert one.links == ((0, 2), (1, 2), (2, 0), (2, 1))


def test_least_latencies():
    one = network(hosts(2, 3))
    graph = nx.DiGraph()
    graph.add_weighted_edges_from((a, b, us) for (a, b), us in zip(one.links, one.latency_us.tolist(), strict=True))
    wanted = nx.single_source_dijkstra_path_length(graph, 1)
    assert one.hops_from(1) == pytest.approx([wanted[device] for device in range(len(one.devices))])


def test_one_direction_less():
    one = network(slower(catalog("mi300x-8"), "GPU3", "GPU5", 20.0))
    back = one.transposed()
    a, b = one.devices.index("GPU3"), one.devices.index("GPU5")
    assert not one.symmetric
    assert (one.gb_per_s[one.index[a, b]], one.gb_per_s[one.index[b, a]]) == (20.0, back.gb_per_s[back.index[a, b]])
    again = back.transposed()
    assert again.links == one.links and (again.gb_per_s == one.gb_per_s).all()


def test_ranks_that_cannot_reach_each_other():
    one = network(without(line(3), ("GPU1", "GPU2")))
    assert not one.connected
    assert one.hops_from(0)[2] == inf
