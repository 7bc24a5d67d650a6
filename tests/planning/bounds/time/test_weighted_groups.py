"""Weights of groups: by hand where three GPUs have two rates, and beside every pair of meshes."""

from itertools import combinations, product

import numpy as np
import pytest

import topocomm
from topocomm import Device, Link, Topology, check_certificate, plan
from topocomm.planning.bounds.demand import demand_of
from topocomm.planning.bounds.machine_columns import Machine
from topocomm.planning.bounds.time.weighted_groups import weighted_groups
from topocomm.planning.collectives import collective_of
from topocomm.planning.routing.paths import PathFinder

MIB = 1 << 20
TRIANGLE = {(0, 1): 100.0, (0, 2): 100.0, (1, 2): 50.0}


def mesh(rates):
    """GPUs of one host with these links both ways, each 1 us long."""
    ends = {end for pair in rates for end in pair}
    both = [(*ends, rate) for pair, rate in rates.items() for ends in (pair, pair[::-1])]
    links = tuple(Link(f"GPU{a}", f"GPU{b}", "nvlink", 1, rate, 1.0, None) for a, b, rate in both)
    return Topology("mesh", "test", tuple(Device(f"GPU{end}", "gpu", host="h0") for end in sorted(ends)), links)


def found(machine, name, **kwargs):
    made = demand_of(collective_of(name, len(machine.endpoints), 1200, **kwargs))
    return list(weighted_groups(made, Machine(machine.endpoints, PathFinder(machine))))


def test_three_gpus_of_two_rates():
    """GPU0 sends 2/3 of its value to each of the others, which exchange the rest by a link half as fast.

    So GPU0 sends 4/3 of a value at 100 GB/s, and each other receives 2/3 at 100 and 1/3 at 50, as long: no plan is
    faster. A single endpoint or group bounds it by one value at 100 GB/s only.
    """
    (only,) = found(mesh(TRIANGLE), "broadcast")
    assert only.gb_per_s == pytest.approx(75.0, rel=1e-4)
    assert [weight for *_, weight in only.ports if weight > 1e-3] == pytest.approx([1 / 3] * 3, rel=1e-3)


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
def test_a_host_without_the_root_counts_wherever_the_root_is(name):
    """It has what enters it and what leaves it; the root's host lacks one of these, and a root on host 1 hid it."""
    machine = topocomm.catalog("mi250x", hosts=2)
    rates = [min(each.gb_per_s for each in found(machine, name, root=root)) for root in (0, 8)]
    assert rates[0] == pytest.approx(rates[1], rel=1e-4)


def test_the_certificate_has_it():
    machine = mesh(TRIANGLE)
    one = plan(machine, "broadcast", payload_bytes=64 * MIB)
    assert one.certificate.witness["kind"] == "weights"
    assert one.certificate.predicted_lower_bound_us == pytest.approx(1.0 + 64 * MIB / 75e3, rel=1e-4)
    check_certificate(machine, one)


def test_two_ports_halve_it():
    one, two = (plan(mesh(TRIANGLE), "broadcast", payload_bytes=64 * MIB, ports=ports) for ports in (1, 2))
    us = [each.certificate.predicted_lower_bound_us - 1.0 for each in (one, two)]
    assert us[1] >= us[0] / 2 * (1 - 1e-9)
    check_certificate(mesh(TRIANGLE), two)


def test_pairs_that_are_alike_have_none():
    assert not found(mesh(dict.fromkeys(TRIANGLE, 100.0)), "broadcast")
    assert not found(topocomm.catalog("dgx-h100", hosts=2), "reduce")


def test_a_prefix_has_its_neighbours_instead():
    assert found(mesh(TRIANGLE), "reduce") and not found(mesh(TRIANGLE), "scan")


@pytest.mark.parametrize("name", ["broadcast", "reduce", "allgather"])
@pytest.mark.parametrize("system", ["dgx-1-v100", "mi250x", "v100-4"])
def test_no_message_counts_more_than_the_ports_it_holds(system, name):
    """Beside every pair of the host by its direct link or over the CPUs: weights sum to at most those of ports."""
    machine = topocomm.catalog(system)
    ends = machine.endpoints
    routes = PathFinder(machine).routes(ends, *map(np.array, zip(*product(range(len(ends)), repeat=2), strict=True)))
    rate = dict(zip(product(ends, ends), routes.gb_per_s.tolist(), strict=True))
    for each in found(machine, name):
        held = {(end, way): weight for end, way, weight in each.ports}
        assert sum(held.values()) == pytest.approx(1.0)
        for a, b in (pair for pair in product(ends, ends) if pair[0] != pair[1]):
            counted = sum(w for own, way, w in each.groups if (a in own, b in own) == (way == "out", way == "in"))
            assert counted * rate[a, b] <= (held[a, "out"] + held[b, "in"]) * (1 + 1e-9)


def test_it_is_above_what_single_groups_say_on_a_mesh():
    """An allreduce on MI250X: 2.85 ms of ports at 256 MiB, where what each endpoint sends takes 2.71 alone."""
    times_ms = [
        256 * MIB / found(topocomm.catalog("mi250x"), name)[0].gb_per_s / 1e6 for name in ("allreduce", "reduce")
    ]
    assert times_ms == pytest.approx([2.852, 2.714], rel=1e-3)


def test_a_large_host_has_none():
    ring = {(a, b): 10.0 * (1 + (b - a == 1)) for a, b in combinations(range(9), 2)}
    assert not found(mesh(ring), "broadcast")
