"""Groups of endpoints that are tried as cuts: hosts, clusters by bandwidth, and the devices that serve them."""

from itertools import pairwise

import pytest

from tests.machines import hosts, line, switch
from tests.planning.bounds.machines import random_machine
from topocomm import Device, Link, Topology, catalog
from topocomm.planning.bounds.endpoint_groups import families
from topocomm.planning.bounds.machine_columns import Machine
from topocomm.planning.certificate_checker.witness_graph import WitnessGraph
from topocomm.planning.routing.paths import PathFinder


def machine_of(topology, ranks=None):
    return Machine(ranks or topology.endpoints, PathFinder(topology))


@pytest.mark.parametrize("topology", [switch(5), hosts(3, 4), line(4), catalog("dgx-h100", hosts=2)], ids=str)
def test_families_nest(topology):
    for levels in families(machine_of(topology)):
        assert levels[0].count == len(topology.endpoints)
        for fine, coarse in pairwise(levels):
            above = set(zip(fine.of_rank.tolist(), coarse.of_rank.tolist(), strict=True))
            assert len(above) == fine.count and coarse.count < fine.count


def test_hosts_own_their_switches_and_nics():
    machine = machine_of(hosts(2, 3))
    level = families(machine)[0][1]
    assert level.of_rank.tolist() == [0, 0, 0, 1, 1, 1]
    for group, devices in enumerate(level.devices([0, 1], "out")):
        assert {machine.ids[device].split("/")[0] for device in devices} == {f"h{group}"}


def test_fast_links_join_clusters():
    """Two pairs with fast links, joined by a slow one, on one host."""
    rates = {("a", "b"): 50.0, ("c", "d"): 50.0, ("b", "c"): 4.0}
    links = tuple(Link(*pair, "nvlink", 1, rate, 1.0) for (x, y), rate in rates.items() for pair in ((x, y), (y, x)))
    topology = Topology("pairs", "test", tuple(Device(name, "gpu") for name in "abcd"), links)
    single, clusters = families(machine_of(topology))[1]
    assert single.count == 4 and clusters.of_rank.tolist() == [0, 0, 1, 1]
    assert clusters.border("in").tolist() == [4.0, 4.0]


@pytest.mark.parametrize("seed", range(30))
def test_borders_are_those_of_the_devices_named(seed):
    topology, ranks = random_machine(seed)
    machine, graph = machine_of(topology, ranks), WitnessGraph(topology, ranks)
    for level in (level for levels in families(machine) for level in levels):
        for direction in ("in", "out"):
            for group, devices in enumerate(level.devices([*range(level.count)], direction)):
                named = {machine.ids[device] for device in devices}
                assert level.border(direction)[group] == graph.borders([named], into=direction == "in")
