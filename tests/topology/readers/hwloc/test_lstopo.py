"""Texts of lstopo: styles of several versions, places, what is damaged."""

import pytest

from tests.topology import damage
from tests.topology.dumps import each_of, expected
from tests.topology.readers.hwloc.facts import assert_facts, codes_of
from tests.topology.readers.hwloc.lstopo_texts import ARM, OLD, VERBOSE, WORKSTATION
from topocomm.errors import TopologyError
from topocomm.topology.readers.hwloc import lstopo


@each_of("lstopo-text")
def test_shared_dumps(path):
    assert_facts(lstopo.read(path.read_text(), str(path)), expected(path))


def test_workstation():
    topology = lstopo.read(WORKSTATION, "desk.txt")
    assert (topology.name, topology.source, topology.warnings) == ("desk", "lstopo", ())
    assert_facts(
        topology,
        {
            "gpus": 2,
            "nics": 1,
            "numa_nodes": 1,
            "busids": {"GPU0": "0000:09:00.0", "GPU1": "0000:0a:00.0", "enp4s0": "0000:04:00.0"},
            "numa_affinity": {"GPU0": 0, "GPU1": 0},
            "cpu_affinity": {"GPU0": "0-3"},
            "links": {"GPU0-GPU1": "PHB"},
            "net_names": ["enp4s0"],
        },
    )


def test_verbose():
    topology = lstopo.read(VERBOSE, "box.txt")
    assert_facts(
        topology,
        {
            "gpus": 2,
            "nics": 1,
            "numa_nodes": 2,
            "busids": {"GPU0": "0001:03:00.0", "GPU1": "0002:01:00.0", "mlx5_0": "0001:04:00.0"},
            "numa_affinity": {"GPU0": 0, "GPU1": 1, "mlx5_0": 0},
            "cpu_affinity": {"GPU0": "0", "GPU1": "64"},
            "links": {"GPU0-GPU1": "SYS"},
            "net_names": ["ib0"],
            "management_ports": ["eno1"],
        },
    )
    assert {(p.a, p.b): p.code for p in topology.pairs if p.b == "mlx5_0"}["GPU0", "mlx5_0"] == "PIX"
    assert topology.by_id["GPU0"].name == "NVIDIA A100 80GB PCIe"
    rates = {(link.src, link.dst): link.gb_per_s for link in topology.links}
    assert rates["GPU0", "pcie0"] == 31.51


def test_version_1():
    topology = lstopo.read(OLD, "old.txt")
    assert_facts(
        topology,
        {
            "gpus": 2,
            "nics": 1,
            "numa_nodes": 2,
            "busids": {"GPU0": None},
            "numa_affinity": {"GPU0": 0, "GPU1": 0, "mlx5_0": 1},
            "cpu_affinity": {"GPU0": "0,2", "mlx5_0": "1,3"},
            "links": {"GPU0-GPU1": "PHB"},
        },
    )


def test_one_line_of_several_devices_and_a_host_without_gpus():
    topology = lstopo.read(ARM, "arm.txt")
    assert topology.endpoints == ("cpu0", "cpu1")
    assert topology.by_id["cpu1"].cpu_affinity == "1"
    assert_facts(topology, {"gpus": 0, "nics": 2, "numa_nodes": 1})
    assert [d.bus_id for d in topology.devices if d.kind == "nic"] == ["0000:00:05.0", "0000:00:05.1"]


def test_pastes():
    plain = lstopo.read(VERBOSE, "x.txt")
    indented = "\n".join("    " + line for line in VERBOSE.splitlines())
    for text in ("$ lstopo -v\n" + VERBOSE + "$ \n", VERBOSE.replace("\n", "\r\n"), indented, "\x1b[0m" + VERBOSE):
        assert lstopo.matches(text)
        found = lstopo.read(text, "x.txt")
        assert (found.devices, found.links, found.pairs) == (plain.devices, plain.links, plain.pairs)


def test_what_is_not_lstopo():
    for text in ("<topology>", "Machine learning (ML)\n", "\tGPU0\tGPU1\nGPU0\t X \tSYS\n", "Machine (4GB)\n"):
        assert not lstopo.matches(text)


