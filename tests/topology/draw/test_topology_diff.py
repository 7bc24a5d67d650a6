from dataclasses import replace

import pytest

from tests.topology.draw.machines import two_gpus
from topocomm.topology.catalog.systems import SYSTEMS, catalog
from topocomm.topology.draw.topology_diff import render
from topocomm.topology.merge.cluster import prefixed
from topocomm.topology.model import Device, Link, Topology

NAMES = ("one", "other")


def differences(first, second):
    """The lines below the two that name the topologies."""
    return render(first, second, names=NAMES).splitlines()[3:]


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_same_has_no_difference(name):
    assert differences(catalog(name, hosts=2), catalog(name, hosts=2)) == ["No difference in devices, pairs and links."]


def test_the_head_says_what_is_compared():
    head = render(catalog("dgx-a100"), two_gpus(), names=NAMES).splitlines()
    assert head[0] == ("one: dgx-a100 (catalogue): 8 GPUs, 8 NICs, 2 NUMA nodes, 1 NVSwitch; GPU pairs: 28 NV12")
    assert head[1] == "other: pair (by hand): 2 GPUs, 1 NIC, 2 NUMA nodes; GPU pairs: 1 SYS"
    assert head[2] == ""


def test_what_one_lacks_and_what_changed():
    lines = differences(two_gpus(), two_gpus(numa=(0, None), cpus=("0-3", "8-9"), nic="mlx5_7", code="NV4"))
    assert lines == [
        "Devices",
        "  NUMA node 1 -> not known: GPU1",
        "  CPUs 4-7 -> 8-9: GPU1",
        "  name mlx5_0 -> mlx5_7: NIC0",
        "Pairs",
        "  code SYS -> NV4: GPU0-GPU1",
        "No difference in links.",
    ]


def test_missing_devices_and_links_are_named_by_side():
    full = catalog("dgx-h100")
    part = replace(
        full,
        devices=tuple(d for d in full.devices if d.id not in ("GPU6", "GPU7")),
        links=tuple(link for link in full.links if not {"GPU6", "GPU7"} & set(link[:2])),
        pairs=tuple(pair for pair in full.pairs if not {"GPU6", "GPU7"} & set(pair[:2])),
    )
    text = "\n".join(differences(full, part))
    assert "  only in one: GPU6-7\n" in text
    assert "only in other" not in text
    assert "  only in one: nvlink GPU6-nvswitch0, nvlink GPU7-nvswitch0" in text
    assert "only in other: GPU6-7" in "\n".join(differences(part, full))


def test_links_that_differ_alike_are_one_line():
    a, b = catalog("dgx-h100"), catalog("dgx-b200")
    lines = differences(a, b)
    assert any(
        line.startswith("  GB/s 450 -> 900: nvlink GPU0-nvswitch0, ") and line.count("nvlink") == 8 for line in lines
    )
    assert not any(line.startswith("  lanes") for line in lines)


def test_directions_and_unknown_figures():
    def pair(there, back):
        links = (Link("GPU0", "GPU1", "pcie", 1, there), Link("GPU1", "GPU0", "pcie", 1, back))
        return Topology("x", "by hand", (Device("GPU0", "gpu"), Device("GPU1", "gpu")), links)

    assert "  GB/s 32 -> 32/16: pcie GPU0-GPU1" in differences(pair(32.0, 32.0), pair(32.0, 16.0))
    assert "  GB/s 32/16 -> 16/32: pcie GPU0-GPU1" in differences(pair(32.0, 16.0), pair(16.0, 32.0))
    turned = replace(pair(32.0, 16.0), links=pair(32.0, 16.0).links[::-1])
    assert differences(pair(32.0, 16.0), turned) == ["No difference in devices, pairs and links."]
    assert "  GB/s 32 -> not known: pcie GPU0-GPU1" in differences(pair(32.0, 32.0), pair(None, None))


def test_one_host_is_compared_with_one_whatever_they_are_called():
    renamed = prefixed(catalog("dgx-h100"), "node7")
    assert differences(catalog("dgx-h100"), renamed) == ["No difference in devices, pairs and links."]
    text = "\n".join(differences(catalog("dgx-h100"), catalog("dgx-h100", hosts=2)))
    assert "only in other: h0/GPU0-7, h0/NIC0-7, h0/nvswitch0, h1/GPU0-7" in text


def test_many_differences_are_counted():
    devices = tuple(Device(f"GPU{i}", "gpu", numa=i) for i in range(60))
    plain = tuple(d._replace(numa=None) for d in devices)
    lines = differences(Topology("x", "", devices, ()), Topology("x", "", plain, ()))
    assert "  and 20 more differences" in lines
    lines = differences(Topology("x", "", devices, ()), Topology("x", "", devices[:1], ()))
    assert lines[1] == "  only in one: GPU1-59"
