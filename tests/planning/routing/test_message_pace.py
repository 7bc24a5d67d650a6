"""The pace of messages: rates of links that several share, latencies and gaps, inside groups and between them."""

import pytest

from tests.planning.algorithms.hosts.machines import groups_of
from topocomm import catalog
from topocomm.planning.routing.message_pace import fast_rails, pace_of
from topocomm.planning.routing.paths import NoRouteError, PathFinder
from topocomm.topology.model import Device, Link, Topology


def pace(system, members, *, rails=8, rings=None, gap_us=None):
    machine = catalog(system, hosts=2)
    paths = PathFinder(machine)
    rails = range(min(rails, members))
    return pace_of(groups_of(members, members), machine.endpoints, paths, rings, rails=rails).times(1e6)


def test_each_gpu_has_a_port_and_a_nic():
    made = pace("dgx-h100", 8)
    assert made.slice_us == pytest.approx((1e3 / 450, 1e3 / 50))
    assert made.latency_us == pytest.approx((0.6, 5.0))
    assert made.gap_us == (0, 0)


def test_gpus_share_the_nic_of_their_host():
    alone, together = pace("rtx4090-pcie-8", 8, rails=1), pace("rtx4090-pcie-8", 8)
    assert together.slice_us[1] == pytest.approx(8 * alone.slice_us[1])


def test_around_a_ring_links_are_not_shared():
    around = pace("rtx4090-pcie-8", 8, rings=[tuple(range(8))])
    assert around.slice_us[0] < pace("rtx4090-pcie-8", 8).slice_us[0]


def test_groups_of_one_send_nothing_inside():
    made = pace("cpu-1-socket", 1)
    assert made.slice_us[0] == made.latency_us[0] == 0 < made.slice_us[1]


def test_fast_rails_are_those_without_a_slow_link_on_their_way():
    """Four of the eight GPUs of a p3dn reach its NIC past the link between sockets."""
    for system, fast in (("p3dn", range(4)), ("dgx-1-v100", range(8))):
        machine = catalog(system, hosts=2)
        assert fast_rails(groups_of(8, 8), machine.endpoints, PathFinder(machine)) == list(fast)


def test_a_member_that_another_cannot_reach_is_named():
    ends = [Device(f"GPU{number}", "gpu") for number in range(4)]
    both = [(0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (2, 0)]  # none from 1 to 3
    links = [Link(f"GPU{src}", f"GPU{dst}", "nvlink", gb_per_s=20) for src, dst in both]
    machine = Topology("square", "test", tuple(ends), tuple(links))
    with pytest.raises(NoRouteError, match="GPU1 -> GPU3"):
        pace_of(groups_of(2, 2), machine.endpoints, PathFinder(machine), None, rails=(0, 1))
