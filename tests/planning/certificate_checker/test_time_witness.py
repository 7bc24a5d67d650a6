"""Witnesses of times with bytes that do not hold are found, by kind; the right ones give the bound again."""

import copy
from dataclasses import replace

import pytest

from tests.machines import hosts, switch
from tests.planning.bounds.time.test_weighted_groups import TRIANGLE, mesh
from topocomm import PlanError, catalog, check_certificate, plan

KIB, MIB = 1 << 10, 1 << 20
CASES = {
    "border": (switch(4), "allreduce", MIB, 1),
    "relays": (hosts(4, 4), "allreduce", MIB, 1),
    "relays of a reduce": (hosts(4, 4), "reduce", MIB, 1),
    "relays of a broadcast": (hosts(8, 4), "broadcast", MIB, 1),
    "relays of a scan": (hosts(8, 4), "scan", MIB, 1),
    "relays of endpoints": (switch(8), "reduce", MIB, 1),
    "relays over ports": (catalog("mi300x-8"), "broadcast", MIB, 3),
    "leaving": (hosts(8, 4), "allreduce", MIB, 1),
    "leaving of a reduce": (hosts(8, 4), "reduce", MIB, 1),
    "leaving by several ports": (catalog("dgx-1-p100", hosts=8), "allreduce", 64 * KIB, 2),
    "ports": (hosts(4, 4), "allreduce", 64 * MIB, 1),
    "group": (hosts(4, 4), "reduce", 64 * MIB, 1),
    "group of a broadcast": (hosts(4, 4), "broadcast", 64 * MIB, 1),
    "group of a scan": (hosts(2, 17), "scan", 64 * MIB, 1),
    "weights": (mesh(TRIANGLE), "broadcast", 16 * MIB, 1),
    "prefix": (hosts(16, 2), "scan", MIB, 1),
    "prefix of endpoints": (switch(32), "exscan", MIB, 2),
    "flow": (catalog("mi250x"), "broadcast", 64 * KIB, 1),
    "endpoint": (catalog("mi300x-8"), "scatter", 8 * MIB, 1),
    "latency": (switch(4), "allreduce", 0, 1),
}


def made(case):
    machine, collective, payload_bytes, ports = CASES[case]
    return machine, plan(machine, collective, payload_bytes=payload_bytes, ports=ports)


def refused(machine, one, message, **entries):
    witness = copy.deepcopy(one.certificate.witness) | entries
    with pytest.raises(PlanError, match=message):
        check_certificate(machine, replace(one, certificate=replace(one.certificate, witness=witness)))


@pytest.mark.parametrize("case", CASES)
def test_every_kind_gives_the_bound_again(case):
    machine, one = made(case)
    assert (one.certificate.witness["bounds"], one.certificate.witness["kind"]) == ("time", case.split()[0])
    check_certificate(machine, one)


def test_a_bound_that_is_another_is_found():
    machine, one = made("ports")
    for factor in (1 - 1e-6, 1 + 1e-6):
        bound = one.certificate.predicted_lower_bound_us * factor
        wrong = replace(one.certificate, predicted_lower_bound_us=bound)
        with pytest.raises(PlanError, match="time bound is"):
            check_certificate(machine, replace(one, certificate=wrong))


def test_a_plan_of_an_earlier_version_is_to_be_made_again():
    machine, one = made("ports")
    older = replace(one.certificate, predicted_lower_bound_us=None)
    with pytest.raises(PlanError, match=r"predicted_lower_bound_us is missing, .* plan again"):
        check_certificate(machine, replace(one, certificate=older))


def test_a_launch_counts_once():
    machine = switch(4)
    machine = replace(machine, launch_us=6.0)
    one = plan(machine, payload_bytes=MIB)
    assert one.certificate.predicted_lower_bound_us == pytest.approx(6.6 + 1.5 * MIB / 450e3)
    check_certificate(machine, one)


def test_a_message_that_takes_longer_than_some_is_found():
    machine, one = made("relays")
    refused(machine, one, "5.5 us across, some message takes 5", across_us=5.5)
    machine, one = made("border")
    refused(machine, one, "0.7 us across, some message takes 0.6", across_us=0.7)
    machine, one = made("ports")
    refused(machine, one, "the cheapest message takes 0.6", cheapest_us=0.7)


def test_groups_that_overlap_or_leave_out_an_endpoint_are_found():
    machine, one = made("relays")
    groups = one.certificate.witness["groups"]
    refused(machine, one, "every endpoint with ranks in one of", groups=groups[1:])
    refused(machine, one, "every endpoint with ranks in one of", groups=[[*groups[0], "h1/GPU0"], *groups[1:]])
    machine, one = made("ports")
    levels = one.certificate.witness["levels"]
    refused(machine, one, "every endpoint with ranks in one of", levels=[levels[0][1:]])


