"""Bounds by matchings of messages: by hand on a line and between hosts, and below every plan of small machines."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines import line, switch
from topocomm import Topology, catalog, check_certificate, plan
from topocomm.planning.bounds.matchings_bound import MOST_MATCHED_ENDS, matchings_of, priced_matchings
from topocomm.planning.forests.linear_program.integer_network import network_of
from topocomm.planning.planner import every_plan
from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.model import Device, Link

MIB = 1 << 20


def found(topology, wanted):
    paths = PathFinder(topology)
    return priced_matchings(network_of(paths, topology.endpoints), paths, np.array(wanted, float))


def each_to_each(ends):
    return (np.ones((ends, ends)) - np.eye(ends)) / ends


def two_hosts(slow_gb_per_s):
    """Two hosts of two cards behind a NIC of 25 GB/s: one card at its side, the other past a bus; ports 25 GB/s."""
    devices, links = [Device("net", "switch", host="network")], []
    for host in ("a", "b"):
        devices += [Device(f"{host}/near", "numa", host=host), Device(f"{host}/far", "numa", host=host)]
        devices += [Device(f"{host}/GPU{i}", "gpu", host=host) for i in (0, 1)] + [
            Device(f"{host}/NIC", "nic", host=host)
        ]
        for one, other, rate in (
            ("GPU0", "near", 25.0), ("GPU1", "far", 25.0), ("near", "far", slow_gb_per_s), ("near", "NIC", 25.0)
        ):  # fmt: skip
            ends = f"{host}/{one}", f"{host}/{other}"
            links += [Link(*each, "pcie", 1, rate, 1.0) for each in (ends, ends[::-1])]
        links += [Link(*each, "network", 1, 25.0, 1.0) for each in ((f"{host}/NIC", "net"), ("net", f"{host}/NIC"))]
    return Topology("two hosts", "test", tuple(devices), tuple(links))


def test_sets_of_messages_to_which_none_can_be_added():
    assert list(matchings_of(2)) == [((0, 1), (1, 0))]
    assert [len(list(matchings_of(ends))) for ends in (3, 4, 5)] == [5, 17, 89]
    for sends in matchings_of(4):
        for side in zip(*sends, strict=True):
            assert len(set(side)) == len(sends)


@pytest.mark.parametrize("ends", [2, 3, 4])
def test_on_a_switch_ports_bound_it(ends):
    bound = found(switch(ends, gb_per_s=10.0), each_to_each(ends))
    assert bound.gb_per_s == pytest.approx(10.0 * ends / (ends - 1), rel=1e-6)


def test_in_a_row_the_middle_passes_on():
    """Each sends a third of a payload to each; the middle sends two of its own and two of others at 10 GB/s."""
    bound = found(line(3), each_to_each(3))
    assert bound.gb_per_s == pytest.approx(7.5, rel=1e-6)


@pytest.mark.parametrize(("bus", "gb_per_s"), [(25.0, 25.0), (10.0, 40 / 3), (16.0, 20.4964), (20.0, 23.1884)])
def test_cards_past_a_bus(bus, gb_per_s):
    """A payload leaves each host, at 25 GB/s; three quarters of one cross each bus. Between the two neither is full:
    20.4964 is what SciPy's linear program finds over all sets of messages."""
    assert found(two_hosts(bus), each_to_each(4)).gb_per_s == pytest.approx(gb_per_s, rel=1e-5)


def test_nothing_without_routes():
    apart = Topology("apart", "test", (Device("GPU0", "gpu"), Device("GPU1", "gpu")), ())
    assert found(apart, each_to_each(2)) is None


def test_cards_behind_a_bus_are_within_a_percent_of_it():
    """The bound by lengths leaves 4 % open here."""
    machine = catalog("a100-pcie-2", hosts=2)
    one = plan(machine, "alltoall", payload_bytes=64 * MIB)
    assert one.certificate.witness["kind"] == "matchings" and 1.0 <= one.certificate.gap < 1.01
    check_certificate(machine, one)
    two_ports = plan(machine, "alltoall", payload_bytes=64 * MIB, ports=2)
    assert two_ports.certificate.witness["kind"] != "matchings"


rates = st.sampled_from([5.0, 8.0, 10.0, 16.0, 25.0])


@given(st.data())
def test_no_plan_of_a_small_machine_is_better(data):
    count = data.draw(st.integers(2, MOST_MATCHED_ENDS), label="ranks")
    devices = [Device(f"GPU{i}", "gpu") for i in range(count)] + [Device(f"s{i}", "switch") for i in range(2)]
    links = []
    for a, b in [(f"GPU{i}", f"s{i % 2}") for i in range(count)] + [("s0", "s1")]:
        rate = data.draw(rates)
        links += [Link(a, b, "pcie", 1, rate, 1.0), Link(b, a, "pcie", 1, rate, 1.0)]
    if data.draw(st.booleans(), label="a link of two"):
        links += [Link("GPU0", "GPU1", "nvlink", 1, 25.0, 1.0), Link("GPU1", "GPU0", "nvlink", 1, 25.0, 1.0)]
    machine = Topology("small", "test", tuple(devices), tuple(links))
    name = data.draw(st.sampled_from(["alltoall", "gather", "scatter"]))
    one = plan(machine, name, payload_bytes=4 * MIB)
    check_certificate(machine, one)
    assert min(each.certificate.gap for each in every_plan(machine, one.request)) >= 1 - 1e-9
