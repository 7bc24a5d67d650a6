"""Prices of pairs give the bound again, beside what found them; witnesses that do not hold are found."""

from dataclasses import replace

import pytest

from tests.planning.certificate_checker.test_lengths_witness import refused
from topocomm import PlanError, catalog, check_certificate, plan
from topocomm.planning.certificate_checker.matchings_witness import MatchingsWitness
from topocomm.planning.certificate_checker.rederive_bounds import Needs
from topocomm.planning.certificate_checker.witness_graph import WitnessGraph

MACHINE = catalog("a100-pcie-2", hosts=2)


@pytest.fixture(scope="module")
def one():
    return plan(MACHINE, "alltoall", payload_bytes=64 << 20)


def derived(one, prices, matchings):
    return MatchingsWitness(WitnessGraph(MACHINE, one.ranks), Needs(one.collective), one).gb_per_s(prices, matchings)


def test_it_gives_the_bound_again(one):
    witness = one.certificate.witness
    assert (witness["bounds"], witness["kind"]) == ("time", "matchings") and len(witness["matchings"]) == 17
    check_certificate(MACHINE, one)
    rate = derived(one, witness["prices"], witness["matchings"])
    us = one.certificate.predicted_lower_bound_us - witness["cheapest_us"]
    assert one.payload_bytes / rate / 1e3 == pytest.approx(us, rel=1e-9)


def test_every_set_that_sends_at_once_must_be_there(one):
    refused(MACHINE, one, "no lengths for what sends at once", matchings=one.certificate.witness["matchings"][1:])


def test_no_message_is_shorter_than_its_price(one):
    prices = [[src, dst, 1.01 * price] for src, dst, price in one.certificate.witness["prices"]]
    refused(MACHINE, one, r"a message h\d/GPU\d > h\d/GPU\d is .* long, its price", prices=prices)
    shorter = [
        [sends, [[*link[:2], 0.9 * link[2]] for link in links]] for sends, links in one.certificate.witness["matchings"]
    ]
    refused(MACHINE, one, "long, its price", matchings=shorter)


def test_longer_lengths_prove_less(one):
    longer = [
        [sends, [[*link[:2], 1.5 * link[2]] for link in links]] for sends, links in one.certificate.witness["matchings"]
    ]
    refused(MACHINE, one, "is", matchings=longer)


def test_what_is_no_link_or_no_pair(one):
    sends, links = one.certificate.witness["matchings"][0]
    rest = one.certificate.witness["matchings"][1:]
    refused(MACHINE, one, "expected links of the machine", matchings=[[sends, [["h0/GPU0", "h1/GPU0", 1.0]]], *rest])
    refused(MACHINE, one, "expected links of the machine", matchings=[[sends, [[*links[0][:2], -1.0]]], *rest])
    for prices in ([["h0/NIC0", "h1/GPU0", 1.0]], [["h0/GPU0", "h1/GPU0", -1.0]]):
        refused(MACHINE, one, "expected prices of at least 0 of pairs of endpoints", prices=prices)
    refused(MACHINE, one, "no way of any pair has a price", prices=[])


def test_it_is_for_one_port(one):
    with pytest.raises(PlanError, match="for one port a rank, this plan has 2"):
        derived(replace(one, ports=2), one.certificate.witness["prices"], one.certificate.witness["matchings"])
