"""Which of hwloc's devices are GPUs and NICs, their order and their names."""

import pytest

from tests.topology.readers.hwloc.facts import codes_of
from tests.topology.readers.hwloc.machines import Xml, machine, package
from topocomm.topology.readers.hwloc import hwloc_xml
from topocomm.topology.readers.hwloc.hwloc_devices import family, number


@pytest.mark.parametrize(
    ("name", "driver", "numbers"),
    [
        ("cuda0", "cuda", (0,)),
        ("opencl0d3", "opencl", (0, 3)),
        ("ze0.1", "ze", (0, 1)),
        ("renderD128", "renderD", (128,)),
    ],
)
def test_names_of_drivers(name, driver, numbers):
    assert (family(name), number(name)) == (driver, numbers)


def test_other_names_are_of_no_driver():
    assert [family(name) for name in ("eth0", "cuda", "card1", None)] == [None] * 4
    assert number("eth0") == ()


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


def test_names_that_devices_of_ours_have_are_not_taken():
    xml = Xml()
    machine(xml)
    package(xml, 0)
    xml.host_bridge()
    for i, name in enumerate(("GPU0", "numa0", "eth0", "eth0")):
        xml.nic(f"0000:0{i}:00.0", name)
    xml.gpu("0000:08:00.0", "cuda0")
    xml.end(3)
    found = [d.id for d in hwloc_xml.read(xml.text(), "x.xml").devices if d.kind == "nic"]
    assert found == ["0000:00:00.0", "0000:01:00.0", "eth0", "0000:03:00.0"]
