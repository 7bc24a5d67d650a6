"""Cheapest routes: those of a plain search of the whole machine, whatever hosts look alike."""

import heapq
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machines import hosts, joined, line, switch
from topocomm import Device, Link, PlanError, Topology
from topocomm.planning.routing import route_search
from topocomm.planning.routing.paths import NoRouteError, PathFinder
from topocomm.topology.catalog.systems import SYSTEMS, catalog

ENDS = ("gpu", "cpu")


def reference(topology, src):
    """(latency, -GB/s, devices) of the least label of every device reached from src, by Dijkstra on everything."""
    kind = {device.id: device.kind for device in topology.devices}
    after = {}
    for a, b, latency_us, gb_per_s in merged(topology):
        after.setdefault(a, []).append((b, latency_us, gb_per_s))
    found, heap = {}, [(0.0, -float("inf"), (src,))]
    while heap:
        label = heapq.heappop(heap)
        here = label[2][-1]
        if here in found:
            continue
        found[here] = label
        if here == src or kind[here] not in ENDS:
            for b, latency_us, gb_per_s in after.get(here, ()):
                heapq.heappush(heap, (label[0] + latency_us, max(label[1], -gb_per_s), (*label[2], b)))
    return {name: label for name, label in found.items() if kind[name] in ENDS and name != src}


def merged(topology):
    """The directed links, parallel ones as one."""
    links = {}
    for link in topology.links:
        latency_us, gb_per_s = links.get((link.src, link.dst), (float("inf"), 0.0))
        links[link.src, link.dst] = min(latency_us, link.latency_us), gb_per_s + link.gb_per_s
    return [(*edge, *figures) for edge, figures in links.items()]


def same_as_reference(topology, sources=None):
    """Compare every pair, one by one and in columns; returns the PathFinder."""
    paths = PathFinder(topology)
    ends = [device.id for device in topology.devices if device.kind in ENDS]
    sources = ends if sources is None else sources
    src, dst = (np.array(ranks) for ranks in zip(*[(a, b) for a in sources for b in ends], strict=True))
    place = {name: rank for rank, name in enumerate(ends)}
    columns = paths.routes(ends, np.array([place[a] for a in src]), np.array([place[b] for b in dst]))
    wanted = {a: reference(topology, a) for a in sources}
    for at, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        links = [paths.edges[number] for number in columns.links[columns.starts[at] : columns.starts[at + 1]]]
        if a == b:
            assert links == list(paths.cheapest(a, b).edges)
            continue
        label = wanted[a].get(b)
        if label is None:
            assert columns.latency_us[at] == float("inf")
            assert not links
            with pytest.raises(NoRouteError):
                paths.cheapest(a, b)
            continue
        route = paths.cheapest(a, b)
        assert (route.latency_us, -route.gb_per_s, route.devices) == label
        assert (columns.latency_us[at], -columns.gb_per_s[at]) == label[:2]
        assert links == list(route.edges)
    return paths


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", SYSTEMS)
def test_the_catalogue(name, count):
    topology = catalog(name, hosts=count)
    paths = same_as_reference(topology, topology.endpoints[-3:])
    assert len(paths.classes.first) == (count if name == "gb200-nvl72" else 1)  # whose racks are what is alike


@pytest.mark.parametrize("topology", [switch(5), line(4), hosts(3, 2), joined([2, 3, 2, 1])], ids=lambda t: t.name)
def test_small_machines(topology):
    same_as_reference(topology)


def without(topology, **lost):
    """The machine with devices or links dropped."""
    devices = tuple(d for d in topology.devices if d.id not in lost.get("devices", ()))
    gone = {d.id for d in topology.devices} - {d.id for d in devices}
    links = (link for link in topology.links if not {link.src, link.dst} & gone)
    return replace(
        topology, devices=devices, links=tuple(k for k in links if (k.src, k.dst) not in lost.get("links", ()))
    )


def test_irregular_hosts_are_classes_of_their_own():
    topology = catalog("dgx-h100", hosts=6)
    broken = without(topology, devices=["h2/GPU3", "h4/NIC0"], links=[("h5/NIC1", "rail1"), ("rail1", "h5/NIC1")])
    slow = [link._replace(gb_per_s=1.0) if link.src == "h1/NIC2" else link for link in broken.links]
    paths = same_as_reference(replace(broken, links=tuple(slow)))
    assert len(paths.classes.first) == 5
    assert paths.classes.class_of.tolist() == [0, 1, 2, 0, 3, 4]


