"""hwloc's XML of invented machines: places, codes, links, what counts as a GPU and as a NIC."""

import pytest

from tests.topology.dumps import each_of, expected
from tests.topology.paths import latency_us
from tests.topology.readers.hwloc.facts import assert_facts, codes_of
from tests.topology.readers.hwloc.machines import Xml, machine, mask, package, two_sockets
from topocomm.topology.readers.hwloc import hwloc_xml


@each_of("hwloc-xml")
def test_shared_dumps(path):
    assert_facts(hwloc_xml.read(path.read_text(), str(path)), expected(path))


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


def test_the_numbers_of_drivers_order_gpus_not_the_file():
    xml = Xml()
    machine(xml)
    package(xml, 0)
    for i, bus in ((2, "c1"), (0, "41"), (1, "81")):
        xml.host_bridge()
        xml.gpu(f"0000:{bus}:00.0", f"rsmi{i}", kind="0380 [1002:7408]")
        xml.end()
    xml.end(2)
    topology = hwloc_xml.read(xml.text(), "amd.xml")
    assert [d.bus_id for d in topology.devices if d.kind == "gpu"] == ["0000:41:00.0", "0000:81:00.0", "0000:c1:00.0"]
    assert set(codes_of(topology).values()) == {"NODE"}


def test_a_boards_graphics_chip_is_no_gpu_and_functions_without_a_driver_are():
    xml = Xml()
    machine(xml)
    package(xml, 0)
    xml.host_bridge()
    xml.gpu("0000:03:00.0", "card0", kind="0300 [1a03:2000]")
    xml.gpu("0000:05:00.0", kind="0302 [10de:2330]")
    xml.gpu("0000:04:00.0", kind="0302 [10de:2330]")
    xml.gpu("0000:02:00.0", "renderD128", kind="0300 [8086:3e98]")
    xml.end(3)
    topology = hwloc_xml.read(xml.text(), "x.xml")
    assert [d.bus_id for d in topology.devices if d.kind == "gpu"] == ["0000:04:00.0", "0000:05:00.0"]


def test_partitions_of_one_device_are_gpus_of_their_own():
    xml = Xml()
    machine(xml)
    package(xml, 0)
    xml.host_bridge()
    xml.gpu("0000:03:00.0", "rsmi0", "rsmi1", "renderD128", "renderD129", kind="1200 [1002:74a1]")
    xml.end(3)
    topology = hwloc_xml.read(xml.text(), "x.xml")
    assert [(d.id, d.bus_id) for d in topology.devices if d.kind == "gpu"] == [
        ("GPU0", "0000:03:00.0"),
        ("GPU1", "0000:03:00.0"),
    ]


def test_version_1_with_sockets_inside_numa_nodes():
    xml = Xml(version=None)
    machine(xml, 2)
    for node, number in enumerate((1, 3)):
        cpus = mask(range(node * 4, node * 4 + 4))
        xml.begin("NUMANode", os_index=number, cpuset=cpus)
        xml.single("Socket", os_index=node, cpuset=cpus)
        xml.host_bridge()
        xml.bridge(f"0000:{node}0:01.0")
        xml.gpu(f"0000:{node}1:00.0", f"card{node + 1}", f"cuda{node}")
        xml.end(3)
    xml.end()
    topology = hwloc_xml.read(xml.text(), "old.xml")
    assert_facts(topology, {"gpus": 2, "numa_nodes": 2, "numa_affinity": {"GPU0": 1, "GPU1": 3}, "hwloc_xml": None})
    assert codes_of(topology) == {"GPU0-GPU1": "SYS"}


def test_memory_of_gpus_and_of_cxl_is_no_place():
    xml = Xml()
    machine(xml)
    xml.single("NUMANode", os_index=3, cpuset=mask(range(8)))
    for i in range(2):
        package(xml, i)
        xml.single("NUMANode", os_index=250 + i, cpuset=mask(range(4 * i, 4 * i + 4)), subtype="GPUMemory")
        xml.single("NUMANode", os_index=8 + i, cpuset=mask(range(4 * i, 4 * i + 4)))
        xml.host_bridge()
        xml.gpu(f"000{i}:01:00.0", f"nvml{i}")
        xml.end(2)
    xml.end()
    topology = hwloc_xml.read(xml.text(), "gh.xml")
    assert_facts(topology, {"numa_nodes": 2, "numa_affinity": {"GPU0": 0, "GPU1": 1}})


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


@pytest.mark.parametrize(
    ("speeds", "kept"),
    [((15.75, 0.25), ["fast"]), ((0.25,), ["slow"]), ((15.75, 2.0), ["fast", "slow"])],
)
def test_slow_ports_are_for_management_where_there_are_fast_ones(speeds, kept):
    xml = Xml()
    machine(xml)
    package(xml, 0)
    xml.host_bridge()
    names = ["fast", "slow"] if len(speeds) == 2 else ["slow"]
    for i, (name, speed) in enumerate(zip(names, speeds, strict=True)):
        xml.nic(f"0000:0{i}:00.0", name, speed=speed)
    xml.end(3)
    topology = hwloc_xml.read(xml.text(), "x.xml")
    assert [d.id for d in topology.devices if d.kind == "nic"] == kept


def test_junk_around_the_document_is_passed_over_and_lines_keep_their_numbers():
    text = "$ lstopo --of xml -\n" + two_sockets().text() + "$ \n"
    assert len(hwloc_xml.read(text, "x.xml").endpoints) == 4
    assert hwloc_xml.matches(text)
    assert not hwloc_xml.matches('<system version="1"><cpu numaid="0"/></system>')
