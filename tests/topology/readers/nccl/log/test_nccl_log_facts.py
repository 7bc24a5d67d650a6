"""What a log says beside rings, trees and devices: version, bus ids, transports, searches, bandwidths."""

from tests.topology.readers.nccl.log.logs import SWITCHED, by, interleaved, read, rings


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


def test_transports_with_blanks_in_their_names():
    lines = "Ring 00 : 1[160] -> 0[160] [receive] via NET/AWS Libfabric/0/GDRDMA"
    lines += "\nChannel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read"
    assert read(by(0, lines)).facts["transports"] == ["NET/AWS Libfabric/0/GDRDMA", "P2P/direct pointer/read"]


def test_searches_have_the_shape_of_the_graph_file():
    search = """Pattern 4, crossNic 0, nChannels 1, bw 20.000000/12.500000, type NVL/PIX, sameChannels 1
 0 : NET/0-a GPU/0-3000 GPU/0-13000 GPU/0-84000 GPU/0-83000 NET/0-b
Pattern 5, crossNic 0, nChannels 2, bw 40.000000/40.000000, type NVL/PIX, sameChannels 0
 0 : GPU/0-3000
 1 : GPU/0-83000
Pattern 1, crossNic 0, nChannels 2, bw 20.000000/20.000000, type NVL/PIX, sameChannels 0
 0 : GPU/0 GPU/1 GPU/3 GPU/2
"""
    facts = read(by(0, SWITCHED + search)).facts
    assert facts["pattern_bw"] == 20
    ring, nvls, tree = facts["graphs"]
    assert ring == {
        "pattern": 4,
        "pattern_name": "ring",
        "crossnic": 0,
        "nchannels": 1,
        "speedintra": 20,
        "speedinter": 12.5,
        "typeintra": "NVL",
        "typeinter": "PIX",
        "samechannels": 1,
        "channels": [[0, 1, 3, 2]],
        "nets": [[10, 11]],
    }
    assert nvls["channels"] == [[0], [2]]
    assert "channels" not in tree  # the second of two is not there


def test_ranks_that_found_different_patterns_are_named_and_the_first_are_read():
    search = """Pattern 4, crossNic 0, nChannels 1, bw {}/12.500000, type NVL/PIX, sameChannels 1
 0 : NET/0-a GPU/0-3000 GPU/0-13000 GPU/0-84000 GPU/0-83000 NET/0-b
"""
    text = by(0, SWITCHED + search.format("20.000000")) + by(1, search.format("40.000000"))
    topology = read(text)
    assert topology.warnings == ("job.log: ranks of one machine found different patterns; the first were read",)
    assert topology.facts["graphs"][0]["speedintra"] == 20
