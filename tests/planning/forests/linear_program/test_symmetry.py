"""Groups: every element maps links onto links of equal figures, and moves all ranks or none."""

import numpy as np
import pytest

from tests.planning.forests.machines import slower, without
from topocomm import Device, Link, Topology
from topocomm.planning.forests.linear_program.integer_network import network_of
from topocomm.planning.forests.linear_program.symmetry import symmetry_at, symmetry_of
from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.catalog.systems import catalog

SIZES = {
    ("dgx-h100", 1): 8,
    ("dgx-h100", 4): 32,
    ("dgx-1-v100", 2): 8,
    ("mi250x", 4): 16,
    ("cpu-2-socket", 2): 16,
    ("rtx4090-pcie-8", 1): 8,
}


def groups(topology, root=None, most=None):
    network = network_of(PathFinder(topology), topology.endpoints)
    hosts = [topology.by_id[device].host for device in network.devices]
    return symmetry_of(network, hosts) if root is None else symmetry_at(network, hosts, root, most)


def check(symmetry):
    network = symmetry.network
    for element in symmetry.elements:
        assert sorted(element.tolist()) == list(range(len(network.devices)))
        for number, (a, b) in enumerate(network.links):
            image = network.index[element[a], element[b]]
            assert network.gb_per_s[image] == network.gb_per_s[number]
            assert network.latency_us[image] == network.latency_us[number]
            assert symmetry.orbit_of_link[image] == symmetry.orbit_of_link[number]


@pytest.mark.parametrize(("name", "count"), SIZES)
def test_catalogue(name, count):
    symmetry = groups(catalog(name, hosts=count))
    check(symmetry)
    ends = np.arange(symmetry.network.ends)
    assert len(symmetry.elements) == SIZES[name, count]
    assert (symmetry.elements[1:, : len(ends)] != ends).all(), "every rank is moved"
    assert len(symmetry.roots) * len(symmetry.elements) == len(ends)


def test_a_host_unlike_the_others_stays_in_its_place():
    symmetry = groups(without(catalog("dgx-h100", hosts=4), ("h2/NIC3", "rail3")))
    check(symmetry)
    assert len(symmetry.elements) == 3
    assert (symmetry.elements[:, 16:24] == np.arange(16, 24)).all()


def test_a_root_stays_in_its_place():
    symmetry = groups(catalog("dgx-h100", hosts=4), root=9)
    check(symmetry)
    assert len(symmetry.elements) == 21
    assert (symmetry.elements[:, 9] == 9).all()
    assert symmetry.images[9] == 21
    fewer = groups(catalog("dgx-h100", hosts=4), root=9, most=8)
    check(fewer)
    assert len(fewer.elements) == 7


def test_no_symmetry_is_not_imagined():
    symmetry = groups(slower(catalog("mi300x-8"), "GPU3", "GPU5", 20.0))
    check(symmetry)
    assert len(symmetry.elements) == 1


def test_hosts_with_equal_links_and_other_ranks_are_not_exchanged():
    kinds = {"a/0": "gpu", "a/1": "nic", "b/0": "gpu", "b/1": "gpu", "switch": "switch"}
    devices = tuple(Device(name, kind, host=name.partition("/")[0]) for name, kind in kinds.items())
    pairs = [(f"{host}/{a}", b) for host in "ab" for a, b in ((0, f"{host}/1"), (0, "switch"), (1, "switch"))]
    links = tuple(Link(*ends, "nvlink", 1, 10.0, 1.0) for pair in pairs for ends in (pair, pair[::-1]))
    symmetry = groups(Topology("unequal", "test", devices, links))
    check(symmetry)
    assert symmetry.elements[:, 0].tolist() == [0] * len(symmetry.elements)
