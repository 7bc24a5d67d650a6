"""Damaged XML of hwloc: an error that names the line, never another exception, never a hang."""

import pytest

from tests.topology import damage
from tests.topology.dumps import each_of, expected
from tests.topology.readers.hwloc.facts import assert_facts
from tests.topology.readers.hwloc.machines import Xml, machine, two_sockets
from tests.topology.readers.hwloc.test_hwloc_links import boxed, square
from topocomm.errors import TopologyError
from topocomm.topology.readers.hwloc import hwloc_xml


def full():
    xml, gpus = boxed(3)
    xml.end(2)
    xml.matrix("NVLinkBandwidth", gpus, square(3, {(0, 1): 50000}))
    return xml.text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("</topology>", "", r"box\.xml:\d+: not XML"),
        ('type="Machine"', 'type="Core"', r"box\.xml:4: the first object is a Core"),
        ('type="Package"', 'kind="Package"', r"box\.xml:5: an <object> without a type"),
        ("0000:10:00.0", "0000:10.0", r"pci_busid '0000:10\.0'; expected an address"),
        ("0302 [10de:1db1] [10de:0000]", "0302", r"pci_type '0302 .*'; expected a class"),
        ('pci_link_speed="15.753846"', 'pci_link_speed="fast"', r"pci_link_speed 'fast'; expected GB/s"),
        ('cpuset="0x0000000f"', 'cpuset="all"', r"cpuset 'all'; expected 32-bit words"),
        ('os_index="0"', 'os_index="zero"', r"os_index 'zero'; expected a number"),
        ("1000000 50000 0 ", "1000000 50000 ", r"has 3 indexes and 8 values; it is cut"),
        ("50000", "fifty", r"value 'fifty'; expected a number"),
        ('nbobjs="3"', 'nbobjs="4"', r"of 4 objects has 3 indexes"),
        ("<topology", "<topologies", r"expected <topology>|not XML"),
        ('type="NUMANode"', 'type="NUMANode" cpuset="0x1"', r"not XML: duplicate attribute"),
    ],
)
def test_message(old, new, message):
    text = full()
    assert old in text
    with pytest.raises(TopologyError, match=message):
        hwloc_xml.read(text.replace(old, new, 1), "box.xml")


def test_bridges_above_one_another():
    xml = Xml()
    machine(xml)
    for _ in range(40):
        xml.bridge("0000:00:01.0")
    xml.end(41)
    with pytest.raises(TopologyError, match="more than 32 bridges above one another"):
        hwloc_xml.read(xml.text(), "x.xml")


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["cores", "devices", "partitions", "matrix", "words"])
def test_a_megabyte_is_read(kind):
    xml = Xml()
    machine(xml)
    if kind == "partitions":
        xml.gpu("0000:01:00.0", *(f"rsmi{i}" for i in range(6000)))
    for i in range(5000):
        if kind == "cores":
            xml.single("Core", os_index=i, cpuset="0x" + "f" * 8 + ",0x55555555" * 8)
        elif kind == "devices":
            xml.nic(f"{i:04x}:01:00.0", f"eth{i}", f"mlx5_{i}")
    xml.end()
    if kind == "matrix":
        xml.matrix("NVLinkBandwidth", range(400), [25000] * 160000)
    if kind == "words":
        xml.lines.append("<u64values>" * 100 + "<!--" * 50000)
    damage.attempt(hwloc_xml, xml.text())


@each_of("hwloc-xml")
def test_shared_dumps(path):
    assert_facts(hwloc_xml.read(path.read_text(), str(path)), expected(path))


def test_junk_around_the_document_is_passed_over_and_lines_keep_their_numbers():
    text = "$ lstopo --of xml -\n" + two_sockets().text() + "$ \n"
    assert len(hwloc_xml.read(text, "x.xml").endpoints) == 4
    assert hwloc_xml.matches(text)
    assert not hwloc_xml.matches('<system version="1"><cpu numaid="0"/></system>')
