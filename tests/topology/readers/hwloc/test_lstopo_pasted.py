"""Texts of lstopo as they are pasted, and the notation of hwloc 3."""

import pytest

from tests.topology.readers.hwloc.lstopo_texts import WORKSTATION
from tests.topology.ways_to_paste import WAYS, assert_lines_stay, assert_survives, read_file
from topocomm.topology.readers.hwloc import lstopo

HWLOC3 = """\
Machine (P#0 total=65838016KiB OSName=Linux hwlocVersion=3.0.0)
  Package L#0 (P#0 CPUVendor=GenuineIntel)
    NUMANode L#0 (P#0 local=32919008KiB total=32919008KiB)
    Core L#0 (P#0)
      PU L#0 (P#0)
    HostBridge L#0 (buses=0000:[00-04])
      PCIBridge L#1 (busid=0000:00:01.0 id=8086:2030 class=0604(PCIBridge) link=15.75GB/s buses=0000:[02-02])
        PCI L#0 (busid=0000:02:00.0 id=10de:20b0 class=0302(3D) link=15.75GB/s)
          OSDev[Co-Processor](CUDA) L#0 (Backend=CUDA GPUVendor="NVIDIA Corporation") "cuda0"
          OSDev[GPU](NVML) L#1 (Backend=NVML) "nvml0"
      PCIBridge L#2 (busid=0000:00:02.0 id=8086:2031 class=0604(PCIBridge) buses=0000:[03-03])
        PCI L#1 (busid=0000:03:00.0 id=8086:1521 class=0200(Ethernet))
          OSDev[Network] L#2 (Address=00:00:5e:00:53:01) "eth0"
        PCI L#2 (busid=0000:03:00.1 id=8086:0a54 class=0108(NVMExp))
          OSDev[Storage](SSD) L#3 (Size=488386584KiB SectorSize=512) "nvme0n1"
  Package L#1 (P#1 CPUVendor=GenuineIntel)
    NUMANode L#1 (P#1 local=32919008KiB total=32919008KiB)
    Core L#1 (P#0)
      PU L#1 (P#1)
    HostBridge L#3 (buses=0000:[80-81])
      PCIBridge L#4 (busid=0000:80:01.0 id=8086:2030 class=0604(PCIBridge) buses=0000:[81-81])
        PCI L#3 (busid=0000:81:00.0 id=15b3:1019 class=0207(InfiniBand))
          OSDev[OpenFabrics,Network] L#4 (NodeGUID=0000:5e00:5300:0001 Port1State=4) "mlx5_0"
"""


def test_types_in_brackets():
    topology = lstopo.read(HWLOC3, "box.txt")
    assert topology.warnings == ()
    assert [(d.id, d.numa, d.bus_id) for d in topology.devices if d.kind in ("gpu", "nic")] == [
        ("GPU0", 0, "0000:02:00.0"),
        ("mlx5_0", 1, "0000:81:00.0"),
    ]
    assert {(p.a, p.b, p.code) for p in topology.pairs} == {("GPU0", "mlx5_0", "SYS")}
    assert topology.facts["management_ports"] == ["eth0"]


def test_a_short_type_in_brackets_is_a_network_too():
    topology = lstopo.read(WORKSTATION.replace('Net "enp4s0"', 'OS[Net] L#1 "enp4s0"'), "desk.txt")
    assert topology.devices == lstopo.read(WORKSTATION, "desk.txt").devices


def test_a_machine_that_says_nothing_of_itself(tmp_path):
    text = WORKSTATION.replace("Machine (31GB total)", "Machine")
    assert read_file(text, tmp_path).devices == read_file(WORKSTATION, tmp_path).devices


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", [WORKSTATION, HWLOC3])
def test_ways_to_paste(text, way, tmp_path):
    assert_survives(text, tmp_path, way)


def test_lines_keep_their_numbers():
    assert_lines_stay(WORKSTATION)


def test_eight_cards_on_a_line_that_no_node_holds():
    first, second = HWLOC3.split("  Package L#1")
    text = f"{first.split('    HostBridge')[0]}  Package L#1{second.split('    HostBridge')[0]}"
    topology = lstopo.read(text + "  HostBridge\n    8 x { PCI 00:04.0-0b.0 (3D) }\n", "vm.txt")
    assert len([device for device in topology.devices if device.kind == "gpu"]) == 8
    assert topology.warnings == ("vm.txt: GPU0, GPU1, GPU2, GPU3 and 4 more: the NUMA node is not known",)
