"""Parts over several paths at once: proved, near the bound where pairs are unlike, refused where they do not fit."""

import pytest

from tests.machines import line, switch
from tests.planning.replay import collective_of, expected, replay
from topocomm import Device, Link, Plan, Topology, catalog, check_certificate, plan
from topocomm.planning.collectives import Collective
from topocomm.planning.forests.routed import MOST_RANKS, routed
from topocomm.planning.formats.plan_json import dumps
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder

NAMES = ("gather", "scatter", "alltoall")


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("name", NAMES)
def test_ranks_relay_on_a_line(name, ranks):
    machine = line(ranks)
    collective = collective_of(name, ranks, root=ranks // 2, rows=3 * ranks**2 + 1)
    schedule = routed(collective, PathFinder(machine), machine.endpoints)
    verify(schedule, collective, paths=PathFinder(machine), endpoints=machine.endpoints)
    assert replay(schedule) == expected(collective, schedule.chunks)


@pytest.mark.parametrize("system", ["dgx-1-v100", "mi250x", "rtx3090-pair"])
@pytest.mark.parametrize("name", NAMES)
def test_unlike_pairs_reach_the_bound(name, system):
    machine = catalog(system)
    made = plan(machine, name, payload_bytes=len(machine.endpoints) << 14, objective="throughput", root=1)
    assert made.algorithm == "routed" and made.certificate.gap < 1 / 0.97
    check_certificate(machine, made)
    assert Plan.loads(dumps(made)).digest == made.digest


@pytest.mark.parametrize(
    ("name", "system", "hosts"),
    [
        ("gather", "mi250x", 8),
        pytest.param("gather", "dgx-1-v100", 8, marks=pytest.mark.long),
        pytest.param("scatter", "mi250x", 8, marks=pytest.mark.long),
        pytest.param("alltoall", "cpu-2-socket-64", 2, marks=pytest.mark.long),  # over the spine, not between sockets
    ],
)
def test_several_hosts_reach_the_bound(name, system, hosts):
    machine = catalog(system, hosts=hosts)
    made = plan(machine, name, payload_bytes=len(machine.endpoints) << 14, objective="throughput", root=1)
    assert made.algorithm in ("routed", "diagonal") and made.certificate.gap < 1 / 0.97
    check_certificate(machine, made)


def test_what_it_does_not_fit():
    machine = switch(3)
    ends, paths = machine.endpoints, PathFinder(machine)
    assert routed(collective_of("alltoall", 3, rows=0), paths, ends) is None
    assert routed(collective_of("alltoall", 1, rows=3), paths, ends[:1]) is None
    assert routed(collective_of("alltoall", 3, rows=9), paths, (ends[0], ends[0], ends[1])) is None
    kept = Collective("alltoall", 2, parts=(3, 0, 0, 5))
    assert verify(routed(kept, PathFinder(switch(2)), ends[:2]), kept).complete  # nothing is sent
    large = switch(MOST_RANKS + 1)
    count = len(large.endpoints)
    assert routed(collective_of("alltoall", count, rows=count**2), PathFinder(large), large.endpoints) is None
    ways = [Link(a, b, "k", 1, 1.0, 1.0) for a, b in (("a", "b"), ("b", "c"))]
    one_way = Topology("one way", "test", tuple(Device(name, "gpu") for name in "abc"), tuple(ways))
    assert routed(collective_of("gather", 3, root=0, rows=3), PathFinder(one_way), ("a", "b", "c")) is None


def test_no_endpoint_without_a_rank_relays():
    """Of any kind: a CPU beside GPUs is none of the topology's endpoints, and still no forwarding device."""
    devices = (Device("a", "gpu"), Device("cpu", "cpu"), Device("b", "gpu"))
    pairs = (("a", "cpu", 100.0), ("cpu", "b", 100.0), ("a", "b", 1.0))
    links = tuple(Link(x, y, "k", 1, rate, 1.0) for a, b, rate in pairs for x, y in ((a, b), (b, a)))
    machine = Topology("beside", "test", devices, links)
    schedule = routed(collective_of("alltoall", 2, rows=8), PathFinder(machine), ("a", "b"))
    assert not schedule.paths and len(schedule.transfers) == 2
