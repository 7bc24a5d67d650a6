"""Rings use lanes and ports evenly."""

from collections import Counter

import pytest

import topocomm
from topocomm.planning.libraries.job_shape import job_shape
from topocomm.simulation.libraries.nccl.nccl_rings import ring_orders


def orders(system, hosts=1):
    topology = topocomm.catalog(system, hosts=hosts)
    return ring_orders(topology, job_shape(topology)), topology


@pytest.mark.parametrize(("system", "rings"), [("v100-4", 6), ("dgx-1-v100", 6), ("mi300x-8", 6), ("hgx-a100-4", 12)])
def test_rings_of_direct_links_share_no_lane(system, rings):
    found, topology = orders(system)
    assert len(found) >= rings
    lanes = {(link.src, link.dst): link.lanes or 1 for link in topology.links if link.kind in ("nvlink", "xgmi")}
    used = Counter()
    for order in found:
        assert sorted(order) == list(range(len(order)))
        used.update(zip(order, [*order[1:], order[0]], strict=True))
    for (a, b), count in used.items():
        assert count <= lanes[f"GPU{a}", f"GPU{b}"]


@pytest.mark.parametrize(("system", "nics"), [("v100-4", 2), ("dgx-a100", 8), ("dgx-1-v100", 4), ("p4d", 4)])
def test_rings_over_hosts_leave_and_enter_by_every_port(system, nics):
    found, topology = orders(system, hosts=3)
    size = len(topology.endpoints) // 3
    assert len(found) == nics
    for side in (0, size - 1):
        assert len({order[side] % size * nics // size for order in found}) == nics
    for order in found:
        assert sorted(order) == list(range(3 * size))
        assert [rank // size for rank in order] == [host for host in range(3) for _ in range(size)]


def test_one_ring_behind_a_switch():
    assert orders("dgx-h100")[0] == [list(range(8))]