def _wire(edges):
    """Links both ways: (a, b, latency, GB/s)."""
    return [Link(x, y, "k", 1, rate, latency) for a, b, latency, rate in edges for x, y in ((a, b), (b, a))]


def _railed(count, spine_us):
    """Hosts whose two NICs hang on one PCIe switch, each on its rail; the rails are joined, or not at all."""
    devices = [Device("rail0", "switch", "network"), Device("rail1", "switch", "network")]
    edges = [] if spine_us is None else [("rail0", "rail1", spine_us, 10.0)]
    for host in range(count):
        own = [Device(f"h{host}/{name}", kind, f"h{host}") for name, kind in _PARTS]
        devices += own
        edges += [(f"h{host}/{a}", f"h{host}/{b}", latency, 10.0) for a, b, latency in _WIRES]
        edges += [(f"h{host}/NIC{rail}", f"rail{rail}", 1.0, 10.0) for rail in range(2)]
    return Topology("railed", "test", tuple(devices), tuple(_wire(edges)))


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


def test_hosts_joined_without_a_network_are_searched_as_one():
    ring = [(f"h{i}/GPU", f"h{i}/nic", 0.5, 10.0) for i in range(4)]
    ring += [(f"h{i}/nic", f"h{(i + 1) % 4}/nic", 1.0, 10.0) for i in range(4)]
    devices = [
        Device(f"h{i}/{name}", kind, f"h{i}") for i in range(4) for name, kind in (("GPU", "gpu"), ("nic", "nic"))
    ]
    paths = same_as_reference(Topology("ring", "test", tuple(devices), tuple(_wire(ring))))
    assert paths.cheapest("h0/GPU", "h2/GPU").devices == ("h0/GPU", "h0/nic", "h1/nic", "h2/nic", "h2/GPU")


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
    links = _wire(edges)
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


@settings(max_examples=150, deadline=None)
@given(clusters())
def test_any_cluster(topology):
    same_as_reference(topology)


def test_latencies_of_many_pairs():
    topology = catalog("dgx-h100", hosts=3)
    paths = PathFinder(topology)
    sources = ["h0/GPU0", "h0/GPU0", "h2/GPU1", "h0/NIC0", "h1/GPU4"]
    targets = ["h0/GPU1", "h1/GPU0", "h1/GPU0", "h1/GPU0", "nowhere"]
    found = paths.latencies_us(sources, targets)
    assert found.tolist() == [0.6, 5.0, 6.0, float("inf"), float("inf")]
    assert paths.latencies_us([], []).tolist() == []


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


def test_routes_are_not_those_of_a_host_that_only_looks_alike():
    """A planted fault: one link of one host is faster, in one direction."""
    topology = catalog("dgx-h100", hosts=4)
    links = [link._replace(latency_us=0.1) if link.src == "h2/GPU5" else link for link in topology.links]
    paths = same_as_reference(replace(topology, links=tuple(links)), ["h2/GPU5", "h0/GPU5", "h1/GPU5"])
    there, back = paths.latencies_us(["h2/GPU5", "h0/GPU5"], ["h0/GPU5", "h2/GPU5"])
    assert there < back


@pytest.mark.parametrize(
    "figures",
    [
        {"gb_per_s": 0.0},
        {"gb_per_s": -5.0},
        {"gb_per_s": float("nan")},
        {"gb_per_s": float("inf")},
        {"latency_us": -1.0},
        {"latency_us": float("nan")},
        {"latency_us": float("inf")},
        {"gap_us": -0.5},
        {"gap_us": float("nan")},
    ],
    ids=str,
)
def test_impossible_figures_are_refused(figures):
    link = Link("a", "b", "nvlink", 1, 5.0, 1.0)._replace(**figures)
    with pytest.raises(PlanError, match=r"topology 'odd': link a -> b has .* expected a positive bandwidth"):
        PathFinder(Topology("odd", "test", (Device("a", "gpu"), Device("b", "gpu")), (link,)))
