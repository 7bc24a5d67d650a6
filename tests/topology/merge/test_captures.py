"""Several captures of one machine that are joined: what complements what, what contradicts."""

import pytest

from tests.topology.joined import capture, codes, far_ends, gpus, rates, topo_m
from tests.topology.readers.nvidia.listings import switched
from topocomm.topology.merge.captures import combine
from topocomm.topology.model import Pair, RankPlace
from topocomm.topology.readers.nvidia import nvidia_p2p
from topocomm.topology.readers.plain import topology_json


@pytest.mark.parametrize(
    ("codes_given", "sources", "kept", "says"),
    [
        (("PIX", "PXB"), ("lstopo", "nvidia-smi topo -m"), "PXB", True),
        (("PIX", "PXB"), ("nvidia-smi topo -m", "lstopo"), "PIX", True),
        (("PIX", "PXB"), ("lstopo", "NCCL topology XML"), "PIX", True),
        (("NV4", "NV12"), ("nvidia-smi topo -m", "NCCL topology XML"), "NV4", True),
        (("PHB", "NV4"), ("lstopo", "NCCL topology XML"), "NV4", False),
        (("PHB", "NV4"), ("nvidia-smi topo -m", "NCCL topology XML"), "NV4", True),
        (("XGMI", "XGMI4"), ("rocm-smi", "NCCL topology XML"), "XGMI4", False),
        (("XGMI4", "XGMI"), ("NCCL topology XML", "rocm-smi"), "XGMI4", False),
        (("PCIE", "PHB"), ("rocm-smi", "lstopo"), "PHB", False),
        (("SYS", "SOC"), ("nvidia-smi topo -m", "lstopo"), "SYS", False),
        ((None, "PHB"), ("nvidia-smi topo -m", "lstopo"), "PHB", False),
        (("PHB", None), ("nvidia-smi topo -m", "lstopo"), "PHB", False),
    ],
)
def test_codes(codes_given, sources, kept, says):
    captures = [
        capture(n, gpus(2), pairs=[Pair("GPU0", "GPU1", code)], source=source)
        for n, code, source in zip("ab", codes_given, sources, strict=True)
    ]
    found = combine(captures)
    assert codes(found) == {("GPU0", "GPU1"): kept}
    winner = f"{'ab'[codes_given.index(kept)]} ({sources[codes_given.index(kept)]})"
    text = (
        f"GPU0-GPU1 {codes_given[0]} against {codes_given[1]}: a ({sources[0]}) against b ({sources[1]}); "
        f"those of {winner} kept"
    )
    assert found.warnings == ((text,) if says else ())


def test_other_numa_nodes_are_said():
    found = combine([capture("a", gpus(1, numa=0)), capture("b", gpus(1, numa=1), source="lstopo")])
    assert found.devices[0].numa == 0
    assert found.warnings == ("GPU0: NUMA node 0 (a (NCCL topology XML)), 1 (b (lstopo)); 0 kept",)


def test_capabilities_of_pairs():
    reads, links = (
        nvidia_p2p.read(f"$ nvidia-smi topo -p2p {c}\n   GPU0 GPU1\n GPU0 X {s}\n GPU1 {s} X\n", "p.txt")
        for c, s in (("r", "OK"), ("n", "NS"))
    )
    found = combine([reads, links, topo_m(2, lambda a, b: "PHB")])
    assert found.facts["p2p"] == {"GPU0-GPU1": "OK"} and found.facts["capability"] == "r"
    other = found.facts["by_source"]["nvidia-smi topo -p2p n"]
    assert other["p2p"] == {"GPU0-GPU1": "NS"} and other["capability"] == "n"
    assert codes(found) == {("GPU0", "GPU1"): "PHB"} and found.warnings == ()


def test_places_of_ranks_and_launches_are_kept():
    log = capture("log", gpus(2), ranks=(RankPlace(0, "host0", "GPU1"),), source="log", launch_us=3.0)
    found = combine([capture("a", gpus(2, host="node1")), log])
    assert found.ranks == (RankPlace(0, "node1", "GPU1"),) and found.launch_us == 3.0


def test_the_whole_travels_as_json():
    found = combine(
        [topo_m(4, lambda a, b: "NV12", nics=["mlx5_0"]), rates([[25.0] * 12] * 4), far_ends(switched(4, 3, 4))]
    )
    assert topology_json.read(topology_json.dumps(found), "c.json") == found
    assert len({(a, b) for a, b, *_ in found.links}) == len(found.links)
