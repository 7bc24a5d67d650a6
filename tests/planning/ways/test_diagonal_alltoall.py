"""All-to-all along diagonals: any hosts, every round mixed, and what NICs and buses then carry."""

from collections import Counter

import numpy as np
import pytest

from tests.planning.algorithms.offered import messages
from tests.planning.replay import builds, collective_of, expected, replay
from topocomm import catalog, check_certificate, plan
from topocomm.planning.collectives import Collective
from topocomm.planning.planner import every_plan
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.own_nics import OwnNics
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.ways.diagonal_alltoall import diagonal_alltoall

MIB = 1 << 20


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("ranks", range(1, 18))
def test_any_number_of_ranks_in_any_order(ranks, size):
    """Hosts of `size` ranks, the last with what is left, ranks in reverse order; unlike blocks, some without rows."""
    rows = [(5 * pair) % 4 for pair in range(ranks**2)]
    starts, order = (*range(0, ranks, size), ranks), tuple(range(ranks)[::-1])
    schedule = diagonal_alltoall(rows, ["x"] * ranks, starts, order, None)
    collective = Collective("alltoall", ranks, parts=tuple(rows))
    assert verify(schedule, collective).complete
    assert replay(schedule) == expected(collective, schedule.chunks)
    ports = Counter((round_, side, end) for round_, *ends in messages(schedule) for side, end in enumerate(ends))
    assert max(ports.values(), default=1) == 1


@pytest.mark.parametrize(("system", "count"), [("cpu-2-socket", 2), ("mi100-8", 4)])
def test_in_every_round_as_many_go_to_each_host(system, count):
    machine = catalog(system, hosts=count)
    ranks = len(machine.endpoints)
    size = ranks // count
    schedule = builds(machine, collective_of("alltoall", ranks, rows=ranks**2), ranks**2)["diagonal"]()
    to = Counter((round_, src // size, dst // size) for round_, src, dst in messages(schedule))
    by_round = Counter(round_ for round_, *_ in messages(schedule))
    across = [number for (round_, a, b), number in to.items() if a != b and by_round[round_] == ranks]
    assert len(across) > 0 and set(across) == {size // count}


@pytest.mark.parametrize(
    ("system", "hosts", "most"),
    [
        ("cpu-2-socket-64", 2, 1.01),  # 1.88: three quarters went by one of two NICs, or waited for the bus
        ("cpu-2-socket", 4, 1.01),
        ("mi100-8", 4, 1.03),  # 1.07: one at a time does not fill the NIC
        ("a100-pcie-4", 8, 1.02),  # 1.03
    ],
)
def test_long_blocks_take_little_more_than_the_bound(system, hosts, most):
    machine = catalog(system, hosts=hosts)
    best = plan(machine, "alltoall", payload_bytes=16 * MIB)
    straight = best if best.algorithm == "diagonal" else by_name(every_plan(machine, best.request))["diagonal"]
    assert straight.certificate.gap <= most
    check_certificate(machine, straight)


def by_name(plans):
    return {each.algorithm: each for each in plans}


def test_blocks_between_hosts_go_by_the_nics_of_their_ranks():
    machine = catalog("cpu-2-socket-64", hosts=2)
    ends, paths = machine.endpoints, PathFinder(machine)
    parts = np.ones(128 * 128, dtype=int).tolist()
    schedule = diagonal_alltoall(parts, ends, (0, 64, 128), range(128), OwnNics(ends, paths))
    nics = Counter()
    for _, src, _, dst, _, _, path in schedule.transfers.tolist():
        way = schedule.paths[path] if path >= 0 else paths.cheapest(ends[src], ends[dst]).devices
        nics.update(device for device in way if "NIC" in device)
    assert set(nics.values()) == {64 * 64}
