"""Lengths of links give the bound again, by hand and beside what found them; witnesses that do not hold are found."""

import copy
from dataclasses import replace

import pytest

from tests.machines import APART, line, switch, two_and_three
from topocomm import PlanError, catalog, check_certificate, plan
from topocomm.planning.certificate_checker.lengths_witness import LengthsWitness
from topocomm.planning.certificate_checker.rederive_bounds import Needs
from topocomm.planning.certificate_checker.witness_graph import WitnessGraph

MIB = 1 << 20
CASES = {
    "alltoall": (catalog("dgx-1-v100"), "alltoall", 1, None),
    "two ports": (catalog("mi250x"), "alltoall", 2, None),
    "rows": (line(4), "alltoall", 1, [100_000 * (pair % 3) for pair in range(16)]),
    "gather": (catalog("mi250x"), "gather", 1, None),
    "scatter": (catalog("mi250x", hosts=2), "scatter", 1, None),
    "links and ports": (catalog("mi250x"), "scatter", 2, None),
    "borders": (catalog("a100-pcie-2", hosts=4), "alltoall", 1, None),
}


def made(case):
    machine, name, ports, parts = CASES[case]
    payload = 4 * max(sum(parts[row : row + 4]) for row in (0, 4, 8, 12)) if parts else 16 * MIB
    return machine, plan(machine, name, payload_bytes=payload, ports=ports, parts=parts)


def derived(machine, one, links, ports=(), borders=()):
    witness = LengthsWitness(WitnessGraph(machine, one.ranks), Needs(one.collective), one)
    return witness.gb_per_s(links, ports, borders)


def refused(machine, one, message, **entries):
    witness = copy.deepcopy(one.certificate.witness) | entries
    with pytest.raises(PlanError, match=message):
        check_certificate(machine, replace(one, certificate=replace(one.certificate, witness=witness)))


@pytest.mark.parametrize("case", CASES)
def test_plans_have_it_and_it_gives_the_bound_again(case):
    machine, one = made(case)
    assert (one.certificate.witness["bounds"], one.certificate.witness["kind"]) == ("time", "lengths")
    check_certificate(machine, one)


def test_the_throughput_has_one_too():
    machine = two_and_three()
    parts = [100_000 * part for part in APART]
    one = plan(machine, "alltoall", payload_bytes=800_000, parts=parts, objective="throughput")
    assert (one.certificate.witness["bounds"], one.certificate.witness["kind"]) == ("throughput", "lengths")
    check_certificate(machine, one)
    links = one.certificate.witness["links"]
    refused(machine, one, "throughput bound is", links=links[1:])


def test_three_in_a_row():
    """Each pair exchanges a third: two of them pass each link, and the port of the middle sends four."""
    machine = line(3)
    one = plan(machine, "alltoall", payload_bytes=12)
    assert derived(machine, one, [("GPU0", "GPU1", 1.0)]) == pytest.approx(10 / (2 / 3))
    assert derived(machine, one, [("GPU0", "GPU1", 1.0), ("GPU1", "GPU2", 1.0)]) == pytest.approx(20 / (4 / 3))
    assert derived(machine, one, [], [("GPU1", "out", 1.0)]) == pytest.approx(1 / (4 / 3 / 10))


def test_a_message_over_slow_links_holds_its_port_as_long_as_they_take():
    """Ports weigh by the rate of a message: none is quicker than by the switch's 450 GB/s."""
    machine = switch(4)
    one = plan(machine, "alltoall", payload_bytes=16)
    assert derived(machine, one, [], [("GPU0", "in", 2.0)]) == pytest.approx(450 / (3 / 4))


def test_lengths_that_do_not_hold_are_found():
    machine, one = made("links and ports")
    witness = one.certificate.witness
    (src, dst, length), *rest = witness["links"]
    refused(machine, one, "links of the machine", links=[*rest, ["GPU0", "GPU9", 0.1]])
    refused(machine, one, "lengths of at least 0", links=[*rest, [src, dst, -length]])
    refused(machine, one, "ports of endpoints", ports=[["GPU0", "aside", 0.1]])
    refused(machine, one, "ports of endpoints", ports=[["CPU0", "in", 0.1]])
    refused(machine, one, "no way of any pair has a length", links=[], ports=[])
    for wrong in ([[src, dst, length * 1.5], *rest], rest):
        refused(machine, one, "time bound is|no way of any pair", links=wrong)
    (end, way, weight), *others = witness["ports"]
    refused(machine, one, "time bound is", ports=[[end, way, weight * 1.5], *others])


HOST = [f"h0/{name}" for name in ("GPU0", "GPU1", "NIC0", "numa0", "numa1", "host0")]


@pytest.mark.parametrize("ports", [1, 2])
def test_a_nic_is_full_only_while_the_card_beside_it_sends(ports):
    """GPU1, past a bus, fills 16 of 25 GB/s: 12 eighths leave, and GPU0 has no time for it while it sends to GPU1.

    Its port carries 9 GB/s more, but what it sends GPU1 takes 9 / 16 off, at the bus's rate.
    """
    machine = catalog("a100-pcie-2", hosts=4)
    one = plan(machine, "alltoall", payload_bytes=32, ports=ports)
    border = [HOST, ["h0/GPU1", "h0/numa1"], "out", 1.0]
    most = derived(machine, one, [], [("h0/GPU0", "out", 9.0)], [border])
    assert most == pytest.approx((16 + 9 * ports) / ((12 + 9 / 16) / 8))


def test_borders_that_do_not_hold_are_found():
    machine, one = made("borders")
    witness = one.certificate.witness
    (group, part, way, price), *rest = witness["borders"]
    refused(machine, one, "a part of a group", borders=[[part, group, way, price]])
    refused(machine, one, "a part of a group", borders=[[group, part, "aside", price]])
    refused(machine, one, "a part of a group", borders=[[group, part, way, -price]])
    refused(machine, one, "a part of a group", borders=[[["h0/GPU9"], [], way, price]])
    refused(machine, one, "take more off h", borders=[[group, part, way, price * 1e3], *rest])
    refused(machine, one, "take more off h", borders=[[group, part, way, price]] * 1000)
    refused(machine, one, "time bound is", borders=rest)
    refused(machine, one, "time bound is", borders=[[group, group, way, price], *rest])


def test_what_is_copied_has_none():
    machine = line(3)
    one = plan(machine, "broadcast", payload_bytes=12)
    with pytest.raises(PlanError, match="broadcast copies or folds values"):
        derived(machine, one, [("GPU0", "GPU1", 1.0)])
