"""Chains over relays: offered where the straight chain is slow, and then much nearer the bound."""

import pytest

from tests.machines import hosts, switch
from tests.planning.test_long_values import MIB, offered
from topocomm import SUM, catalog, check_certificate, plan
from topocomm.operators.operator import Field, Operator
from topocomm.planning.relay_chains import RELAYED_SLICE_BYTES, RELAYED_SLICES


@pytest.mark.parametrize("name", ["scan", "exscan"])
def test_they_are_offered_where_something_is_relayed(name):
    assert offered(catalog("dgx-1-v100"), name, 64 * MIB, "relay-chain") == list(RELAYED_SLICES)
    assert offered(catalog("dgx-1-v100"), name, 32 * RELAYED_SLICE_BYTES, "relay-chain") == [16, 32]
    assert offered(hosts(2, 4), name, 64 * MIB, "relay-chain") == list(RELAYED_SLICES)
    assert offered(switch(8), name, 64 * MIB, "relay-chain") == []
    assert offered(catalog("dgx-1-v100"), "reduce", 64 * MIB, "relay-chain") == []


@pytest.mark.parametrize("name", ["scan", "exscan"])
@pytest.mark.parametrize(
    ("system", "count", "most"), [("dgx-1-v100", 1, 2.25), ("mi250x", 1, 2.0), ("dgx-1-v100", 2, 2.5)]
)
def test_scans_of_unlike_links_come_nearer_the_bound(system, count, most, name):
    """Without relays it was 2.9, 3.2 and 6.2 times the bound."""
    machine = catalog(system, hosts=count)
    made = plan(machine, name, payload_bytes=64 * MIB)
    assert made.algorithm.startswith("relay-chain") and made.certificate.gap <= most
    assert made.proof.order_kept
    check_certificate(machine, made)


def test_operators_that_do_not_commute_are_folded_in_order():
    operator = Operator("right", (Field("x", ("*rows",)),), lambda a, b: b, {"x": 0}, commutative=False)
    made = plan(catalog("dgx-1-v100"), "scan", payload_bytes=16 * MIB, operator=operator)
    summed = plan(catalog("dgx-1-v100"), "scan", payload_bytes=16 * MIB, operator=SUM)
    assert made.algorithm == summed.algorithm and made.algorithm.startswith("relay-chain")
