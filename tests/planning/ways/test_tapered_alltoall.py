"""All-to-all under tapered switches: any number of hosts, how many steps go straight, and even use of what is above."""

from collections import Counter

import pytest

from tests.planning.algorithms.offered import messages
from tests.planning.replay import expected, replay
from topocomm import Topology, catalog, check_certificate, plan
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.ways.tapered_alltoall import straight_steps, tapered_alltoall

MIB = 1 << 20


@pytest.mark.parametrize(("size", "straight"), [(3, 1), (4, 2), (4, 3), (5, 2)])
@pytest.mark.parametrize("hosts", range(2, 6))
def test_any_number_of_hosts_in_any_order(hosts, size, straight):
    ranks = hosts * size
    rows = [(5 * pair) % 4 for pair in range(ranks**2)]
    order = tuple(range(ranks)[::-1])
    schedule = tapered_alltoall(rows, ranks, size, order, straight)
    collective = Collective("alltoall", ranks, parts=tuple(rows))
    assert verify(schedule, collective).complete
    assert replay(schedule) == expected(collective, schedule.chunks)


def test_half_of_the_hosts_use_the_links_above_at_a_time():
    """Of 4 hosts of 8 all ranks send to another host in a round, half of them to another rail."""
    schedule = tapered_alltoall([1] * 32**2, 32, 8, range(32), 4)
    other, own = Counter(), Counter()
    for round_, src, dst in messages(schedule):
        if src // 8 != dst // 8:
            (own if src % 8 == dst % 8 else other)[round_] += 1
    assert len(other) == 24 and set(other.values()) == {16} and own == other


def without(machine, share):
    """The links above the rails at this share of their rate."""
    links = (
        link._replace(gb_per_s=link.gb_per_s * share) if "spine" in link.src + link.dst else link
        for link in machine.links
    )
    return Topology("tapered", "hand", machine.devices, tuple(links), machine.pairs)


@pytest.mark.parametrize(
    ("system", "share", "steps"),
    [("dgx-h100-taper2", 1, 4), ("dgx-h100", 1, 0), ("dgx-h100", 0.25, 2), ("p4d", 1, 0), ("dgx-a100", 0.1, 0)],
)
def test_steps_that_fit(system, share, steps):
    machine = without(catalog(system, hosts=4), share)
    starts = (0, 8, 16, 24, 32)
    assert straight_steps(machine.endpoints, starts, PathFinder(machine)) == steps
    assert straight_steps(machine.endpoints[:31], (0, 8, 16, 24, 31), PathFinder(machine)) == 0
    assert straight_steps(machine.endpoints[:8], (0, 8), PathFinder(machine)) == 0


@pytest.mark.parametrize(("hosts", "share", "most"), [(2, 0.5, 1.03), (4, 0.5, 1.03), (16, 0.5, 1.03), (4, 0.25, 1.05)])
def test_long_blocks_take_little_more_than_the_bound(hosts, share, most):
    """By rails alone 1.06 times, straight 2.3 times; of 128 ranks by the bound of ports 1.05 times."""
    machine = without(catalog("dgx-h100", hosts=hosts), share)
    made = plan(machine, "alltoall", payload_bytes=64 * MIB)
    assert made.algorithm.startswith("tapered-") and made.certificate.gap <= most
    check_certificate(machine, made)
