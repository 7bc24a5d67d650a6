"""Hosts, the tree of each, and which of them are alike."""

from itertools import pairwise

from tests.topology.draw.machines import mixed_cluster
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.draw.device_tree import (
    MOST_LEVELS,
    alike,
    fabric_links,
    forest,
    local,
    loose_nodes,
    shared_cpus,
    split_hosts,
    walk,
)
from topocomm.topology.links import both_ways
from topocomm.topology.model import Device, Topology


def linked(*pairs, kind="pcie4"):
    return [link for a, b in pairs for link in both_ways(a, b, kind)]


def below(node):
    return {child.device.id: below(child) for child in node.children}


def test_hosts_have_their_links_those_outwards_and_shared_switches():
    first, *rest = split_hosts(catalog("gb200-nvl72"))
    assert (first.name, len(rest)) == ("h0", 17)
    assert first.links == ()
    assert {link.dst for link in first.outward} == {"nvswitch0"} == {d.id for d in first.shared}
    rails = split_hosts(catalog("dgx-h100", hosts=2))[1]
    assert {link.kind for link in rails.outward} == {"network"} and rails.shared == ()
    assert {d.host for d in rails.devices} == {"h1"}


def test_hosts_without_endpoints_are_all_shown():
    devices = (Device("NIC0", "nic", "a"), Device("NIC1", "nic", "b"))
    assert [host.name for host in split_hosts(Topology("x", "by hand", devices, ()))] == ["a", "b"]


def test_hosts_are_alike_but_for_their_names():
    assert [len(group) for group in alike(split_hosts(catalog("dgx-h100", hosts=3)))] == [3]
    assert [len(group) for group in alike(split_hosts(mixed_cluster()))] == [1, 1]
    assert (local("h0/GPU1", "h0"), local("h0/GPU1", "h1")) == ("GPU1", "h0/GPU1")


def test_the_tree_goes_from_numa_nodes_down_to_endpoints():
    devices = [Device("numa0", "numa", numa=0), Device("numa1", "numa", numa=1), Device("pcie0", "switch")]
    devices += [Device("GPU0", "gpu"), Device("NIC0", "nic"), Device("GPU1", "gpu")]
    links = linked(("numa0", "numa1"), ("numa0", "pcie0"), ("pcie0", "GPU0"), ("pcie0", "NIC0"), ("numa1", "GPU1"))
    assert [(root.device.id, below(root)) for root in forest(devices, links)] == [
        ("numa0", {"pcie0": {"GPU0": {}, "NIC0": {}}}),
        ("numa1", {"GPU1": {}}),
    ]


def test_circles_end_and_long_chains_are_cut():
    names = [f"pcie{i}" for i in range(MOST_LEVELS + 5)]
    devices = [Device(name, "switch") for name in names]
    (root,) = forest(devices, linked(*pairwise(names), (names[-1], names[0])))
    assert sorted(node.device.id for node in walk([root])) == sorted(names)
    roots = forest(devices, linked(*pairwise(names)))
    assert [sum(1 for _ in walk([root])) for root in roots] == [MOST_LEVELS, 5]


def test_what_the_tree_lacks_hangs_on_what_it_is_linked_to():
    devices = [Device(f"GPU{i}", "gpu") for i in range(3)] + [Device(f"NIC{i}", "nic") for i in range(3)]
    links = linked(("GPU0", "NIC0"), ("GPU1", "NIC1"), ("GPU2", "NIC1"))
    nodes = loose_nodes(devices, links, forest(devices, links))
    assert {node.device.id: below(node) for node in nodes} == {
        "GPU0": {"NIC0": {}},
        "NIC1": {"GPU1": {}, "GPU2": {}},
        "NIC2": {},
    }


def test_the_fabric_is_between_gpus_and_their_switches():
    devices = [Device("GPU0", "gpu"), Device("GPU1", "gpu"), Device("s", "switch"), Device("numa0", "numa")]
    links = linked(("GPU0", "GPU1"), ("GPU0", "s"), ("GPU1", "numa0"), kind="nvlink2") + linked(("GPU0", "numa0"))
    assert {frozenset(link[:2]) for link in fabric_links(devices, links)} == {
        frozenset(("GPU0", "GPU1")),
        frozenset(("GPU0", "s")),
    }


def test_cpus_are_named_where_all_gpus_have_the_same():
    gpus = [Device(f"GPU{i}", "gpu", cpu_affinity=cpus) for i, cpus in enumerate(("0-7", "0-7", "8-15"))]
    assert shared_cpus([*gpus[:2], Device("cpu0", "cpu", cpu_affinity="3")]) == "0-7"
    assert shared_cpus(gpus) is shared_cpus([]) is None
