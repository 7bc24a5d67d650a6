"""Chains over relays: offered where the straight chain is slow, and then much nearer the bound."""

from dataclasses import replace

import pytest

from tests.machines import hosts, switch
from tests.planning.hierarchical.test_long_values import MIB, offered
from tests.plans import request_on
from topocomm import SUM, catalog, check_certificate, plan
from topocomm.operators.operator import Field, Operator
from topocomm.planning.candidates import candidate_builds
from topocomm.planning.relay_chains import RELAYED_SLICE_BYTES, RELAYED_SLICES
from topocomm.planning.routing.paths import PathFinder


@pytest.mark.parametrize("name", ["scan", "exscan"])
def test_they_are_offered_where_something_is_relayed(name):
    assert offered(hosts(17, 4), name, 32 * RELAYED_SLICE_BYTES, "relay-chain") == ["16", "32"]
    for few in (catalog("dgx-1-v100"), hosts(5, 4)):  # along packed trees
        assert offered(few, name, 64 * MIB, "relay-chain") == []
    assert offered(hosts(17, 4), name, 64 * MIB, "relay-chain") == [str(slices) for slices in RELAYED_SLICES]
    assert offered(switch(8), name, 64 * MIB, "relay-chain") == []
    assert offered(hosts(2, 4), "reduce", 64 * MIB, "relay-chain") == []
    assert offered(catalog("dgx-1-v100"), "allreduce", 64 * MIB, "relay-chain") == []


@pytest.mark.parametrize(
    ("name", "count", "root", "most"),
    [("reduce", 1, 5, 1.1), ("broadcast", 1, 0, 1.15)],
)
def test_of_one_root_trees_packed_into_ports_are_better(name, count, root, most):
    """Up trees over links it was 2 times the bound and more, along a chain 1.5."""
    machine = catalog("mi250x", hosts=count)
    near(machine, name, most, "port-forest", root=root)
    assert offered(machine, name, 64 * MIB, "relay-chain")


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
def test_one_root_has_a_chain_of_the_fastest_links(name):
    """A DGX-1 has a path of double links through all GPUs; up trees it was 2.0 times the bound."""
    near(catalog("dgx-1-v100"), name, 1.05, "relay-chain")
    assert plan(catalog("dgx-1-v100"), name, payload_bytes=MIB // 4).certificate.gap < 2


def test_of_one_root_and_two_hosts_a_chain_is_offered_beside_trees_of_hosts():
    """Up trees over links it was 3.8 times what the links need, along a chain 2."""
    near(catalog("mi250x", hosts=2), "reduce", 1.35, "host-forest", root=8)
    near(catalog("mi250x", hosts=2), "broadcast", 1.4, "host-forest", root=11)
    assert offered(catalog("mi250x", hosts=2), "reduce", 64 * MIB, "relay-chain")


def near(machine, name, most, family, root=0):
    """The plan of 64 MiB is of a family and comes so near the bound."""
    made = plan(machine, name, payload_bytes=64 * MIB, root=root)
    assert made.algorithm.startswith(family) and made.certificate.gap <= most
    assert made.proof.complete
    check_certificate(machine, made)


def test_a_root_needs_hosts_of_one_size_and_an_operator_that_commutes():
    machine = catalog("mi250x", hosts=2)
    right = Operator("right", (Field("x", ("*rows",)),), lambda a, b: b, {"x": 0}, commutative=False)
    assert not algorithms(machine, "reduce", right) and algorithms(machine, "broadcast", right)
    assert algorithms(machine, "reduce", SUM) and not algorithms(machine, "reduce", SUM, machine.endpoints[:15])


def algorithms(machine, name, operator, ends=None):
    """The chains over relays among the candidates for 64 MiB."""
    wanted = request_on(machine, name, operator, operator.default_layout(16 * MIB))
    if ends is not None:
        wanted = replace(wanted, endpoints=ends, collective=replace(wanted.collective, ranks=len(ends)))
    return [each for each, _ in candidate_builds(wanted, PathFinder(machine)) if each.startswith("relay-chain")]
