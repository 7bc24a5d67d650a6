"""Machines for packed trees: those with known optima, catalogue ones, and ones with a defect."""

import json
from functools import cache
from pathlib import Path

import networkx as nx
import numpy as np

from tests.planning.replay import expected, replay, same
from topocomm import Device, Link, Topology
from topocomm.planning.collectives import IN_PARTS, Collective
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.forests.forest import forest_of
from topocomm.planning.forests.linear_program.integer_network import network_of
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import split_rows

OPTIMA = Path(__file__).parents[2] / "data" / "forest_optima.json"
"""Written by tools/bench/forest_optima.py, which shares no code with the planner and solves by HiGHS."""


@cache
def solved():
    """(topology, optimum by collective) of every random machine."""
    return [(_topology(case), case["optima"]) for case in json.loads(OPTIMA.read_text())]


def _topology(case):
    names = [f"GPU{i}" for i in range(case["ends"])] + [f"switch{i}" for i in range(case["switches"])]
    devices = tuple(Device(name, "gpu" if name.startswith("GPU") else "switch") for name in names)
    links = tuple(Link(names[a], names[b], "nvlink", 1, rate, 0.5) for a, b, rate in case["links"])
    return Topology("random", "test", devices, links)


def without(topology, *pairs):
    """The machine without the links between pairs of devices."""
    gone = {*pairs, *((b, a) for a, b in pairs)}
    links = tuple(link for link in topology.links if (link.src, link.dst) not in gone)
    return Topology(topology.name, "test", topology.devices, links)


def less(topology, gone):
    """The machine without one device."""
    devices = tuple(device for device in topology.devices if device.id != gone)
    links = tuple(link for link in topology.links if gone not in (link.src, link.dst))
    return Topology(topology.name, "test", devices, links)


def slower(topology, src, dst, rate):
    """The machine with one directed link at another rate."""
    links = tuple(
        link._replace(gb_per_s=rate) if (link.src, link.dst) == (src, dst) else link for link in topology.links
    )
    return Topology(topology.name, "test", topology.devices, links)


def request(topology, name, rows, *, root=0, parts=None):
    """(collective, paths, endpoints) of one request."""
    ends = topology.endpoints
    if name in IN_PARTS and parts is None:
        parts = [size for _, size in split_rows(rows, len(ends))]
    return Collective(name, len(ends), root, tuple(parts or ())), PathFinder(topology), ends


def forest(topology, name, rows=1 << 20, *, root=0, parts=None, **options):
    """The packed trees of one request."""
    collective, paths, ends = request(topology, name, rows, root=root, parts=parts)
    return forest_of(collective, paths, ends, rows, **options)


def check(topology, name, rows=1 << 20, *, root=0, parts=None, in_order=False, **options):
    """Prove and replay the schedule; (packed trees, throughput of the schedule)."""
    collective, paths, ends = request(topology, name, rows, root=root, parts=parts)
    found = forest(topology, name, rows, root=root, parts=parts, commutative=not in_order, **options)
    assert found is not None
    schedule = found.schedule
    proof = verify(schedule, collective, paths=paths, endpoints=ends, keep_order=in_order)
    assert schedule.rows == rows and all(size for _, size in schedule.chunks)
    if len(ends) <= 16:
        assert same(replay(schedule), expected(collective, schedule.chunks), proof.order_kept)
    reached = Cost(schedule, ends, paths, row_bytes=4).throughput_gb_per_s
    assert reached <= found.gb_per_s * (1 + 1e-5), "the schedule does no more than its trees"
    assert found.gb_per_s <= found.bound_gb_per_s * (1 + 1e-6), "the trees do no more than their bound"
    return found, reached


def network(topology):
    """The network of all endpoints of a topology."""
    return network_of(PathFinder(topology), topology.endpoints)


def priced_links(network, seed, *, even=False):
    """Random prices above zero on the links, the same in both directions where `even`."""
    prices = np.random.default_rng(seed).choice([0.5, 1.0, 1.0, 2.5, 4.0], size=len(network.links))
    return np.minimum(prices, prices[network.reverse]) if even else prices


def priced_graph(network, prices):
    """The network as a graph with prices, for searches apart from the planner's."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(network.devices)))
    graph.add_weighted_edges_from((a, b, price) for (a, b), price in zip(network.links, prices.tolist(), strict=True))
    return graph


def ways_between(network, prices):
    """Least price between all endpoints through forwarding devices only, infinite where there is no way."""
    graph, ends = priced_graph(network, prices), range(network.ends)
    costs = np.full((network.ends, network.ends), np.inf)
    for a in ends:
        for b in (b for b in ends if b != a):
            some = graph.subgraph([a, b, *range(network.ends, len(network.devices))])
            if nx.has_path(some, a, b):
                costs[a, b] = nx.shortest_path_length(some, a, b, "weight")
    return costs
