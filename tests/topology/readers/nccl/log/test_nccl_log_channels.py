"""Rings, trees, ranks and what else lines of NCCL's INIT and GRAPH subsystems say, whole and by several writers."""

import pytest

from tests.topology.readers.nccl.log.logs import by, chain, read, rings
from topocomm.topology.readers.nccl.log import nccl_log


def interleaved(texts, host="alpha"):
    """The lines of all ranks, one of each in turn."""
    lines = [by(rank, text, host).splitlines() for rank, text in texts.items()]
    return "".join(f"{own[i]}\n" for i in range(max(map(len, lines))) for own in lines if i < len(own))


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("ranks", [2, 4, 13])
def test_rings_and_trees_of_both_notations(ranks, new):
    topology = read(interleaved(rings(ranks, 3, new)))
    assert topology.warnings == ()
    assert [d.id for d in topology.devices] == [f"GPU{i}" for i in range(ranks)]
    assert [(p.rank, p.host, p.device) for p in topology.ranks] == [(i, "host0", f"GPU{i}") for i in range(ranks)]
    assert topology.facts["ranks"] == ranks
    assert topology.facts["nchannels"] == 3
    assert topology.facts["rings"] == {str(c): list(range(ranks)) for c in range(3)}
    assert topology.facts["trees"] == chain(ranks, 3)
    assert "trees_broadcast" not in topology.facts


def test_a_lone_rank():
    topology = read(by(0, "Channel 00/32 :    0\nTrees [0] -1/-1/-1->0->-1"))
    assert topology.facts["rings"] == {"0": [0]}
    assert topology.facts["trees"] == {"0": {"0": {"parent": -1, "children": []}}}
    assert (topology.facts["nchannels"], topology.facts["ranks"]) == (32, 1)


def test_notations_of_single_trees_and_of_the_first_versions():
    text = by(0, "Tree 0 : -1 -> 0 -> 1/2/-1") + by(1, "Trees [0] 0->1->-1/-1/-1")
    text += by(2, "Trees [0] -1/-1/-1->2->0 comm 0x5a nRanks 03 busId 4000")
    topology = read(text)
    assert topology.facts["trees"] == {
        "0": {
            "0": {"parent": -1, "children": [1, 2]},
            "1": {"parent": 0, "children": []},
            "2": {"parent": 0, "children": []},
        }
    }
    assert topology.facts["ranks"] == 3
    assert topology.facts["rank_busid"] == {"2": "4000"}


def test_halves_that_differ_are_told_apart():
    text = by(0, "Trees [0] 1/-1/-1->0->-1|-1->0->-1/-1/-1") + by(1, "Trees [0] -1/-1/-1->1->0|-1->1->-1/-1/-1")
    facts = read(text).facts
    assert facts["trees"]["0"]["0"] == {"parent": -1, "children": [1]}
    assert facts["trees_broadcast"]["0"]["0"] == {"parent": -1, "children": []}


def test_a_ring_that_starts_elsewhere_is_turned_to_rank_0():
    assert read(by(0, "Channel 00/01 : 2 1 0 3")).facts["rings"] == {"0": [0, 3, 2, 1]}


def test_a_ring_is_stitched_from_places_that_leave_no_choice():
    comm = "comm 0x5a rank {} nRanks 4 nNodes 1 localRanks 4 localRank {} MNNVL 0\n"
    text = by(1, comm.format(1, 1) + "Ring 00 : 3 -> 1 -> 0") + by(0, "Ring 00 : 1 -> 0 -> 2")
    assert read(text).facts["rings"] == {"0": [0, 2, 3, 1]}
    assert "rings" not in read(by(1, comm.format(1, 1) + "Ring 00 : 3 -> 1 -> 0")).facts


def test_a_wrapped_channel_line_is_joined():
    whole = by(0, "Channel 00/01 :" + "".join(f"{i:4}" for i in range(40)))
    at = whole.index("  17") + 4
    for text in (whole[:at] + "\n" + whole[at:], whole[: at - 1] + "\n" + whole[at - 1 :]):
        topology = read(text)
        assert topology.facts["rings"] == {"0": list(range(40))}
        assert len(topology.devices) == 40


def test_launchers_timestamps_colours_and_line_ends_do_not_matter():
    plain = interleaved(rings(4))
    for prefix in ("[1,0]<stdout>:", "3: ", "2026-01-01T00:00:00.1Z ", "worker-0 | ", "(Worker pid=77) ", "[rank0]: "):
        assert read("".join(f"{prefix}{line}\n" for line in plain.splitlines())).facts == read(plain).facts
    assert read(plain.replace("\n", "\r\n")).facts == read(plain).facts
    assert read(plain.replace("NCCL", "\x1b[32mNCCL\x1b[0m")).facts == read(plain).facts
    assert read(plain.replace("->", "-&gt;")).facts == read(plain).facts


