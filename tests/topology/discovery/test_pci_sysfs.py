import pytest

from tests.topology.pci_trees import (
    AMD,
    ASPEED,
    BRIDGE,
    GPU,
    INFINIBAND,
    MELLANOX,
    NVIDIA,
    VGA,
    add,
    add_nodes,
    link,
)
from topocomm.errors import TopologyError
from topocomm.topology.discovery.gpu_host import GpuFacts, gpu_host, pci_gpus
from topocomm.topology.discovery.pci_sysfs import PciBus, short_bus_id


def host_of(root):
    bus = PciBus(root)
    found = GpuFacts("sysfs", pci_gpus(bus, [gpu.bus_id for gpu in bus.gpus()], "node"))
    return gpu_host(found, bus, root, "node")


def codes(topology):
    return {(pair.a, pair.b): pair.code for pair in topology.pairs}


def rates(topology):
    return {(one.src, one.dst): one.gb_per_s for one in topology.links}


def test_lanes_that_are_lost_count(tmp_path):
    add_nodes(tmp_path, {0: "0-7"})
    add(tmp_path, "pci0000:00/0000:00:01.0", BRIDGE, "0x8086", **link("8.0", 16))
    add(tmp_path, "pci0000:00/0000:00:01.0/0000:01:00.0", GPU, NVIDIA, **link("2.5", 8, "16.0", 16))
    add(tmp_path, "pci0000:00/0000:00:02.0/0000:02:00.0", GPU, NVIDIA, **link("2.5", 16, "16.0", 16))
    bus = PciBus(tmp_path)
    assert bus.gb_per_s("0000:01:00.0") == 8.0  # a Gen4 card on 8 lanes of a Gen3 port
    assert bus.gb_per_s("0000:02:00.0") == 32.0
    assert bus.link_facts("0000:01:00.0") == {"speed_gts": 2.5, "width": 8, "max_speed_gts": 8.0, "max_width": 16}


@pytest.mark.parametrize(
    "told", [{"current_link_speed": "Unknown", "current_link_width": 0, "max_link_width": 255}, {}]
)
def test_links_that_a_virtual_machine_makes_up_are_not_known(tmp_path, told):
    add_nodes(tmp_path, {0: "0-7"})
    add(tmp_path, "pci0000:00/0000:00:05.0", GPU, NVIDIA, **told)
    bus = PciBus(tmp_path)
    assert bus.gb_per_s("0000:00:05.0") is None
    assert bus.link_facts("0000:00:05.0") == {}
    topology = host_of(tmp_path)
    assert topology.by_id["GPU0"].numa == 0  # the only node that there is
    assert "pcie" not in topology.facts


def test_displays_that_are_no_gpus_are_left_out(tmp_path):
    add(tmp_path, "pci0000:00/0000:00:01.0", VGA, ASPEED)
    add(tmp_path, "pci0000:00/0000:00:02.0", GPU, NVIDIA)
    add(tmp_path, "pci0000:00/0000:00:03.0", INFINIBAND, MELLANOX)
    add(tmp_path, "pci0000:00/0000:00:04.0", "0x120000", AMD)
    (tmp_path / "bus/pci/devices/not-a-device").mkdir()
    assert [gpu.gpu_vendor for gpu in PciBus(tmp_path).gpus()] == ["NVIDIA", "AMD"]


def test_no_pci_bus_at_all(tmp_path):
    bus = PciBus(tmp_path)
    assert bus.devices == {}
    assert bus.path("0000:00:00.0") == ()
    assert bus.gb_per_s(None) is None
    with pytest.raises(TopologyError, match="sysfs shows no GPU"):
        pci_gpus(bus, [], "node")


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("00010000:02:00.0", "10000:02:00.0"),
        ("0001:00:00.0", "0001:00:00.0"),
        ("N/A", "n/a"),
    ],
)
def test_addresses_as_sysfs_writes_them(text, short):
    assert short_bus_id(text) == short
