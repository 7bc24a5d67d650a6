"""The partition that prices suggest, and its bound."""

import numpy as np
import pytest

from tests.machines import hosts, line, switch
from tests.planning.forests.machines import forest, solved
from topocomm.planning.forests.linear_program.integer_network import network_of
from topocomm.planning.forests.linear_program.partition_witness import partition_of
from topocomm.planning.routing.paths import PathFinder


def egress(topology, group):
    return sum(link.gb_per_s for link in topology.links if link.src in group and link.dst not in group)


@pytest.mark.parametrize(("machine", "groups"), [(switch(5), 5), (hosts(4, 2), 8), (hosts(8, 4), 8), (line(4), 2)])
def test_proves_the_optimum(machine, groups):
    found = forest(machine, "allreduce")
    partition = found.partition
    assert partition.gb_per_s == pytest.approx(found.gb_per_s, rel=1e-3)
    assert len(partition.groups) >= 2
    assert len(partition.groups) == groups or machine.name.startswith(("line", "4 hosts"))
    assert partition.gb_per_s == pytest.approx(
        sum(egress(machine, group) for group in partition.groups) / (2 * len(partition.groups) - 2)
    )
    assert {device for group in partition.groups for device in group} >= set(machine.endpoints)


@pytest.mark.parametrize("case", range(0, 32, 2))
def test_no_partition_undercuts_the_optimum(case):
    topology, optima = solved()[case]
    found = forest(topology, "allreduce")
    assert found.partition.gb_per_s >= optima["allreduce"] * (1 - 1e-5)
    if not any(device.kind == "switch" for device in topology.devices):
        assert found.partition.gb_per_s == pytest.approx(optima["allreduce"], rel=1e-4), "Tutte, Nash-Williams"


def test_prices_that_join_everything_suggest_nothing():
    topology = switch(2)
    network = network_of(PathFinder(topology), topology.endpoints)
    assert partition_of(network, []) is None
    assert partition_of(network, [np.zeros(4)]).gb_per_s == pytest.approx(450.0), "the ranks one by one"
