"""Places of hwloc's objects: CPU sets, NUMA nodes, bridges."""

from itertools import pairwise

import pytest

from tests.topology.readers.hwloc.facts import assert_facts, codes_of
from tests.topology.readers.hwloc.machines import Xml, machine, mask, package
from topocomm.topology.readers.hwloc import hwloc_xml
from topocomm.topology.readers.hwloc.hwloc_objects import MAX_MASK_CHARS, HwlocObject, bit_mask, bridges_above, home


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("0x0", 0),
        ("0x00000303,,0x1", 0x303 << 64 | 1),
        ("0x1,00000000", 1 << 32),
        ("", None),
        ("0x123456789", None),
        ("all", None),
        ("0x1," * MAX_MASK_CHARS, None),
    ],
)
def test_bit_mask(text, bits):
    assert bit_mask(text) == bits


def chain(*types):
    """Objects one below another; the last one."""
    below = [HwlocObject(kind, line) for line, kind in enumerate(types)]
    for parent, child in pairwise(below):
        parent.add(child)
    return below[-1]


def test_bridges_above_a_device():
    device = chain("Machine", "Package", "HostBridge", "PCIBridge", "PCIDev", "OSDev")
    assert [b.type for b in bridges_above(device.parent)] == ["HostBridge", "PCIBridge"]
    assert home(device).type == "Package"
    assert bridges_above(chain("Machine", "PCIBridge", "PCIDev")) == []  # the host bridge was left out


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
