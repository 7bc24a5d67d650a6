"""Figures of links, and routes as columns."""

import numpy as np
import pytest

from topocomm import Device, Link, PlanError, Topology
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import joined
from topocomm.topology.catalog.systems import catalog


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


def test_unknown_figures_are_assumed_and_named():
    devices = (Device("a", "gpu"), Device("b", "gpu"))
    links = (Link("a", "b", "pcie"), Link("b", "a", "pcie"))
    paths = PathFinder(Topology("bare", "test", devices, links))
    assert paths.cheapest("a", "b").latency_us > 0
    assert len(paths.assumed) == 2
    assert all("pcie" in note for note in paths.assumed.values())


def test_routes_are_joined_and_taken():
    """In any order, with those that cross no link."""
    machine = catalog("dgx-h100", hosts=2)
    paths, ends = PathFinder(machine), machine.endpoints
    near = paths.routes(ends, np.array([0, 3]), np.array([1, 3]))
    far = paths.routes(ends, np.array([2]), np.array([10]))
    both = joined([near, far])
    assert (len(both), both.hops.tolist()) == (3, [*near.hops.tolist(), *far.hops.tolist()])
    back = both.take(np.array([2, 0]))
    assert back.links.tolist() == [*far.links.tolist(), *near.links[: near.hops[0]].tolist()]
    assert back.latency_us.tolist() == [far.latency_us[0], near.latency_us[0]]