def test_levels_that_do_not_nest_are_found():
    machine, one = made("ports")
    hosts_of = one.certificate.witness["levels"][0]
    rails = [[f"h{host}/GPU{gpu}" for host in range(4)] for gpu in range(4)]
    refused(machine, one, "a group lies in no group of the next level", levels=[hosts_of, rails])


@pytest.mark.parametrize("name", ["reduce", "scan"])
def test_relays_know_whose_they_are(name):
    machine, one = made(f"relays of a {name}")
    groups = one.certificate.witness["groups"]
    refused(machine, one, "the root's group first", groups=groups[::-1])
    refused(machine, one, "the root's group first", direction="out")


def test_ports_are_those_of_single_endpoints():
    machine, one = made("relays")
    refused(machine, one, "expected single endpoints, whose ports they are", by_ports=True)
    machine, one = made("relays over ports")  # 3 of its 7 links
    refused(machine, one, "time bound is", by_ports=False)


def test_an_endpoint_that_needs_nothing_is_found():
    machine, one = made("endpoint")
    refused(machine, one, "nothing must cross at 'nvswitch'", endpoint="nvswitch")


def test_a_group_with_nothing_to_send_or_another_border_is_found():
    machine, one = made("group")
    everything = [device.id for device in machine.devices]
    refused(machine, one, "nothing must cross the border of the group", group=everything)
    refused(machine, one, "nothing must cross the border of the group", group=["rail0"])
    refused(machine, one, "names one twice", group=one.certificate.witness["group"] * 2)
    refused(machine, one, "nothing must cross the border of the group", direction="in")
    refused(machine, one, "5.1 us across, some message takes 5.0", across_us=5.1)
    refused(machine, one, "time bound is", across_us=4.0)
    refused(
        machine,
        one,
        "5.0 us across, some message takes 0.6",
        group=[name for name in one.certificate.witness["group"] if "GPU1" not in name],
    )


def test_only_what_a_reduce_sends_must_leave_the_group():
    machine, one = made("group of a scan")
    refused(machine, one, "a group without the root of a reduce", across_us=5.0)
    machine, one = made("group of a broadcast")
    refused(machine, one, "a group without the root of a reduce", across_us=5.0)


def test_weights_of_messages_that_hold_no_port_so_long_are_found():
    machine, one = made("weights")
    groups, ports = (one.certificate.witness[key] for key in ("groups", "ports"))
    heavier = [[ids, way, weight * (1 + 1e-6)] for ids, way, weight in groups]
    refused(machine, one, "a message from .* counts .*, and holds ports for", groups=heavier)
    refused(machine, one, "counts .*, and holds ports for", ports=[[name, way, 0.99 * w] for name, way, w in ports])
    refused(machine, one, "weights of at least 0", ports=[[ports[0][0], "out", -1.0], *ports[1:]])
    refused(machine, one, "weights of at least 0", groups=[[groups[0][0], "round", 0.1]])
    refused(machine, one, "names one twice", groups=[[groups[0][0] * 2, *groups[0][1:]], *groups[1:]])
    refused(machine, one, "the cheapest message takes 1", cheapest_us=1.1)
    lighter = [[ids, way, weight * 0.9] for ids, way, weight in groups]
    refused(machine, one, "time bound is", groups=lighter)


def test_a_border_has_a_cut_or_a_partition():
    machine, one = made("border")
    refused(
        machine, one, "expected a witness of throughput, got one of rounds", of={"bounds": "rounds", "kind": "none"}
    )


def test_a_prefix_that_does_not_pass_the_groups_is_found():
    machine, one = made("prefix")
    groups = one.certificate.witness["groups"]
    refused(machine, one, "its first and last rank in two groups", groups=[groups[0] + groups[-1], *groups[1:-1]])
    refused(machine, one, "5.1 us across, some message takes 5.0", across_us=5.1)
    refused(machine, one, "0.7 us across, some message takes 0.6", apart_us=0.7)
    refused(machine, one, "expected a latency, between groups no less", across_us=0.5)
    refused(machine, one, "time bound is", across_us=4.0)
    refused(machine, one, "every endpoint with ranks in one of", groups=groups[1:])


def test_other_collectives_have_no_prefix():
    machine = hosts(16, 2)
    other = plan(machine, "reduce", payload_bytes=MIB)
    refused(machine, other, "expected a prefix", **made("prefix")[1].certificate.witness)
