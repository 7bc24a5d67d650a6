"""Topologies that the formats are tried on."""

from topocomm.topology.catalog.systems import catalog
from topocomm.topology.links import both_ways
from topocomm.topology.merge.cluster import merge_hosts
from topocomm.topology.model import Device, Pair, Topology

SHOWN = [("dgx-h100", 2), ("dgx-1-v100", 1), ("rtx4090-pcie-8", 1), ("mi300x-8", 1)]
"""Catalogue systems that people are shown, with how many hosts."""


def shown():
    return [catalog(name, hosts=hosts) for name, hosts in SHOWN]


def two_gpus(*, numa=(0, 1), nic="mlx5_0", cpus=("0-3", "4-7"), code="SYS"):
    """Two GPUs and a NIC near the first, known by pair codes alone."""
    devices = [Device(f"GPU{i}", "gpu", numa=numa[i], cpu_affinity=cpus[i]) for i in range(2)]
    pairs = (Pair("GPU0", "GPU1", code), Pair("GPU0", "NIC0", "PIX"), Pair("GPU1", "NIC0", "SYS"))
    return Topology("pair", "by hand", (*devices, Device("NIC0", "nic", name=nic)), (), pairs)


def linked_pair(**figures):
    """Two GPUs with one NVLink, on one PCIe switch with a NIC of a dangerous name."""
    devices = (
        Device("GPU0", "gpu", name='A <b> & "c"', bus_id="0000:07:00.0"),
        Device("GPU1", "gpu"),
        Device("NIC0", "nic", name="mlx5_0"),
        Device("pcie0", "switch", name="PCIe switch"),
    )
    links = both_ways("GPU0", "GPU1", "nvlink", **figures)
    for end in ("GPU0", "GPU1", "NIC0"):
        links += both_ways(end, "pcie0", "pcie4")
    return Topology('<script>"x"</script> & co', "by hand", devices, links, warnings=("a <b>warning</b>",))


def mixed_cluster():
    return merge_hosts([catalog("dgx-1-v100"), catalog("rtx4090-pcie-4")])
