"""Shares of a chain's links: whole, over existing routes, and no more on a port or link than the optimum allows."""

from collections import defaultdict
from itertools import pairwise

import pytest

from tests.machines import hosts, line, switch
from topocomm import Device, Link, Topology, catalog
from topocomm.planning.forests.chain_flow import MOST_PERIOD, chain_flow, period_of
from topocomm.planning.routing.paths import PathFinder


def flow_of(machine, period=None):
    ends = machine.endpoints
    return chain_flow(ends, PathFinder(machine), period or len(ends), 1)


def busiest(flow):
    """The time of the busiest port or link."""
    busy = defaultdict(float)
    for own in flow.ways:
        for way, share in own:
            for hop in pairwise(way):
                for row, time in flow.loads[hop]:
                    busy[row] += share * time
    return max(busy.values())


def test_all_goes_straight_under_a_switch():
    assert flow_of(switch(8)).is_direct
    assert flow_of(line(5)).is_direct


def test_the_relay_takes_what_the_straight_route_cannot():
    """a-b at 10 GB/s, a-c and c-b at 40, b-c used by the chain as well: c relays most."""
    pairs = (("a", "b", 10.0), ("a", "c", 40.0), ("c", "b", 40.0))
    links = tuple(Link(x, y, "k", 1, rate, 1.0) for a, b, rate in pairs for x, y in ((a, b), (b, a)))
    flow = flow_of(Topology("triangle", "test", tuple(Device(name, "gpu") for name in "abc"), links))
    over_relay = dict(flow.ways[0])[0, 2, 1]
    # of a share r over c, b receives for r + 4 (1 - r) units of time, and c for r + 1: as long at r = 3 / 4
    assert over_relay == pytest.approx(3 / 4) and busiest(flow) == pytest.approx(7 / 4)


@pytest.mark.parametrize(
    ("system", "count", "most"),
    [("dgx-1-v100", 1, 1.95), ("mi250x", 1, 3.2), ("dgx-1-v100", 3, 2.6), ("p4d", 2, 9.5), ("mi250x", 2, 4.5)],
)
def test_shares_of_unlike_links(system, count, most):
    """In units of the payload at the fastest rate: straight, the busiest port takes 8.3, 5.6, 8.3, 24 and 8."""
    machine = catalog(system, hosts=count)
    flow = flow_of(machine, 8)
    assert len(flow.ways) == (7 if count == 1 else 8)
    for rank, own in enumerate(flow.ways):
        assert sum(share for _, share in own) == pytest.approx(1.0)
        assert all((way[0], way[-1]) == (rank, rank + 1) and len(set(way)) == len(way) for way, _ in own)
    assert busiest(flow) <= most


def test_hosts_repeat_where_they_are_alike():
    machine = hosts(3, 4)
    starts = (0, 4, 8, 12)
    assert period_of(machine.endpoints, starts, PathFinder(machine)) == 4
    assert period_of(machine.endpoints[:11], (0, 4, 8, 11), PathFinder(machine)) == 11
    assert period_of((*machine.endpoints[:4], *machine.endpoints[7:3:-1]), (0, 4, 8), PathFinder(machine)) == 8


def test_what_it_does_not_fit():
    machine = switch(MOST_PERIOD + 1)
    assert flow_of(machine) is None and flow_of(switch(1)) is None
    ends = machine.endpoints[:2]
    assert chain_flow((ends[0], ends[0], ends[1]), PathFinder(machine), 3, 1) is None
    links = tuple(Link(a, b, "k", 1, 1.0, 1.0) for a, b in (("a", "b"), ("c", "b")))
    assert flow_of(Topology("one way", "test", tuple(Device(name, "gpu") for name in "abc"), links)) is None