def test_two_hosts_of_equal_process_ids():
    texts = rings(4, 1)
    start = "comm 0x{0} rank {0} nranks 4 cudaDev {1} nvmlDev {1} busId {1}a000 commId 0x77 - Init START\n"
    text = "".join(by(r % 2, start.format(r, r % 2) + texts[r], "beta" if r > 1 else "alpha") for r in range(4))
    topology = read(text + by(1, "Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA"))
    assert topology.warnings == ()
    assert [(d.id, d.host, d.bus_id) for d in topology.devices] == [
        ("GPU0", "alpha", "0000:0a:00.0"),
        ("GPU1", "alpha", "0000:1a:00.0"),
        ("GPU2", "beta", "0000:0a:00.0"),
        ("GPU3", "beta", "0000:1a:00.0"),
    ]
    assert topology.facts["rank_busid"] == {"0": "0a000", "1": "1a000", "2": "0a000", "3": "1a000"}
    assert (topology.facts["transport"], topology.facts["transports"]) == ("NET", ["NET/IB/0/GDRDMA"])


def test_ranks_of_hosts_that_are_not_in_the_log_are_no_devices():
    comm = "comm 0x5a rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0\n"
    topology = read(by(0, comm + "Channel 00/01 :" + "".join(f"{i:4}" for i in range(16))))
    assert [d.id for d in topology.devices] == ["GPU0"]
    assert topology.facts["rings"] == {"0": list(range(16))}
    assert (topology.facts["ranks"], topology.facts["nodes"]) == (16, 2)
    assert "15 of 16 ranks are on hosts whose lines are not in this log" in topology.warnings[0]


def test_the_largest_communicator_is_read():
    start = "comm 0x{0} rank {1} nranks {2} cudaDev {3} busId {3}a000 commId 0x{2}{4} - Init START\n"
    texts = rings(4, 1)
    text = "".join(by(r, start.format(f"1{r}", r, 4, r, 0) + texts[r]) for r in range(4))
    two = rings(2, 1)
    text += "".join(by(r, start.format(f"2{r}", r % 2, 2, r, r // 2) + two[r % 2]) for r in range(4))
    topology = read(text)
    assert topology.facts["rings"] == {"0": [0, 1, 2, 3]}
    assert topology.facts["trees"] == chain(4, 1)
    assert topology.facts["rank_busid"] == {str(r): f"{r}a000" for r in range(4)}
    assert "3 communicators in this log; the one with 4 ranks was read" in topology.warnings[0]


def test_bus_ids_p2p_transport_affinity_and_version():
    text = "NCCL version 2.18.5+cuda11.8\n"
    for rank, texts in rings(2, 1).items():
        other = 1 - rank
        text += by(rank, texts, dev=rank + 4)
        text += by(rank, f"Setting affinity for GPU {rank + 4} to ff,ffff0000", dev=rank + 4)
        text += by(rank, f"Could not enable P2P between dev 5(={other}a000) and dev 4(={rank}a000)", dev=rank + 4)
        text += by(rank, f"Channel 00 : {rank}[{rank}a000] -> {other}[{other}a000] via direct shared memory")
    topology = read(text)
    assert topology.warnings == ()
    assert topology.facts["library"] == "NCCL 2.18.5"
    assert topology.facts["rank_busid"] == {"0": "0a000", "1": "1a000"}
    assert topology.facts["p2p"] == {"GPU0-GPU1": False}
    assert (topology.facts["transport"], topology.facts["transports"]) == ("SHM", ["direct shared memory"])
    assert topology.facts["gpu_affinity_mask"] == {"GPU0": "ff,ffff0000", "GPU1": "ff,ffff0000"}
    assert topology.by_id["GPU1"].bus_id == "0000:1a:00.0"
    again = read(text.replace("ff,ffff0000", "0-7,16-23").replace("+cuda", "+hip"))
    assert again.by_id["GPU0"].cpu_affinity == "0-7,16-23"
    assert "gpu_affinity_mask" not in again.facts
    assert again.facts["library"] == "RCCL 2.18.5"


def test_device_numbers_in_brackets_are_no_bus_ids():
    text = by(0, "Channel 00/1 : 0[0] -> 1[7] via P2P/CUMEM/read") + by(1, "Channel 00/1 : 1[7] -> 0[0] via P2P/IPC")
    facts = read(text + interleaved(rings(2, 1))).facts
    assert "rank_busid" not in facts
    assert facts["transport"] == "P2P"


def test_what_matches():
    assert nccl_log.matches(by(0, "Channel 00/02 : 0 1"))
    assert nccl_log.matches("x\n=== System : maxBw 1.0 totalBw 1.0 ===\n")
    assert not nccl_log.matches("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n")
    assert not nccl_log.matches('<system version="1"> <!-- for NCCL --> </system>')
