"""Flows on links: max-min fair shares, ports, and the limit of no bytes."""

import pytest

from tests.machines import hosts, switch
from topocomm import Device, Link, Topology
from topocomm.planning.algorithms.flat import flat_allreduce, flat_broadcast
from topocomm.planning.algorithms.recursive_doubling import recursive_doubling_allreduce
from topocomm.planning.algorithms.ring import ring_allreduce
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.routing.paths import PathFinder


def cost(schedule, topology, **changes):
    return Cost(schedule, topology.endpoints, PathFinder(topology), **({"row_bytes": 4} | changes))


@pytest.mark.parametrize("model", ["alpha", "loggp"])
def test_fluid_time_is_alpha_time_when_bytes_vanish(model):
    for build in (recursive_doubling_allreduce, ring_allreduce, flat_allreduce):
        for ranks in (2, 3, 5, 8):
            machine = (
                hosts(2, ranks // 2) if ranks % 2 == 0 and build is recursive_doubling_allreduce else switch(ranks)
            )
            thin = cost(build(ranks, 10**6), machine, row_bytes=1, port_model=model)
            none = cost(build(ranks, 0), machine, row_bytes=1, port_model=model)
            fast = cost(build(ranks, 40), machine, row_bytes=1, port_model=model)
            assert fast.predicted_us == pytest.approx(none.alpha_us, abs=0.05)
            assert thin.alpha_us == pytest.approx(none.alpha_us)
            assert thin.predicted_us > none.alpha_us


def test_flows_share_a_link_max_min_fairly():
    """Root 0 sends 1 MB to three others at once over its one 450 GB/s uplink."""
    megabyte = 10**6
    figures = cost(flat_broadcast(4, megabyte, 0), switch(4), row_bytes=1, ports=3)
    assert figures.predicted_us == pytest.approx(0.6 + 3 * megabyte / 450e3)


def test_a_slow_flow_leaves_its_share_to_the_others():
    devices = (Device("a", "gpu"), Device("b", "gpu"), Device("c", "gpu"), Device("s", "switch"))
    rates = {"a": 30.0, "b": 10.0, "c": 100.0}
    links = tuple(
        Link(x, y, "nvlink", 1, rate, 0.0) for end, rate in rates.items() for x, y in ((end, "s"), ("s", end))
    )
    topology = Topology("uneven", "test", devices, links)
    kilobytes = 30_000
    figures = Cost(flat_broadcast(3, kilobytes, 0), ["a", "b", "c"], PathFinder(topology), row_bytes=1, ports=2)
    assert figures.predicted_us == pytest.approx(kilobytes / 10e3)  # b at 10, c at the 20 left: b ends last