def test_cores_left_out_cost_the_cpu_lists_alone():
    text = WORKSTATION.replace("        PU L#3 (P#3)\n", "        ...\n").replace("        PU L#1 (P#2)\n", "")
    with pytest.raises(TopologyError, match=r"x\.txt:9: lines were left out"):
        lstopo.read(text, "x.txt")  # whatever stood before the host bridge
    text = WORKSTATION.replace("        PU L#1 (P#2)\n", "      ...\n")
    topology = lstopo.read(text, "x.txt")
    assert topology.by_id["GPU0"].cpu_affinity is None
    assert topology.by_id["GPU0"].numa == 0
    assert topology.warnings == ("x.txt:7: cores were left out here; no CPU lists are given",)


def test_without_pus_places_are_known_and_cpus_are_not():
    text = "\n".join(line for line in VERBOSE.splitlines() if "PU L#" not in line and "Core L#" not in line)
    topology = lstopo.read(text, "x.txt")
    assert codes_of(topology) == {"GPU0-GPU1": "SYS"}
    assert topology.by_id["GPU1"].numa == 1
    assert topology.by_id["GPU1"].cpu_affinity is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (WORKSTATION.replace("\n  ", "\n"), r"x\.txt:2: 'Package L#0' stands at the margin"),
        (WORKSTATION.replace("    PCIBridge\n      PCI 0a", "     PCIBridge\n      PCI 0a"), r"x\.txt:\d+: "),
        (WORKSTATION.replace("PCI 0a:00.0 (VGA)", "PCI (VGA)"), r"x\.txt:24: 'PCI \(VGA\)' is no object of lstopo"),
        (
            WORKSTATION.replace("    PCIBridge\n      PCI 09", "      ...\n      PCI 09"),
            r"x\.txt:27: lines were left out",
        ),
        (VERBOSE[: VERBOSE.index("  Package L#1")], r"x\.txt:1: the machine has 504 GB, the NUMA nodes shown have 252"),
        ("Machine (4GB total)\n", r"x\.txt:1: nothing below the machine"),
        ("PCI 01:00.0 (3D)\n", r"x\.txt:1: no line that starts with `Machine \(`"),
        (WORKSTATION.replace("PU L#3 (P#3)", "PU L#3 (P#99999999)"), r"x\.txt:10: PU P#99999999; expected at most"),
        (WORKSTATION.replace("          PCI 04", "          Core L#9\n          PCI 04"), "a Core below a PCIBridge"),
        (ARM.replace("2 x", "99999 x"), r"x\.txt:6: 99999 devices on one line"),
        ("Machine (1GB)\n" + "\n".join(" " * i + "PCIBridge" for i in range(1, 60)), "more than 32 bridges"),
    ],
)
def test_damage(text, message):
    with pytest.raises(TopologyError, match=message):
        lstopo.read(text, "x.txt")


@pytest.mark.soak
@pytest.mark.parametrize("line", ["PU L#1 (P#1)", "PCI 01:00.0 (Ethernet)", 'Net "x" + ' * 3, "A" * 200, "(" * 200])
def test_a_megabyte_is_read(line):
    text = WORKSTATION + f"  {line}\n" * (1_000_000 // (len(line) + 3))
    damage.attempt(lstopo, text)


@pytest.mark.soak
def test_long_lines_are_read():
    for line in ("Core L#1 + " * 90_000, "PCI " + '"' * 900_000, "a=" * 400_000, "PCI(" * 250_000):
        damage.attempt(lstopo, f"Machine (1GB)\n  {line}\n")


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


def test_a_machine_that_says_nothing_of_itself():
    text = WORKSTATION.replace("Machine (31GB total)", "Machine")
    assert lstopo.matches(text)
    assert lstopo.read(text, "desk.txt").devices == lstopo.read(WORKSTATION, "desk.txt").devices


def test_eight_cards_on_a_line_that_no_node_holds():
    first, second = HWLOC3.split("  Package L#1")
    text = f"{first.split('    HostBridge')[0]}  Package L#1{second.split('    HostBridge')[0]}"
    topology = lstopo.read(text + "  HostBridge\n    8 x { PCI 00:04.0-0b.0 (3D) }\n", "vm.txt")
    assert len([device for device in topology.devices if device.kind == "gpu"]) == 8
    assert topology.warnings == ("vm.txt: GPU0, GPU1, GPU2, GPU3 and 4 more: the NUMA node is not known",)
