"""System trees, path matrices and searches: devices, links, pairs and figures."""

import pytest

from tests.topology.readers.nccl.log.logs import (
    DIRECT,
    SWITCHED,
    by,
    codes,
    links,
    read,
)


def test_a_machine_with_direct_links_in_the_old_style():
    topology = read(by(0, DIRECT))
    assert topology.warnings == ()
    assert codes(topology) == {"GPU0-GPU1": "NVL", "GPU0-GPU2": "NVL", "GPU1-GPU2": "SYS"}
    found = links(topology)
    assert found["GPU0", "GPU2"] == found["GPU2", "GPU0"] == ("nvlink", 22.0)
    assert found["GPU0", "numa0"] == ("pcie", 12.0)
    assert topology.facts["rank_busid"] == {"0": "1A000", "1": "1B000", "2": "3D000"}
    assert topology.facts["nvlink_bw"] == {"GPU0": 66.0, "GPU1": 44.0, "GPU2": 22.0}


V25 = """=== System : maxWidth 21 maxSpeed 21 ===
CPU/0
+ PCI[12] - PCI/1000
          + PCI[12] - GPU/3000 (0)
                    + NVL[21] - GPU/83000
          + PCI[12] - GPU/4000 (1)
+ QPI[ 8] - CPU/1
CPU/1
+ PCI[12] - GPU/83000 (2)
          + NVL[21] - GPU/3000
+ PCI[ 6] - NIC/84000
          + NET[ 6] - NET/0 (0)
+ QPI[ 8] - CPU/0
==========================================
GPU/3000 :GPU/3000 (0/5000/0) GPU/4000 (2/12/2) GPU/83000 (1/21/1) CPU/0 (2/12/3) CPU/1 (2/12/3) NET/0 (4/6/3)
Pattern 4, crossNic 0, nChannels 1, speed 12/12, nvlink 0, type 3, sameChannels 1
 0 : GPU/0 GPU/1 GPU/2
comm 0x7f0000000000 rank 0 nranks 3 cudaDev 0 busId 3000 - Init COMPLETE
"""


def test_the_system_of_version_2_5():
    topology = read(by(0, V25))
    assert topology.warnings == ()
    assert codes(topology) == {
        "GPU0-GPU1": "PIX",
        "GPU0-GPU2": "NVL",
        "GPU1-GPU2": "SYS",
        "GPU0-NET0": "SYS",
        "GPU1-NET0": "SYS",
        "GPU2-NET0": "PHB",
    }
    found = links(topology)
    assert found["numa0", "numa1"] == found["numa1", "numa0"] == ("smp", 8.0)
    assert found["GPU0", "GPU2"] == ("nvlink", 21.0)
    assert found["NET0", "numa1"] == ("pcie", 6.0)
    facts = topology.facts
    assert (facts["max_bw"], "total_bw" in facts, facts["sys_bw"]) == (21.0, False, 8.0)
    [graph] = facts["graphs"]
    assert (graph["channels"], "typeintra" in graph) == ([[0, 1, 2]], False)


def test_the_title_of_version_2_6_has_no_total():
    now, then = read(by(0, DIRECT)), read(by(0, DIRECT.replace(" totalWidth 88.0", "")))
    assert (then.devices, then.links, then.pairs) == (now.devices, now.links, now.pairs)
    assert {key: value for key, value in now.facts.items() if key != "total_bw"} == then.facts


@pytest.mark.parametrize("text", [SWITCHED, DIRECT])
def test_lost_indentation_gives_no_links(text):
    flat = "".join(line.lstrip() + "\n" for line in text.splitlines())
    topology = read(by(0, flat))
    assert topology.links == ()
    assert "its indentation does not say what hangs on what" in topology.warnings[0]
    gpus = {d.id: d.numa for d in topology.devices if d.kind == "gpu"}
    assert gpus == {d.id: d.numa for d in read(by(0, text)).devices if d.kind == "gpu"}


@pytest.mark.parametrize(
    ("word", "other"), [("NET/0-0", "CPU/0-0"), ("GPU/0-3000", "NET/0-3"), ("NIC/0-4000", "NET/0-7")]
)
def test_a_line_that_names_a_device_of_another_kind_gives_no_links(word, other):
    """Found by damage at random: `NET[25.0] - CPU/0-0` made a NUMA node a network card."""
    assert word in SWITCHED
    topology = read(by(0, SWITCHED.replace(f" - {word}", f" - {other}", 1)))
    assert topology.links == ()


def test_a_lost_cpu_line_leaves_numa_unknown():
    topology = read(by(0, SWITCHED.replace("CPU/0-3 (1/2/-1)\n", "")))
    assert {d.numa for d in topology.devices} == {None}
    assert topology.links == ()
    assert "lines of it are lost or cut" in topology.warnings[0]
