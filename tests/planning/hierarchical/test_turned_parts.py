"""Parts whose messages take turns: near the bound where ranks share a link, and offered only where turns help."""

from dataclasses import replace

import pytest

from tests.planning.hierarchical.test_long_values import MIB, offered
from tests.plans import request_on
from topocomm import SUM, catalog, check_certificate, plan
from topocomm.planning.candidates import candidate_builds
from topocomm.planning.routing.paths import PathFinder


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reduce_scatter"])
@pytest.mark.parametrize(
    ("system", "count", "most"),
    [("rtx4090-pcie-4", 2, 1.12), ("a100-pcie-4", 1, 1.12), ("rtx4090-pcie-8", 1, 1.12), ("v100-4", 2, 1.3)],
)
def test_messages_over_a_shared_link_take_turns(system, count, most, name):
    """While it carries one, other members send inside; in phases it was 1.59, 1.5, 1.75 and 1.45 times the bound."""
    machine = catalog(system, hosts=count)
    made = plan(machine, name, payload_bytes=4 * MIB)
    assert (
        made.algorithm.startswith(("turns-", "port-forest-", "rails-overlap-", "host-forest-"))
        and made.certificate.gap <= most
    )
    check_certificate(machine, made)


def test_turns_are_for_few_ranks_and_one_port_whose_rounds_cost_nothing():
    machine = catalog("rtx4090-pcie-4", hosts=2)
    request = request_on(machine, "allgather", SUM, SUM.default_layout(MIB))

    def takes_turns(request, machine=machine):
        return any(name.startswith("turns") for name, _ in candidate_builds(request, PathFinder(machine)))

    assert takes_turns(request)
    assert not takes_turns(replace(request, ports=2)) and not takes_turns(replace(request, launch_us=1.0))
    assert offered(catalog("rtx4090-pcie-4", hosts=8), "allreduce", 64 * MIB, "turns") == ["32"]
    assert offered(catalog("rtx4090-pcie-4", hosts=9), "allreduce", 64 * MIB, "turns") == []


def test_an_allreduce_over_hosts_of_several_sockets_is_left_to_host_forests():
    machine = catalog("mi100-8", hosts=2)
    assert offered(machine, "allreduce", 16 * MIB, "host-forest") and not offered(
        machine, "allreduce", 16 * MIB, "turns"
    )
    assert offered(catalog("mi100-8"), "allreduce", 16 * MIB, "turns") == ["32"]
