"""A host with GPUs, put together from sysfs and what a library says."""

import pytest

from tests.topology.pci_trees import (
    AMD,
    GPU,
    INFINIBAND,
    NVIDIA,
    add,
    add_nodes,
    add_port,
    four_gpus,
)
from topocomm.errors import TopologyError
from topocomm.topology.discovery.gpu_host import GpuFacts, gpu_host, pci_gpus
from topocomm.topology.discovery.pci_sysfs import PciBus
from topocomm.topology.model import Device


def host_of(root):
    bus = PciBus(root)
    found = GpuFacts("sysfs", pci_gpus(bus, [gpu.bus_id for gpu in bus.gpus()], "node"))
    return gpu_host(found, bus, root, "node")


def codes(topology):
    return {(pair.a, pair.b): pair.code for pair in topology.pairs}


def rates(topology):
    return {(one.src, one.dst): one.gb_per_s for one in topology.links}


def test_gpus_and_nics_with_their_places(tmp_path):
    four_gpus(tmp_path)
    topology = host_of(tmp_path)
    assert topology.endpoints == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert [topology.by_id[end].bus_id for end in topology.endpoints] == [
        "0000:17:00.0",
        "0000:18:00.0",
        "0000:b7:00.0",
        "0000:b8:00.0",
    ]
    assert [topology.by_id[end].numa for end in topology.endpoints] == [0, 0, 1, 1]
    assert [topology.by_id[end].cpu_affinity for end in topology.endpoints] == ["0-7", "0-7", "8-15", "8-15"]
    nic = topology.by_id["mlx5_1"]
    assert (nic.kind, nic.numa, nic.bus_id, nic.host) == ("nic", 1, "0000:b9:00.0", "node")
    assert codes(topology) == {
        ("GPU0", "GPU1"): "PIX",
        ("GPU0", "GPU2"): "SYS",
        ("GPU0", "GPU3"): "SYS",
        ("GPU1", "GPU2"): "SYS",
        ("GPU1", "GPU3"): "SYS",
        ("GPU2", "GPU3"): "PIX",
        ("GPU0", "mlx5_0"): "PIX",
        ("GPU0", "mlx5_1"): "SYS",
        ("GPU1", "mlx5_0"): "PIX",
        ("GPU1", "mlx5_1"): "SYS",
        ("GPU2", "mlx5_0"): "SYS",
        ("GPU2", "mlx5_1"): "PIX",
        ("GPU3", "mlx5_0"): "SYS",
        ("GPU3", "mlx5_1"): "PIX",
    }
    assert topology.warnings == ()


def test_an_idle_gpu_counts_with_what_card_and_port_can_do(tmp_path):
    four_gpus(tmp_path)
    topology = host_of(tmp_path)
    (switch,) = [d.id for d in topology.devices if d.bus_id == "0000:15:00.0"]
    assert rates(topology)["GPU0", switch] == 32.0
    assert rates(topology)["mlx5_0", switch] == 32.0
    assert rates(topology)[switch, "numa0"] == 32.0


def test_what_slots_do_and_could_do_is_kept_by_address(tmp_path):
    four_gpus(tmp_path)
    facts = host_of(tmp_path).facts
    assert facts["pcie"]["0000:17:00.0"] == {"speed_gts": 2.5, "width": 16, "max_speed_gts": 16.0, "max_width": 16}
    assert facts["pcie"]["0000:b9:00.0"] == {"speed_gts": 16.0, "width": 16, "max_speed_gts": 16.0, "max_width": 16}
    assert facts["port_gb_per_s"] == {"mlx5_0": 25.0, "mlx5_1": 25.0}


def test_several_nodes_and_a_device_that_names_none(tmp_path):
    add_nodes(tmp_path, {0: "0-7", 1: "8-15"})
    add(tmp_path, "pci0000:00/0000:00:05.0", GPU, NVIDIA)
    add(tmp_path, "pci0001:00/0001:00:05.0", GPU, NVIDIA)
    topology = host_of(tmp_path)
    assert [topology.by_id[end].numa for end in topology.endpoints] == [None, None]
    assert codes(topology) == {("GPU0", "GPU1"): None}
    assert topology.warnings == ("NUMA node of GPU0, GPU1 not known: a virtual machine may hide it",)
    assert {end for one in topology.links for end in (one.src, one.dst)} >= {"GPU0", "GPU1"}


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ("pci0000:00/0000:00:01.0/0000:01:00.1", "PIX"),  # the other function of the card
        ("pci0000:00/0000:00:02.0/0000:02:00.0", "PHB"),
        ("pci0000:40/0000:40:01.0/0000:41:00.0", "NODE"),
    ],
)
def test_codes_by_what_two_devices_share(tmp_path, other, code):
    add_nodes(tmp_path, {0: "0-7", 1: "8-15"})
    for path in ("pci0000:00/0000:00:01.0/0000:01:00.0", other):
        folder = add(tmp_path, path, INFINIBAND if path == other else GPU, NVIDIA, numa_node=1)
        if path == other:
            add_port(tmp_path, folder, "mlx5_0")
    assert codes(host_of(tmp_path)) == {("GPU0", "mlx5_0"): code}


def test_further_switches_are_pxb(tmp_path):
    add_nodes(tmp_path, {0: "0-7", 1: "8-15"})
    top = "pci0000:00/0000:00:01.0/0000:01:00.0"
    for leaf, low in (("0000:02:00.0", "0000:03:00.0/0000:04:00.0/0000:05:00.0"), ("0000:02:01.0", "0000:06:00.0")):
        add(tmp_path, f"{top}/{leaf}/{low}", GPU, AMD, numa_node=0)
    assert codes(host_of(tmp_path)) == {("GPU0", "GPU1"): "PXB"}


def test_gpus_that_sysfs_does_not_show_are_placed_by_the_codes_of_the_source(tmp_path):
    gpus = tuple(Device(f"GPU{i}", "gpu", "node", numa=i // 2, bus_id=f"0000:0{i}:00.0") for i in range(4))
    codes_ = {("GPU0", "GPU1"): "PIX", ("GPU2", "GPU3"): "NODE", ("GPU0", "GPU2"): "SYS"}
    topology = gpu_host(GpuFacts("NVML", gpus, codes=codes_), PciBus(tmp_path), tmp_path, "node")
    assert codes(topology)["GPU0", "GPU1"] == "PIX"
    assert codes(topology)["GPU1", "GPU3"] == "SYS"  # their NUMA numbers differ
    assert {d.id for d in topology.devices if d.kind == "numa"} == {"numa0", "numa1"}
    assert topology.warnings == (
        "sysfs does not show the PCI place of GPU0, GPU1, GPU2, GPU3: a container or another system",
    )


def test_more_gpus_than_any_host_has_are_refused(tmp_path):
    gpus = tuple(Device(f"GPU{i}", "gpu", "node") for i in range(300))
    with pytest.raises(TopologyError, match="300 GPUs in one host"):
        gpu_host(GpuFacts("NVML", gpus), PciBus(tmp_path), tmp_path, "node")
