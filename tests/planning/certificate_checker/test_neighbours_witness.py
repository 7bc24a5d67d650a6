"""Lengths around a host give the bound of a scan again; witnesses that do not hold are found."""

import copy
from dataclasses import replace

import pytest

from tests.machines import switch
from topocomm import PlanError, catalog, check_certificate, plan
from topocomm.planning.certificate_checker.neighbours_witness import NeighboursWitness, _needed, _runs
from topocomm.planning.certificate_checker.rederive_bounds import Needs
from topocomm.planning.certificate_checker.witness_graph import WitnessGraph

MIB = 1 << 20


def made(name="scan", hosts=1):
    machine = catalog("dgx-1-v100", hosts=hosts)
    one = plan(machine, name, payload_bytes=64 * MIB)
    assert one.certificate.witness["kind"] == "neighbours"
    return machine, one


def refused(machine, one, message, **entries):
    witness = copy.deepcopy(one.certificate.witness) | entries
    with pytest.raises(PlanError, match=message):
        check_certificate(machine, replace(one, certificate=replace(one.certificate, witness=witness)))


@pytest.mark.parametrize("hosts", [1, 2, 3])
@pytest.mark.parametrize("name", ["scan", "exscan"])
def test_it_gives_the_bound_again(name, hosts):
    check_certificate(*made(name, hosts))


def test_witnesses_that_do_not_hold_are_found():
    machine, one = made(hosts=2)
    witness = one.certificate.witness
    (end, way, weight), *others = witness["ports"]
    refused(machine, one, "time bound is", ports=others)
    refused(machine, one, "time bound is", ports=[[end, way, 2 * weight], *others])
    refused(machine, one, "at least 0", ports=[[end, way, -weight], *others])
    refused(machine, one, "in or out", ports=[[end, "across", weight], *others])
    refused(machine, one, "in or out", group=[each for each in witness["group"] if each != end])
    refused(machine, one, "links of the machine", links=[[end, end, 1.0]])
    refused(machine, one, "no way", ports=[], links=[])
    reduced = plan(machine, "reduce", payload_bytes=64 * MIB)
    entries = {"certificate": replace(reduced.certificate, witness=witness)}
    with pytest.raises(PlanError, match="expected a scan"):
        check_certificate(machine, replace(reduced, **entries))


def test_a_port_by_hand():
    """Each rank of four but the first hears a value: rank 1 by its port, at 450 GB/s."""
    machine = switch(4)
    one = plan(machine, "exscan", payload_bytes=16)
    witness = NeighboursWitness(WitnessGraph(machine, one.ranks), Needs(one.collective), one)
    group = {device.id for device in machine.devices}
    assert witness.gb_per_s(group, [], [["GPU1", "in", 1.0]]) == pytest.approx(450.0)
    both = [["GPU1", "in", 1.0], ["GPU3", "out", 1.0]]
    assert witness.gb_per_s(group, [], both) == pytest.approx(900.0)  # the last rank need send nothing


def test_ranks_beside_the_group_need_nothing_of_each_other():
    assert list(_runs(["", "", "a", "b", "", "", "", "a", ""])) == [["", "a", "b", ""], ["", "a", ""]]
    assert list(_runs(["a", "", "b"])) == [["a", "", "b"]]


def test_what_a_scan_shares_is_counted_once():
    """Ranks 1 -> 0 -> 3 -> 1, 2 around a circle: the link from 0 to 3 has all the length."""
    far = {(0, 3): 1.0, (0, 1): 1.0, (0, 2): 1.0, (1, 3): 1.0, (1, 2): 1.0}
    apart = {str(a): {str(b): far.get((a, b), 0.0) for b in range(4)} for a in range(4)}
    run = ["0", "1", "2", "3"]
    assert (_needed(apart, run, shares=False), _needed(apart, run, shares=True)) == (2.0, 1.0)
