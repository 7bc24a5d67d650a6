"""From hwloc's objects to machines: places, codes, links, hosts without GPUs."""

import pytest

from tests.topology.paths import latency_us
from tests.topology.readers.hwloc.facts import assert_facts, codes_of
from tests.topology.readers.hwloc.machines import Xml, machine, package, two_sockets
from tests.topology.readers.hwloc.test_hwloc_links import boxed
from topocomm.errors import TopologyError
from topocomm.topology.readers.hwloc import hwloc_xml


def test_two_sockets():
    topology = hwloc_xml.read(two_sockets().text(), "folder/box.xml")
    assert (topology.name, topology.source, topology.warnings) == ("box", "hwloc XML", ())
    assert_facts(
        topology,
        {
            "gpus": 4,
            "nics": 1,
            "hwloc_xml": "2.0",
            "numa_nodes": 2,
            "busids": {"GPU0": "0000:03:00.0", "GPU3": "0001:01:00.0", "mlx5_0": "0000:05:00.0"},
            "numa_affinity": {"GPU0": 0, "GPU1": 0, "GPU2": 0, "GPU3": 1, "mlx5_0": 0},
            "cpu_affinity": {"GPU0": "0-3", "GPU3": "4-7"},
            "links": {
                "GPU0-GPU1": "PIX",
                "GPU0-GPU2": "PHB",
                "GPU0-GPU3": "SYS",
                "GPU1-GPU2": "PHB",
                "GPU1-GPU3": "SYS",
                "GPU2-GPU3": "SYS",
            },
            "os_devices_per_gpu": ["cudaN", "opencl0dN", "nvmlN"],
            "net_names": ["ib0"],
            "management_ports": ["eno1"],
            "nic_numa": {"mlx5_0": 0},
        },
    )
    assert {f"{p.a}-{p.b}": p.code for p in topology.pairs if p.b == "mlx5_0"} == {
        "GPU0-mlx5_0": "PIX",
        "GPU1-mlx5_0": "PIX",
        "GPU2-mlx5_0": "PHB",
        "GPU3-mlx5_0": "SYS",
    }


def test_the_graph_has_the_latencies_of_the_codes_and_the_rates_that_were_read():
    topology = hwloc_xml.read(two_sockets().text(), "box.xml")
    for pair in topology.pairs:
        if pair.b != "mlx5_0":
            assert latency_us(topology, pair.a, pair.b) == pytest.approx(pair.latency_us)
    rates = {(link.src, link.dst): (link.gb_per_s, link.gb_per_s_source) for link in topology.links}
    assert rates["GPU0", "pcie0"] == (15.753846, "read")
    assert rates["pcie0", "bridge0"] == (7.876923, "read")
    assert rates["GPU3", "numa1"] == (15.753846, "read")


def test_two_levels_of_switches_are_pxb():
    xml = Xml()
    machine(xml)
    package(xml, 0)
    xml.host_bridge()
    xml.bridge("0000:00:01.0")
    xml.bridge("0000:01:00.0")
    for i in range(2):
        xml.bridge(f"0000:02:{i:02x}.0")
        xml.bridge(f"0000:{0x10 + 4 * i:02x}:00.0")
        for j in range(2):
            xml.bridge(f"0000:{0x11 + 4 * i:02x}:{j:02x}.0")
            xml.gpu(f"0000:{0x12 + 4 * i + j:02x}:00.0", f"nvml{2 * i + j}")
            xml.end()
        xml.end(2)
    xml.end(5)
    topology = hwloc_xml.read(xml.text(), "plx.xml")
    codes = codes_of(topology)
    assert {pair for pair, code in codes.items() if code == "PIX"} == {"GPU0-GPU1", "GPU2-GPU3"}
    assert set(codes.values()) == {"PIX", "PXB"}
    assert latency_us(topology, "GPU0", "GPU2") == pytest.approx(1.2)


def test_a_device_at_the_machine_of_two_nodes_has_no_known_place():
    xml = Xml()
    machine(xml, 2)
    for i in range(2):
        package(xml, i)
        xml.end()
    for i in range(2):
        xml.host_bridge()
        xml.bridge(f"0000:{i}0:01.0")
        xml.gpu(f"0000:{i}1:00.0", f"nvml{i}")
        xml.end(2)
    xml.end()
    topology = hwloc_xml.read(xml.text(), "vm.xml")
    assert codes_of(topology) == {"GPU0-GPU1": None}
    assert topology.by_id["GPU0"].numa is None
    assert topology.warnings == ("vm.xml: GPU0, GPU1: the NUMA node is not known",)
    assert latency_us(topology, "GPU0", "GPU1") > 0


def test_a_host_without_gpus_has_its_cores():
    xml = Xml()
    machine(xml, 2)
    for i in range(2):
        package(xml, i)
        xml.host_bridge()
        xml.nic(f"000{i}:01:00.0", f"eth{i}")
        xml.end(2)
    xml.end()
    topology = hwloc_xml.read(xml.text(), "cpu.xml")
    assert topology.endpoints == tuple(f"cpu{i}" for i in range(8))
    assert topology.by_id["cpu5"].numa == 1
    assert topology.by_id["cpu5"].cpu_affinity == "5"
    assert_facts(topology, {"gpus": 0, "nics": 2, "numa_nodes": 2, "net_names": ["eth0", "eth1"]})
    assert latency_us(topology, "cpu0", "cpu7") == pytest.approx(0.6)


def test_a_numa_number_twice():
    xml = Xml()
    machine(xml, 2)
    for i in range(2):
        package(xml, i, numa=0)
        xml.end()
    xml.end()
    with pytest.raises(TopologyError, match=r"x\.xml:\d+: a NUMA node of this number is there twice"):
        hwloc_xml.read(xml.text(), "x.xml")


def test_more_gpus_than_a_host_has():
    xml, _ = boxed(1)
    for i in range(300):
        xml.gpu(f"{i + 1:04x}:00:00.0")
    xml.end(2)
    with pytest.raises(TopologyError, match="301 GPUs in one host; expected at most 256"):
        hwloc_xml.read(xml.text(), "x.xml")
