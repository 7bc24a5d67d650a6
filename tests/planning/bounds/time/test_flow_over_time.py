"""A value over all ways at once: by hand where two ways have unlike latencies, and beside every plan."""

import numpy as np
import pytest

from tests.machines import hosts, line
from tests.planning.bounds.time.test_weighted_groups import mesh
from tests.plans import request_on
from topocomm import SUM, catalog, check_certificate, plan
from topocomm.planning.bounds.demand import demand_of
from topocomm.planning.bounds.machine_columns import Machine
from topocomm.planning.bounds.time.flow_over_time import MOST_LINKS, flows_over_time, window_us
from topocomm.planning.collectives import collective_of
from topocomm.planning.planner import every_plan
from topocomm.planning.routing.paths import PathFinder

KIB = 1 << 10
TWO_WAYS = {(0, 1): 100.0, (1, 2): 100.0, (0, 2): 50.0, (2, 3): 100.0}
"""0 is 1 us from 2 at 50 GB/s, and 2 us at 100; all are at most 2 us from 0, but 3, behind 2."""


def least_us(machine, name, payload_bytes, ports=1, **options):
    demand = demand_of(collective_of(name, len(machine.endpoints), 1200, **options))
    found = flows_over_time(demand, Machine(machine.endpoints, PathFinder(machine)), ports)
    return max((each.us(payload_bytes) for each in found), default=0.0)


@pytest.mark.parametrize("ports", [1, 2])
@pytest.mark.parametrize("payload_bytes", [400_000, 1_000_000])
def test_two_ways_of_unlike_latency(ports, payload_bytes):
    """From 0 to 3: the way over 1 takes 1 us longer, in which the other brings 50 KB.

    With one port 0 then sends at 100 GB/s; with two ports over both ways at once, and 2 sends on at 100.
    """
    expected = 3 + (payload_bytes / 1000 - 50) / 100 if ports == 1 else 2 + payload_bytes / 100_000
    assert least_us(mesh(TWO_WAYS), "broadcast", payload_bytes, ports) == pytest.approx(expected, rel=1e-3)


def test_a_reduce_is_about_a_broadcast_back():
    machine = catalog("mi250x")
    for payload_bytes in (16 * KIB, 256 * KIB):
        there, back = (least_us(machine, name, payload_bytes) for name in ("broadcast", "reduce"))
        assert there == pytest.approx(back, rel=0.1) and there > 1.4


def test_parts_are_shares_of_the_payload():
    machine, size = line(3), 300_000
    assert least_us(machine, "allgather", size) == pytest.approx(least_us(machine, "broadcast", size / 3), rel=1e-3)
    empty = least_us(machine, "allgather", size, parts=(0, 0, 1200))
    assert empty == pytest.approx(least_us(machine, "broadcast", size, root=2), rel=1e-3)


@pytest.mark.parametrize("name", ["allreduce", "reduce", "broadcast", "allgather", "scan", "alltoall"])
@pytest.mark.parametrize("ports", [1, 2])
def test_no_plan_is_better(name, ports):
    for machine in (catalog("mi250x"), hosts(2, 3), mesh(TWO_WAYS)):
        for payload_bytes in (4 * KIB, 64 * KIB):
            request = request_on(machine, name, SUM, SUM.default_layout(payload_bytes // 4), ports=ports)
            least = least_us(machine, name, payload_bytes, ports)
            assert least > 0
            for each in every_plan(machine, request):
                assert each.figures.predicted_us >= least * (1 - 1e-9), each.algorithm


def test_the_certificate_has_it():
    """By weighted groups alone the bound was 1.63 us: 1.4 us to the farthest are before or after the bytes."""
    machine = catalog("mi250x")
    one = plan(machine, "broadcast", payload_bytes=64 * KIB)
    assert one.certificate.witness["kind"] == "flow" and one.certificate.predicted_lower_bound_us > 2.1
    check_certificate(machine, one)


def test_where_weights_reach_the_time_needed():
    offsets, weights = np.array([1.0, 2.0, 9.0]), np.array([1.0, 1.0, 5.0])
    assert window_us(offsets, weights, 0.5) == 1.5
    assert window_us(offsets, weights, 3.0) == 3.0
    for needed in np.linspace(0.01, 100, 50):
        us = window_us(offsets, weights, needed)
        assert (weights * np.maximum(us - offsets, 0)).sum() == pytest.approx(needed)


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_of_many_links_all_passes_the_ports_of_both_ranks(name):
    """512 KiB at 64 GB/s, the last of them 5.7 us before the end: without it the bound was 10.98 us."""
    machine = catalog("mi300x-8", hosts=16)
    assert len(machine.links) > MOST_LINKS
    assert least_us(machine, name, 512 * KIB) == pytest.approx(5.7 + 512 * KIB / 64e3)
    assert least_us(machine, name, 512 * KIB, ports=2) < least_us(machine, name, 512 * KIB)
    made = plan(machine, name, payload_bytes=512 * KIB)
    assert made.certificate.gap < 2.1
    assert (
        made.certificate.witness["kind"] == {"reduce": "leaving", "broadcast": "relays"}[name]
    )  # of these the greater
    check_certificate(machine, made)


def test_little_takes_the_latency_and_its_bytes_at_a_port():
    """By the weights that are best for long values it was 5.55 us, less than the 6 us of its latency."""
    machine = catalog("mi250x", hosts=2)
    assert least_us(machine, "broadcast", 4 * KIB) == pytest.approx(6 + 4 * KIB / 200e3)
