"""Equal endpoints, and distances from one to all against Floyd and Warshall over every pair."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machines import hosts, joined, line, switch
from tests.planning.test_paths import clusters, without
from topocomm import Device, Link, Topology
from topocomm.planning.paths import PathFinder
from topocomm.planning.symmetry import EqualEndpoints
from topocomm.topology.catalog import SYSTEMS, catalog


def tables(paths, ends):
    """(direct latency, least latency with relays) of every pair of endpoints."""
    direct = np.array([[paths.latency_us(a, b) for b in ends] for a in ends])
    relayed = direct.copy()
    np.fill_diagonal(relayed, 0.0)
    for relay in range(len(ends)):
        relayed = np.minimum(relayed, relayed[:, relay, None] + relayed[relay])
    return direct, relayed


def agrees(topology, endpoints=None):
    """Compare with the tables; returns the object and the tables."""
    paths = PathFinder(topology)
    ends = list(endpoints or [d.id for d in topology.devices if d.kind in ("gpu", "cpu")])
    alone = sorted(set(ends))
    direct, relayed = tables(paths, alone)
    place = [alone.index(end) for end in ends]
    equal = EqualEndpoints(paths, ends)
    for rank in range(len(ends)):
        assert equal.direct_us(rank) == pytest.approx(direct[place[rank]][place], abs=1e-9)
        assert equal.relayed_us(rank) == pytest.approx(relayed[place[rank]][place], abs=1e-9)
    return equal, direct[np.ix_(place, place)]


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_catalogue(name):
    for count in (1, 3):
        agrees(catalog(name, hosts=count))


@pytest.mark.parametrize("topology", [switch(5), line(4), hosts(3, 2), joined([2, 3, 2, 1])], ids=lambda t: t.name)
def test_small_machines(topology):
    agrees(topology)


def test_ranks_of_equal_endpoints():
    equal, _ = agrees(catalog("dgx-h100", hosts=4))
    assert equal.ranks() == [list(range(gpu, 32, 8)) for gpu in range(8)]
    assert equal.firsts == tuple(range(8))
    broken = without(catalog("dgx-h100", hosts=4), devices=["h2/GPU3"])
    equal, _ = agrees(broken)
    assert len(equal.firsts) == 8 + 7
    assert equal.ranks()[-1] == [22]


def test_ranks_that_share_endpoints_or_leave_some_out():
    ends = ["h1/GPU0", "h1/GPU0", "h0/GPU1", "h2/GPU0", "h0/GPU0", "h2/GPU1"]
    equal, _ = agrees(hosts(3, 2), ends)
    assert equal.kinds.tolist() == [0, 0, 1, 0, 0, 1]


def test_a_far_endpoint_is_reached_over_relays():
    """Rails without a spine: GPU0 of one host reaches GPU1 of another over a GPU on the way."""
    equal, direct = agrees(hosts(3, 2))
    assert direct[0, 3] == float("inf")
    assert equal.relayed_us(0)[3] == pytest.approx(5.6)


@settings(max_examples=60, deadline=None)
@given(clusters(), st.randoms(use_true_random=False))
def test_any_cluster(topology, chance):
    equal, direct = agrees(topology)
    for ranks in equal.ranks():
        for row in direct[ranks]:
            assert sorted(row) == pytest.approx(sorted(direct[ranks[0]]))


def test_a_slower_link_makes_another_kind():
    topology = catalog("dgx-h100", hosts=3)
    links = [link._replace(latency_us=9.0) if link.dst == "h1/GPU7" else link for link in topology.links]
    equal, _ = agrees(replace(topology, links=tuple(links)))
    assert len(equal.firsts) == 16


def test_one_way_links():
    devices = tuple(Device(name, "gpu", name) for name in "abc")
    links = tuple(Link(a, b, "k", 1, 1.0, 1.0) for a, b in ("ab", "bc", "ca"))
    equal, direct = agrees(Topology("circle", "test", devices, links))
    assert direct[0].tolist() == [0.0, 1.0, float("inf")]
    assert equal.relayed_us(0).tolist() == [0.0, 1.0, 2.0]
