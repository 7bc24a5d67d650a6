"""What crosses the links between racks, and which plan a network of two tiers gets."""

from dataclasses import replace

import numpy as np
import pytest

from tests.plans import request_on
from tools.netlab.network import racks
from topocomm import SUM, catalog, plan
from topocomm.planning.hierarchical.tiered import tiered_allreduces
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.routing.paths import PathFinder

ROWS = 8 * 960


def tiered(machine, endpoints=None, most=1 << 19):
    request = request_on(machine, "allreduce", SUM, SUM.default_layout(ROWS))
    request = replace(request, endpoints=tuple(endpoints or request.endpoints))
    return dict(tiered_allreduces(RankPatterns(request, PathFinder(machine)), ROWS, most)), request.endpoints


def between_racks(schedule, endpoints, rack_of):
    """Rows that leave each rack."""
    rack = np.array([rack_of(name) for name in endpoints])
    src, dst, chunk = schedule.transfers[:, [1, 3, 5]].T
    out = rack[src] != rack[dst]
    return np.bincount(rack[src[out]], np.array(schedule.chunks)[chunk[out], 1]).tolist()


@pytest.mark.parametrize("scattered", [False, True])
def test_links_between_racks_carry_the_least_of_their_family(scattered):
    machine = racks(4, 2, 100.0, 2)
    ends = [f"host{host}/CPU{rank}" for host in ((0, 2, 1, 3) if scattered else range(4)) for rank in (0, 1)]
    found, ends = tiered(machine, ends)
    rows = {name: between_racks(own, ends, lambda end: int(end[4]) // 2) for name, own in found.items()}
    assert rows == {"rails-ring": [ROWS * 3 / 2] * 2, "rails-tiers": [ROWS] * 2}  # of a sum over two racks: ROWS


def test_other_machines_have_none():
    assert tiered(catalog("dgx-h100", hosts=4))[0] == {}
    assert tiered(racks(4, 2, 100.0))[0] == {}
    assert tiered(racks(2, 2, 100.0, 2))[0] == {}
    assert tiered(racks(4, 2, 100.0, 2), most=100)[0] == {}


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "broadcast"])
def test_long_sums_reach_the_bound(collective):
    machine = racks(4, 2, 100.0, 2, 100.0)
    made = plan(machine, collective, payload_bytes=8 << 20)
    assert collective != "allreduce" or made.algorithm == "rails-ring-1"
    assert made.proof.complete
    bound = made.certificate.throughput_upper_bound_gb_per_s
    assert made.figures.algbw_gb_per_s > 0.97 * bound or collective != "allreduce"
