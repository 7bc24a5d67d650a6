"""All-to-all in mixes of matchings: any ranks and rows, what is relayed, and how near the bound long blocks come."""

import pytest

from tests.planning.replay import expected, replay
from topocomm import catalog, check_certificate, plan
from topocomm.planning.collectives import Collective
from topocomm.planning.planner import every_plan
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.own_nics import OwnNics
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.ways.folded_hosts import folded_hosts
from topocomm.planning.ways.matching_alltoall import GroupedRanks, matching_alltoall

MIB = 1 << 20


@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize(
    ("system", "count", "together"),
    [("a100-pcie-2", 2, True), ("a100-pcie-2", 3, True), ("a100-pcie-2", 3, False), ("p3dn", 2, False)],
)
def test_any_number_of_rows(system, count, rows, together):
    """Ranks are dealt over the hosts in turn; some blocks have a row more, those to oneself none."""
    machine = catalog(system, hosts=count)
    paths, size = PathFinder(machine), len(machine.endpoints) // count
    ranks = count * size
    ends = [machine.endpoints[rank % count * size + rank // count] for rank in range(ranks)]
    order = tuple(member * count + host for host in range(count) for member in range(size))
    starts = tuple(range(0, ranks + 1, size))
    parts = [rows + (src * dst) % 2 if src != dst else 0 for src in range(ranks) for dst in range(ranks)]
    nics = OwnNics(ends, paths)
    hosts = folded_hosts([ends[rank] for rank in order], (0, ranks) if together else starts, paths, nics)
    schedule = matching_alltoall(parts, GroupedRanks(order, starts, tuple(ends), nics), hosts, 4 * rows << 10)
    collective = Collective("alltoall", ranks, parts=tuple(parts))
    assert verify(schedule, collective).complete
    assert replay(schedule) == expected(collective, schedule.chunks)


@pytest.mark.parametrize(
    ("system", "hosts", "name", "most"),
    [
        ("a100-pcie-2", 2, "matchings-4", 1.05),  # 1.10, and no plan is below 1.04 of the bound
        ("a100-pcie-2", 4, "matchings-8", 1.03),  # 1.05 with the bound of today
        ("a100-pcie-4", 2, "matchings-4", 1.02),  # 1.05: one at a time fills neither NIC nor bus
        ("mi100-8", 2, "matchings-8", 1.02),  # 1.04
        ("p3dn", 4, "matchings-8", 1.03),  # 1.06: the bus carries less than half of what leaves
    ],
)
def test_long_blocks_take_little_more_than_the_bound(system, hosts, name, most):
    machine = catalog(system, hosts=hosts)
    made = plan(machine, "alltoall", payload_bytes=64 * MIB)
    assert made.algorithm == name and made.certificate.gap <= most
    check_certificate(machine, made)


def test_unlike_blocks_and_several_ports_go_otherwise():
    machine = catalog("a100-pcie-2", hosts=2)
    parts = [1000 * (1 + (src == 0)) for src in range(4) for dst in range(4)]
    one = plan(machine, "alltoall", payload_bytes=4 * 8000, parts=parts)
    two = plan(machine, "alltoall", payload_bytes=MIB, ports=2)
    assert not [each for made in (one, two) for each in every_plan(machine, made.request) if "match" in each.algorithm]
