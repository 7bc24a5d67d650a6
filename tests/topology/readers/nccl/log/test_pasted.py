"""Logs as they are pasted: notations of all versions, long rings, wrapped lines, what launchers add."""

import pytest

from tests.topology.readers.nccl.log.logs import DIRECT, by, chain, read, rings
from tests.topology.readers.nccl.log.test_nccl_log_system import codes, links
from tests.topology.ways_to_paste import WAYS, assert_survives

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


def log(ranks, **more):
    return "".join(by(rank, text) for rank, text in rings(ranks, **more).items())


def orders(count, title="Channel 00/01", end=""):
    return f"{title} :" + "".join(f"{rank:4}" for rank in range(count)) + end


def comm(rank, ranks, pointer="0x7f0000000000"):
    return f"comm {pointer} rank {rank} nranks {ranks} cudaDev {rank} busId {rank + 1}000 - Init START"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", [log(3), by(0, DIRECT)], ids=["rings", "system"])
def test_ways_to_paste(text, way, tmp_path):
    assert_survives(text, tmp_path, way)


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


def test_rings_of_version_2_3():
    text = by(0, "Ring 00 :    0   2   1\nRing 01 :    0   1   2\nRing 00 : 0[0] -> 2[2] via P2P/IPC")
    text += by(1, "Ring 00 : 1 -> 0 via P2P/common device") + by(2, "Ring 00 : 2[2] -> 1[1] via direct shared memory")
    facts = read(text).facts
    assert facts["rings"] == {"0": [0, 2, 1], "1": [0, 1, 2]}
    assert facts["transports"] == ["P2P/IPC", "P2P/common device", "direct shared memory"]


def test_twenty_ranks_may_be_the_beginning_of_more():
    topology = read(by(0, orders(20)))
    assert [device.id for device in topology.devices] == ["GPU0"]
    assert "rings" not in topology.facts
    assert topology.warnings == ("job.log:1: the order of ring 0 is not whole; not used",)


@pytest.mark.parametrize("more", ["Ring 00 : 19 -> 0 -> 1", comm(0, 20)])
def test_twenty_ranks_that_are_all(more):
    topology = read(by(0, f"{orders(20)}\n{more}"))
    assert topology.facts["rings"] == {"0": list(range(20))}
    assert topology.facts["ranks"] == 20


def test_a_ring_that_goes_on_after_twenty_ranks():
    topology = read(by(0, f"{orders(20)}\nRing 00 : 23 -> 0 -> 1"))
    assert "rings" not in topology.facts


def test_dots_for_the_rest_of_a_ring():
    topology = read(by(0, f"{comm(0, 64)}\n{orders(40, end=' 4...')}"))
    assert "rings" not in topology.facts
    assert topology.warnings[0] == "job.log:2: the order of ring 0 is not whole; not used"


def test_a_ring_written_out_is_no_place_of_a_rank():
    topology = read(by(0, f"{orders(3)}\nRing 00 : 0 -> 1 -> 2 -> 0\nTrees [0] 1/-1/-1->0->-1"))
    assert topology.warnings == ()
    assert topology.facts["trees"] == {"0": {"0": {"parent": -1, "children": [1]}}}


def test_trees_that_a_mail_wrapped():
    text = by(2, comm(2, 4)) + by(2, "Trees [0] 3/-1/-1->2->1 [1] 3/-1/-1->2->1")
    topology = read(f"{text}[2] -1/-1/-1->2->1 [3] 3/-1/-\n1->2->1\n")
    assert list(topology.facts["trees"]) == ["0", "1", "2"]
    assert "nchannels" not in topology.facts


def test_another_thread_ends_the_communicators():
    """One process, two GPUs: its main thread writes both last lines, and wrote something before."""
    text = "alpha:4000:4000 [1] NCCL INFO cudaDriverVersion 12040\n"
    for rank, lines in rings(2).items():
        text += f"alpha:4000:{5000 + rank} [{rank}] NCCL INFO {comm(rank, 2, f'0x{rank + 1}')}\n"
        text += "".join(f"alpha:4000:{5000 + rank} [{rank}] NCCL INFO {line}\n" for line in lines.splitlines())
    for rank in range(2):
        end = comm(rank, 2, f"0x{rank + 1}").replace("Init START", "Destroy COMPLETE")
        text += f"alpha:4000:4000 [1] NCCL INFO {end}\n"
    topology = read(text)
    assert topology.warnings == ()
    assert topology.facts["rings"] == {"0": [0, 1], "1": [0, 1]}
    assert topology.facts["trees"] == chain(2)


def test_transports_with_blanks_in_their_names():
    lines = "Ring 00 : 1[160] -> 0[160] [receive] via NET/AWS Libfabric/0/GDRDMA"
    lines += "\nChannel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read"
    assert read(by(0, lines)).facts["transports"] == ["NET/AWS Libfabric/0/GDRDMA", "P2P/direct pointer/read"]


def test_notes_of_ray_on_lines_that_it_left_out():
    text = by(0, f"{comm(0, 3)}\n{orders(3)} [repeated 3x across cluster]")
    assert read(text).facts["rings"] == {"0": [0, 1, 2]}


def test_connections_alone_name_their_writers():
    text = "a:1:11 [1] NCCL INFO Channel 00/0 : 1[4000] -> 0[3000] via P2P/IPC/read\n"
    text += "a:2:12 [0] NCCL INFO Channel 00/0 : 0[3000] -> 3[4000] [send] via NET/IB/0/GDRDMA\n"
    text += "b:3:13 [0] NCCL INFO Channel 00/0 : 1[4000] -> 2[3000] [receive] via NET/IB/0\n"
    topology = read(text)
    assert [(d.id, d.host, d.bus_id) for d in topology.devices] == [
        ("GPU0", "a", "0000:03:00.0"),
        ("GPU1", "a", "0000:04:00.0"),
        ("GPU2", "b", "0000:03:00.0"),
    ]
    assert topology.warnings == ("job.log: 1 of 4 ranks are on hosts whose lines are not in this log: no devices",)
    assert topology.facts["transports"] == ["P2P/IPC/read", "NET/IB/0/GDRDMA", "NET/IB/0"]
