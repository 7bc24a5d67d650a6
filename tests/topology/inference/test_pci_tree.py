"""Pair codes and the graph of devices, from their places below PCI bridges."""

import pytest

from tests.topology.paths import latency_us
from topocomm.errors import TopologyError
from topocomm.topology.inference.pci_tree import (
    MAX_GPUS,
    Bridge,
    Leaf,
    address,
    bus_key,
    check_size,
    natural,
    path_code,
    pci_graph,
    pci_pairs,
    with_domain,
)
from topocomm.topology.links import PATH_LATENCY_US
from topocomm.topology.model import Device, Pair, Topology

HOST, SECOND = Bridge(), Bridge()
PORT, UP, DOWN = (
    Bridge("0000:00:01.0", 16.0),
    Bridge("0000:01:00.0", 32.0),
    [Bridge(f"0000:02:0{i}.0") for i in range(4)],
)


def gpu(number, *path, rate=32.0, places=(0,)):
    return Leaf(Device(f"GPU{number}", "gpu"), path, rate, frozenset(places))


SWITCHED = [gpu(i, HOST, PORT, UP, DOWN[i]) for i in range(2)]


def test_numbers_in_names_sort_by_value():
    names = ["a10", "a9", "a2147483648147", "a2147483648146", "a02", "a2", "b"]
    assert sorted(names, key=natural) == ["a02", "a2", "a9", "a10", "a2147483648146", "a2147483648147", "b"]
    natural("9" * 10_000)


@pytest.mark.parametrize(
    ("a", "b", "code"),
    [
        (SWITCHED[0], SWITCHED[1], "PIX"),
        (SWITCHED[0], gpu(1, HOST, PORT, UP, DOWN[1], Bridge()), "PXB"),
        (SWITCHED[0], gpu(1, HOST, Bridge()), "PHB"),
        (SWITCHED[0], gpu(1, SECOND), "NODE"),
        (SWITCHED[0], gpu(1, SECOND, places=(1,)), "SYS"),
        (gpu(0, places=(0,)), gpu(1, places=(1,)), "SYS"),
        (gpu(0, places=(0,)), gpu(1, places=(0,)), None),  # neither bridge is known
        (SWITCHED[0], gpu(1, SECOND, places=()), None),
        (SWITCHED[0], gpu(1, SECOND, places=(0, 1)), None),
    ],
)
def test_codes(a, b, code):
    assert path_code(a, b) == path_code(b, a) == code


def test_pairs_with_a_better_way_keep_it():
    nic = Leaf(Device("NIC0", "nic"), (HOST, PORT, UP, DOWN[2]), 32.0, frozenset({0}))
    nvlink = Pair("GPU0", "GPU1", "NV4", 100.0)
    pairs = pci_pairs(SWITCHED, [nic], {("GPU0", "GPU1"): nvlink})
    assert pairs[0] is nvlink
    assert [pair[:3] for pair in pairs[1:]] == [("GPU0", "NIC0", "PIX"), ("GPU1", "NIC0", "PIX")]
    assert pairs[1].latency_us == PATH_LATENCY_US["PIX"]


def graph(leaves, *numas):
    nodes = [Device(f"numa{number}", "numa", numa=number) for number in numas]
    devices, links = pci_graph(leaves, nodes)
    return Topology("x", "test", (*(leaf.device for leaf in leaves), *nodes, *devices), links)


def test_bridges_with_one_device_below_are_part_of_its_link_at_the_slowest_rate():
    topology = graph([*SWITCHED, gpu(2, HOST, DOWN[3], rate=8.0)], 0)
    (switch,) = [d for d in topology.devices if d.name == "PCIe switch"]
    (bridge,) = [d for d in topology.devices if d.name == "PCIe host bridge"]
    assert switch.bus_id == "0000:01:00.0"
    rates = {link[:2]: link.gb_per_s for link in topology.links}
    assert rates["GPU0", switch.id] == rates[switch.id, "GPU1"] == 32.0
    assert rates[switch.id, bridge.id] == 16.0  # the port is slower than the switch
    assert rates["GPU2", bridge.id] == 8.0
    assert latency_us(topology, "GPU0", "GPU1") == PATH_LATENCY_US["PIX"]
    assert latency_us(topology, "GPU0", "GPU2") == PATH_LATENCY_US["PHB"]


def test_nodes_and_what_is_at_none_meet_at_the_host():
    topology = graph([gpu(0, HOST), gpu(1, SECOND, places=(1,)), gpu(2, places=())], 0, 1)
    host = next(d.id for d in topology.devices if d.kind == "host")
    assert {link.src: link.kind for link in topology.links if link.dst == host} == {
        "numa0": "smp",
        "numa1": "smp",
        "GPU2": "pcie",
    }
    assert latency_us(topology, "GPU0", "GPU1") == PATH_LATENCY_US["SYS"]


def test_addresses_of_numbers():
    assert address("26000") == "0000:26:00.0"
    assert address("100a1b3") == "0010:0a:1b.3"
    assert address("f" * 16) is None


def test_addresses_sort_by_number_and_unknown_ones_come_last():
    found = sorted(["0001:00:00.0", None, "ff:00.0", "0000:0f:00.1", "0f:00.0"], key=bus_key)
    assert found == ["0f:00.0", "0000:0f:00.1", "ff:00.0", "0001:00:00.0", None]
    assert [with_domain(text) for text in ("3b:00.0", "0001:3b:00.0", "x")] == ["0000:3b:00.0", "0001:3b:00.0", "x"]


def test_sizes_that_no_host_has_are_refused():
    check_size("x", MAX_GPUS, 0)
    with pytest.raises(TopologyError, match=r"x: 257 GPUs in one host; expected at most 256; is this one machine\?"):
        check_size("x", MAX_GPUS + 1, 0)
