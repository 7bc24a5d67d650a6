"""What is only moved, on machines of every kind: near the bound, whatever the hosts share."""

import random
from dataclasses import replace

import pytest

from tests.machines import switch
from tests.planning.replay import builds, collective_of
from topocomm import Device, Link, Topology, catalog, check_certificate, plan
from topocomm.planning.planner import every_plan
from topocomm.planning.routing.paths import NoRouteError

MIB = 1 << 20


@pytest.mark.parametrize(
    ("system", "hosts", "name", "most"),
    [
        ("dgx-1-v100", 1, "ways-", 1.02),  # 1.22 with one relay a pair
        ("mi250x", 1, "ways-", 1.03),  # 1.25
        ("dgx-1-v100", 2, "by-nics-", 1.01),  # 1.14
        ("dgx-1-p100", 2, "by-nics-", 1.03),  # 1.12
        ("p3dn", 2, "ways-", 1.01),  # 1.11: one NIC, behind a bus for half of the GPUs
        ("mi250x", 4, "by-nics-", 1.03),
        ("v100-4", 2, "diagonal", 1.01),
        ("p4d", 3, "by-nics-", 1.02),
        ("dgx-h100", 3, "by-hosts-", 1.02),
    ],
)
def test_long_blocks_take_little_more_than_the_bound(system, hosts, name, most):
    machine = catalog(system, hosts=hosts)
    made = plan(machine, "alltoall", payload_bytes=16 * MIB)
    assert made.algorithm.startswith(name) and made.certificate.gap <= most
    check_certificate(machine, made)


@pytest.mark.parametrize("name", ["gather", "scatter"])
@pytest.mark.parametrize(
    ("system", "hosts", "most"),
    [
        ("dgx-1-v100", 1, 1.01),  # 1.43 as a binomial tree
        ("mi250x", 1, 1.04),  # 1.54
        ("dgx-1-v100", 2, 1.06),  # 2.80
        ("dgx-h100-taper2", 2, 1.09),  # 1.57
        ("a100-pcie-4", 2, 1.12),  # 1.41
    ],
)
def test_one_root_over_all_its_links(name, system, hosts, most):
    machine = catalog(system, hosts=hosts)
    made = plan(machine, name, payload_bytes=32 * MIB)
    assert made.algorithm.startswith("ways-") and made.certificate.gap <= most
    check_certificate(machine, made)


def test_trays_of_one_fabric_are_one_host():
    """Two racks of 4 trays: in turn ranks of a tray sent to trays of both racks, at unlike rates."""
    machine = catalog("gb200-nvl72", hosts=2)
    made = plan(machine, "alltoall", payload_bytes=64 * MIB)
    assert made.algorithm == "by-hosts-1" and made.certificate.gap <= 1.01


def test_a_rank_that_reaches_no_other_host_gets_its_blocks_by_another():
    """Its bus has no NIC: messages between the hosts in turns on the NIC have no route."""
    machine = catalog("v100-4", hosts=2)
    kept = tuple(link for link in machine.links if "h1/GPU3" not in (link.src, link.dst) or link.kind == "nvlink")
    cut = replace(machine, links=kept)
    with pytest.raises(NoRouteError, match=r"h0/GPU0 -> h1/GPU3.*no route"):
        builds(cut, collective_of("alltoall", 8, rows=64 * MIB), 64 * MIB)["by-nics-1"]()
    made = plan(cut, "alltoall", payload_bytes=64 * MIB)
    assert made.proof.complete and made.algorithm.startswith("ways-")


def test_nothing_to_send_and_ranks_that_are_alike():
    assert not [name for name in builds(switch(4), collective_of("alltoall", 4, rows=160), 160) if "ways" in name]
    own = plan(switch(2), "alltoall", payload_bytes=20, parts=[5, 0, 0, 3])
    assert own.proof.complete and own.figures.wire_bytes == 0


@pytest.mark.parametrize("ports", [1, 2])
@pytest.mark.parametrize("seed", range(12))
def test_random_meshes_are_no_better_than_their_bound(seed, ports):
    """GPUs joined at random, 4 to 7 of them, by links of three rates; blocks of any size, some none."""
    chance = random.Random(seed)
    count = chance.randint(4, 7)
    pairs = [(a, b) for a in range(count) for b in range(a) if chance.random() < 0.6 or a == b + 1]
    links = []
    for a, b in pairs:
        rate = chance.choice([10.0, 25.0, 50.0])
        links += [Link(f"GPU{x}", f"GPU{y}", "nvlink", 1, rate, 1.0) for x, y in ((a, b), (b, a))]
    machine = Topology("mesh", "test", tuple(Device(f"GPU{i}", "gpu") for i in range(count)), tuple(links))
    parts = [chance.choice([0, 200_000, 1_000_000]) for _ in range(count**2)]
    most = max(sum(parts[low : low + count]) for low in range(0, count**2, count))
    made = plan(machine, "alltoall", payload_bytes=4 * most, parts=parts, ports=ports)
    check_certificate(machine, made)
    assert made.proof.complete
    for each in every_plan(machine, made.request):
        assert each.certificate.gap >= 1 - 1e-9
    if ports == 1:
        assert made.certificate.gap <= 1.2
