"""Cheapest routes: those of a plain search of the whole machine, whatever hosts look alike."""

import pytest

from tests.machines import hosts, joined, line, switch
from tests.planning.routing.reference import same_as_reference
from topocomm import Device, Link, PlanError, Topology
from topocomm.planning.routing.paths import LastPaths, PathFinder
from topocomm.topology.catalog.systems import SYSTEMS, catalog


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", SYSTEMS)
def test_the_catalogue(name, count):
    topology = catalog(name, hosts=count)
    paths = same_as_reference(topology, topology.endpoints[-3:])
    assert len(paths.classes.first) == (count if name == "gb200-nvl72" else 1)  # whose racks are what is alike


@pytest.mark.parametrize("topology", [switch(5), line(4), hosts(3, 2), joined([2, 3, 2, 1])], ids=lambda t: t.name)
def test_small_machines(topology):
    same_as_reference(topology)


def test_latencies_of_many_pairs():
    topology = catalog("dgx-h100", hosts=3)
    paths = PathFinder(topology)
    sources = ["h0/GPU0", "h0/GPU0", "h2/GPU1", "h0/NIC0", "h1/GPU4"]
    targets = ["h0/GPU1", "h1/GPU0", "h1/GPU0", "h1/GPU0", "nowhere"]
    found = paths.latencies_us(sources, targets)
    assert found.tolist() == [0.6, 5.0, 6.0, float("inf"), float("inf")]
    assert paths.latencies_us([], []).tolist() == []


def test_cheapest_path_prefers_latency_then_bandwidth_then_ids():
    names = ["a", "b", "s1", "s2", "s3"]
    devices = tuple(Device(n, "gpu" if n in "ab" else "switch") for n in names)
    figures = {"s1": (0.5, 10.0), "s2": (0.3, 10.0), "s3": (0.3, 20.0)}
    links = tuple(
        Link(x, y, "nvlink", 1, rate, latency)
        for via, (latency, rate) in figures.items()
        for x, y in (("a", via), (via, "b"))
    )
    route = PathFinder(Topology("choice", "test", devices, links)).cheapest("a", "b")
    assert route.devices == ("a", "s3", "b")
    assert (route.latency_us, route.gb_per_s) == (pytest.approx(0.6), 20.0)


def test_a_path_is_followed_once():
    """The same path of many messages is one route; between other ends it is refused as before."""
    paths = PathFinder(catalog("dgx-1-v100"))
    way = ["GPU0", "GPU3"]
    assert paths.explicit(way, "GPU0", "GPU3") is paths.explicit(way, "GPU0", "GPU3")
    with pytest.raises(PlanError, match="does not lead from GPU0 to GPU1"):
        paths.explicit(way, "GPU0", "GPU1")


def test_routes_of_the_machine_planned_for_last_are_kept_unless_it_is_large(monkeypatch):
    kept, small, other = LastPaths(), switch(3), switch(3)
    assert kept.of(small) is kept.of(small)
    assert kept.of(other).topology is other and kept.of(small).topology is small
    monkeypatch.setattr("topocomm.planning.routing.paths.MOST_KEPT_ENDPOINTS", 2)
    assert kept.of(small) is not kept.of(small)
