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


@pytest.mark.alone
@pytest.mark.parametrize("line", ["PU L#1 (P#1)", "PCI 01:00.0 (Ethernet)", 'Net "x" + ' * 3, "A" * 200, "(" * 200])
def test_a_megabyte_is_read(line):
    text = WORKSTATION + f"  {line}\n" * (1_000_000 // (len(line) + 3))
    damage.attempt(lstopo, text)


@pytest.mark.alone
def test_long_lines_are_read():
    for line in ("Core L#1 + " * 90_000, "PCI " + '"' * 900_000, "a=" * 400_000, "PCI(" * 250_000):
        damage.attempt(lstopo, f"Machine (1GB)\n  {line}\n")


def test_mutations_give_no_other_exception():
    other = damage.of_a_line(damage.put('0123456789(#"):+{}xP '))
    changes = [damage.swap_lines, damage.cut_line, damage.indent_line, other, damage.double_line]
    damage.attempts(lstopo, [WORKSTATION, VERBOSE, OLD, ARM], changes, seed=11, times=3000)
