"""Times with bytes: by hand on machines whose figures are simple, and beside every share of rows at first hand."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import topocomm
from tests.machines import hosts, switch
from topocomm import PlanError, catalog, check_certificate, plan
from topocomm.planning.bounds.bounds import bounds_of
from topocomm.planning.bounds.time.time_bound import relayed_us
from topocomm.planning.collectives import collective_of
from topocomm.planning.routing.paths import PathFinder

MIB = 1 << 20


def bound(machine, name, payload_bytes, *, ports=1, root=0):
    made = collective_of(name, len(machine.endpoints), payload_bytes // 4, root=root)
    found = bounds_of(made, machine.endpoints, PathFinder(machine), ports=ports, port_model="loggp")
    return found.time_bound(payload_bytes)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_switch_takes_a_message_and_the_bytes(ranks):
    """Every value leaves once and every result enters once: 2 (P-1)/P of the payload at 450 GB/s, 0.6 us away."""
    found = bound(switch(ranks), "allreduce", MIB)
    assert found.value == pytest.approx(0.6 + 2 * (ranks - 1) / ranks * MIB / 450e3)


@pytest.mark.parametrize("name", ["allgather", "reduce_scatter"])
def test_parts_go_once(name):
    found = bound(switch(8), name, 8 * MIB)
    assert found.value == pytest.approx(0.6 + 7 * MIB / 450e3)


def test_one_port_sends_by_nvlink_or_by_its_nic():
    """4 hosts of 4: 2 * 3 values between hosts at 50 GB/s, 30 - 6 others at 450, over 16 ports."""
    found = bound(hosts(4, 4), "allreduce", 64 * MIB)
    assert found.witness["kind"] == "ports"
    assert found.value == pytest.approx(0.6 + 64 * MIB / 16 * (6 / 50e3 + 24 / 450e3))


@pytest.mark.parametrize(("hosts_count", "rates"), [(1, (200, 100, 50)), (2, (200, 100, 50, 25))])
def test_every_level_of_rates_has_its_own_messages(hosts_count, rates):
    """MI250X: pairs of dies at 200 GB/s, two pairs at 100, two of these at 50, hosts at 25."""
    machine = topocomm.catalog("mi250x", hosts=hosts_count)
    found = bound(machine, "allreduce", 16 * MIB)
    groups = [8 * hosts_count, 4 * hosts_count, 2 * hosts_count, hosts_count]
    slower = [1 / rate - 1 / faster for rate, faster in zip(rates, (float("inf"), *rates), strict=False)]
    held = sum(2 * (count - 1) * more for count, more in zip(groups, slower, strict=False))
    assert [len(level) for level in found.witness["levels"]] == groups[1 : len(rates)]
    assert found.value == pytest.approx(0.7 + 16 * MIB / 1e3 * held / (8 * hosts_count))
    plan = topocomm.plan(machine, "allreduce", payload_bytes=16 * MIB)
    assert plan.certificate.witness["kind"] == "ports"
    topocomm.check_certificate(machine, plan)


def test_two_ports_halve_what_ports_take():
    """Then the border is what binds: 2 * 3/4 of the payload at 200 GB/s of a host."""
    found = bound(hosts(4, 4), "allreduce", 64 * MIB, ports=2)
    assert found.witness["kind"] == "border"
    assert found.value == pytest.approx(5.0 + 1.5 * 64 * MIB / 200e3)


@pytest.mark.parametrize("name", ["reduce", "broadcast", "scan"])
def test_a_host_sends_or_receives_by_its_own_ports(name):
    """The ranks of a host each send (receive) a value, one of which crosses at 50 GB/s and the others at 450.

    Of a reduce all of it must leave, so that it is sent a message between hosts before the end.
    """
    ranks = 17 if name == "scan" else 9  # a scan has its neighbours on a smaller host
    found = bound(hosts(4, ranks), name, 64 * MIB)
    assert (found.witness["kind"], len([d for d in found.witness["group"] if "GPU" in d])) == ("group", ranks)
    assert found.witness["direction"] == ("out" if name == "reduce" else "in")
    after_us = 5.0 if name == "reduce" else 0.6
    assert found.value == pytest.approx(after_us + 64 * MIB / ranks * (1 / 50e3 + (ranks - 1) / 450e3))


def test_an_endpoint_has_as_many_links_as_ports():
    """MI300X: seven links of 64 GB/s, one message at a time."""
    machine = topocomm.catalog("mi300x-8")
    rate = max(link.gb_per_s for link in machine.links if link.kind.startswith("xgmi"))
    one, all_links = (bound(machine, "scatter", 64 * MIB, ports=ports) for ports in (1, 7))
    assert one.witness["kind"] == "endpoint"
    assert one.value == pytest.approx(0.7 + 7 / 8 * 64 * MIB / rate / 1e3)
    assert all_links.value < one.value / 6


def test_a_value_goes_at_first_hand_or_waits_twice():
    """4 hosts: 1 MiB from everybody to everybody takes 21 us, over a relay it takes two messages of 5 us."""
    found = bound(hosts(4, 4), "allreduce", MIB)
    assert found.witness["kind"] == "relays"
    value_us = MIB / 4 / 200e3
    assert found.value == pytest.approx(10.0 + 4 * value_us - 5.0 / 3)
    assert 10.0 < found.value < 5.0 + 3 * 4 * value_us


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
def test_an_endpoint_hears_each_other_or_waits_twice(name):
    """8 GPUs, 1 MiB: 2.3 us by a port; a share of the rows that takes 0.6 us at first hand is not sent again."""
    found = bound(switch(8), name, MIB)
    value_us = MIB / 450e3
    assert (found.witness["kind"], found.witness["by_ports"]) == ("relays", True)
    assert found.value == pytest.approx(1.2 + value_us - 0.6 / 7)
    two = bound(switch(8), name, MIB, ports=2)
    assert two.value == pytest.approx(found.value)  # by one link


def test_what_a_broadcast_relays_has_left_the_root_by_its_ports():
    """512 KiB over 16 hosts of MI300X: 1.3 us over the border of 400 GB/s, 8.2 at a port of 64."""
    machine = catalog("mi300x-8", hosts=16)
    made = plan(machine, "broadcast", payload_bytes=MIB // 2)
    border_us, port_us = MIB / 2 / 400e3, MIB / 2 / 64e3
    share = (5 + port_us - border_us) / (14 * border_us + port_us)
    assert made.certificate.witness["by_root"]
    assert made.certificate.predicted_lower_bound_us == pytest.approx(10 + (1 - share) * port_us)
    check_certificate(machine, made)
    two = plan(machine, "broadcast", payload_bytes=MIB // 2, ports=2).certificate
    assert two.predicted_lower_bound_us < made.certificate.predicted_lower_bound_us
    reduced = plan(machine, "reduce", payload_bytes=MIB // 2)
    assert not any(each.get("by_root") for each in reduced.certificate.other_witnesses)


def test_a_witness_of_a_reduce_has_no_ports_of_the_root():
    machine = hosts(16, 4)
    made = plan(machine, "reduce", payload_bytes=MIB // 16)
    witness = {**made.certificate.witness, "by_root": True}
    assert witness["kind"] == "relays"
    with pytest.raises(PlanError, match="expected a broadcast, whose root has ports"):
        check_certificate(machine, replace(made, certificate=replace(made.certificate, witness=witness)))


def test_without_bytes_it_is_the_latency_bound():
    found = bound(hosts(3, 2), "allreduce", 0)
    assert found.witness == {"bounds": "time", "kind": "latency"} and found.value == pytest.approx(
        5.6
    )  # rails, and one hop


@given(st.floats(0.1, 100), st.floats(1e-3, 100), st.integers(3, 40), st.booleans(), st.floats(1, 50))
def test_the_best_share_at_first_hand_is_found(across_us, value_us, groups, rooted, slower):
    """Beside every share of a fine grid: what is sent in all, and what is sent after the first message."""
    others, left_us = groups - 1, value_us * slower
    at_once = across_us + value_us * (others if rooted else others * groups)

    def late_us(share):
        if rooted:
            return max(across_us + (share * others + 1 - share) * value_us, 2 * across_us + (1 - share) * left_us)
        early = share * groups  # groups that hear all others at first hand
        sent = max(2 * others, early * others + groups - early)
        return max(across_us + sent * value_us, 2 * across_us + (groups - early) * value_us)

    found = relayed_us(across_us, value_us, groups, rooted=rooted, late_us=left_us)
    grid = [float(Fraction(step, 2000)) for step in range(2000)]
    assert found <= min(at_once, min(map(late_us, grid))) * (1 + 1e-9)
    assert found >= min(at_once, min(map(late_us, [*grid, 1.0]))) * (1 - 1e-2)


@pytest.mark.parametrize("name", ["reduce", "gather"])
@pytest.mark.filterwarnings("error")
def test_a_host_from_which_nothing_must_leave_needs_no_way_out(name):
    machine = hosts(2, 2)
    one_way = tuple(
        link for link in machine.links if not (link.src.startswith("h0/NIC") and link.dst.startswith("rail"))
    )
    found = bound(replace(machine, links=one_way), name, MIB).value
    assert found == bound(machine, name, MIB).value
