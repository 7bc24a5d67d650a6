"""Several captures of one machine that are joined: what complements what, what contradicts."""

from itertools import combinations

import pytest

from tests.topology.joined import capture, codes, far_ends, gpus, link, rates, topo_m
from tests.topology.readers.nvidia.listings import address, meshed, status, switched
from topocomm.topology.links import both_ways
from topocomm.topology.merge.captures import combine
from topocomm.topology.model import Device, Link, Pair, RankPlace
from topocomm.topology.readers.nvidia import nvidia_nvlink_status, nvidia_p2p
from topocomm.topology.readers.plain import topology_json

# Figures and codes.


def test_measured_before_read_before_table_before_assumed():
    order = ["measured", "read", "table", "assumed", None]
    for (i, better), (j, worse) in combinations(enumerate(order), 2):
        one = Pair("GPU0", "GPU1", "PIX", 20.0 if better else None, None, better)
        two = Pair("GPU0", "GPU1", "PIX", 10.0 if worse else None, None, worse)
        for pairs in ((one, two), (two, one)):
            found = combine([capture(str(n), gpus(2), pairs=[pair], source=str(n)) for n, pair in enumerate(pairs)])
            assert found.pairs[0].gb_per_s == 20.0 and found.pairs[0].gb_per_s_source == better, (i, j)
            assert found.warnings == ()


def test_figures_that_contradict_are_said():
    pairs = [Pair("GPU0", "GPU1", "PIX", rate, 1.0, "measured", "read") for rate in (20.0, 10.0)]
    found = combine([capture(n, gpus(2), pairs=[p], source=n) for n, p in zip("ab", pairs, strict=True)])
    assert found.pairs[0].gb_per_s == 20.0
    assert found.warnings == ("GPU0-GPU1 20 GB/s against 10 GB/s: a (a) against b (b); the first kept",)


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


# NVLink: rates and far ends.


def test_rates_of_links_times_lanes():
    found = combine([topo_m(4, lambda a, b: "NV12"), rates([[25.781] * 12] * 4)])
    assert [link(found, f"GPU{i}", "nvswitch0")[3:5] for i in range(4)] == [(12, 309.372)] * 4
    assert {link.gb_per_s_source for link in found.links if link.kind == "nvlink"} == {"read"}
    assert {(p.gb_per_s, p.gb_per_s_source) for p in found.pairs} == {(309.372, "read")}
    assert found.devices[0].name == "NVIDIA A100-SXM4-40GB"


def test_a_read_rate_settles_what_was_assumed():
    matrix = topo_m(8, lambda a, b: "NV18")
    assert any("each assumed" in text for text in matrix.warnings)
    found = combine([rates([[53.125] * 18] * 8, name="NVIDIA B200"), matrix])
    assert link(found, "GPU3", "nvswitch0").gb_per_s == 956.25
    assert found.warnings == ()


def test_the_slower_end_counts():
    text = status([[25.0] * 4]) + status([[25.0] * 4, [14.062] * 4], "RTX").split("\n", 5)[5]
    listing = nvidia_nvlink_status.read(text, "s.txt")
    assert link(combine([topo_m(2, lambda a, b: "NV4"), listing]), "GPU0", "GPU1").gb_per_s == 56.248


def test_a_measured_rate_stays():
    pairs = [Pair("GPU0", "GPU1", "NV4", 52.0, None, "measured")]
    found = combine(
        [capture("m", gpus(2), both_ways("GPU0", "GPU1", "nvlink", lanes=4), pairs), rates([[14.062] * 4] * 2)]
    )
    assert found.pairs[0][3:] == (52.0, None, "measured", None)
    assert link(found, "GPU1", "GPU0").gb_per_s == 56.248


def test_rates_of_links_that_contradict_are_said():
    xml = capture("x", gpus(2), both_ways("GPU0", "GPU1", "nvlink", lanes=4, gb_per_s=100.0))
    found = combine([xml, rates([[14.062] * 4] * 2)])
    assert link(found, "GPU0", "GPU1")[4] == 100.0
    assert found.warnings == (
        "GPU0-GPU1 100 GB/s against 56.248 GB/s: rates of links that two captures read differ; the first kept",
    )


def test_links_that_are_down_are_said():
    found = combine(
        [topo_m(4, lambda a, b: "NV12"), rates([[25.0] * 12, [25.0] * 10 + [None] * 2] + [[25.0] * 12] * 2)]
    )
    assert (
        "GPU1 12 NVLinks against 10: m (nvidia-smi topo -m) against s (nvidia-smi nvlink -s); the first kept"
        in found.warnings
    )


def test_far_ends_settle_that_links_lead_to_switches():
    matrix = topo_m(4, lambda a, b: "NV6")
    assert not any(d.kind == "switch" and d.name == "NVSwitch" for d in matrix.devices)
    found = combine([matrix, far_ends(switched(4, 3, 2), name="Tesla V100-SXM3-32GB")])
    assert [link(found, f"GPU{i}", "nvswitch0")[3:5] for i in range(4)] == [(6, 150.0)] * 4
    assert not any(a.startswith("GPU") and b.startswith("GPU") for a, b, *_ in found.links)
    assert any(
        text.startswith("NVLinks lead into NVSwitches (r (nvidia-smi nvlink -R)); m (nvidia-smi topo -m) was read as")
        for text in found.warnings
    )
    assert found.facts["nvswitches"] == 3


def test_far_ends_settle_that_links_lead_to_gpus():
    matrix = topo_m(3, lambda a, b: "NV8")
    assert any(d.name == "NVSwitch" for d in matrix.devices)
    found = combine([matrix, far_ends(meshed(dict.fromkeys(combinations(range(3), 2), 8), 3), name="NVIDIA H100")])
    assert {(a, b): lanes for a, b, _, lanes, *_ in found.links if b.startswith("GPU") and a < b} == {
        ("GPU0", "GPU1"): 8, ("GPU0", "GPU2"): 8, ("GPU1", "GPU2"): 8,
    }  # fmt: skip
    assert not any(d.name == "NVSwitch" for d in found.devices)
    assert found.by_id["GPU1"].bus_id == address(1).lower()


def test_far_ends_that_are_no_gpus_of_another_capture_are_switches():
    listing = far_ends([[("00000008:00:00.0", 3), ("00000009:00:00.0", 3)], [("00000008:00:00.0", 4)]])
    assert "nvswitches" not in listing.facts and not listing.links
    xml = capture("x", gpus(2), pairs=[Pair("GPU0", "GPU1", "NV2")])
    found = combine([xml, listing])
    assert link(found, "GPU0", "nvswitch0").lanes == 2 and link(found, "GPU1", "nvswitch0").lanes == 1


def test_far_ends_with_addresses_of_another_capture_are_gpus():
    listing = far_ends([[(address(1), 3), (address(2), 4)], [(address(0), 7)], [(address(0), 7)]])
    assert not listing.links
    found = combine([capture("x", gpus(3)), listing])
    assert {(a, b): lanes for a, b, _, lanes, *_ in found.links} == {
        ("GPU0", "GPU1"): 1, ("GPU1", "GPU0"): 1, ("GPU0", "GPU2"): 1, ("GPU2", "GPU0"): 1,
    }  # fmt: skip


def test_lanes_that_contradict_are_said():
    xml = capture("x", gpus(2), both_ways("GPU0", "GPU1", "nvlink", lanes=2))
    found = combine([topo_m(2, lambda a, b: "NV4"), xml])
    assert link(found, "GPU0", "GPU1").lanes == 4
    assert (
        "GPU0-GPU1 4 links against 2: m (nvidia-smi topo -m) against x (NCCL topology XML); the first kept"
        in found.warnings
    )


# The tree.


def slots(count, rate):
    devices = [*gpus(count), Device("bridge0", "switch"), Device("nvswitch0", "switch", name="PCIe switch")]
    links: list[Link] = []
    for i in range(count):
        links += both_ways(f"GPU{i}", "bridge0", "pcie", gb_per_s=rate)
    links += both_ways("bridge0", "nvswitch0", "pcie")
    return devices, links


def test_one_tree_is_kept_and_slots_are_complemented():
    devices, links = slots(2, 31.5)
    xml = capture("x", devices, links)
    matrix = topo_m(2, lambda a, b: "PIX", nics=["mlx5_0"])
    found = combine([xml, matrix])
    assert sorted(d.id for d in found.devices) == sorted(d.id for d in matrix.devices)  # it has the NIC, too
    assert link(found, "GPU0", "pcie0")[4:] == (31.5, 0.5, None, "read", "assumed")
    assert link(found, "mlx5_0", "pcie0").gb_per_s is None
    found = combine([topo_m(2, lambda a, b: "PIX"), xml])
    assert "bridge0" in found.by_id and "pcie0" not in found.by_id  # as many devices, more figures


def test_a_device_outside_the_tree_is_said():
    devices, links = slots(2, 31.5)
    found = combine([capture("x", devices, links), capture("n", [*gpus(2), Device("eth0", "nic")], source="list")])
    assert found.warnings == ("eth0: not in the tree of x (NCCL topology XML); no PCIe links",)


def test_slots_that_contradict_are_said():
    one, two = slots(1, 31.5), slots(1, 15.75)
    found = combine([capture("x", *one), capture("y", *two, source="lstopo")])
    assert found.warnings == (
        "PCIe link of GPU0 31.5 GB/s against 15.75 GB/s: x (NCCL topology XML) against y (lstopo); the first kept",
    )


def test_the_fabrics_switch_and_a_trees_device_may_have_one_id():
    devices, links = slots(4, 31.5)
    found = combine([topo_m(4, lambda a, b: "NV12"), capture("x", devices, links)])
    (switch,) = [d for d in found.devices if d.name == "NVSwitch"]
    assert switch.id != "nvswitch0" and found.by_id["nvswitch0"].name == "PCIe switch"
    assert link(found, "GPU0", switch.id).lanes == 12


# Facts and the rest.


def test_facts_complement_each_other():
    a = capture("a", gpus(1), facts={"rings": [[0]], "weights": {"GPU0-GPU1": 15}, "rate": 25.0, "legend": True})
    b = capture(
        "b", gpus(1), source="s", facts={"weights": {"GPU0-GPU2": 30}, "rate": 25.781, "legend": False, "hops": None}
    )
    found = combine([a, b])
    assert found.facts == {
        "rings": [[0]],
        "weights": {"GPU0-GPU1": 15, "GPU0-GPU2": 30},
        "rate": 25.0,
        "legend": True,
        "hops": None,
        "by_source": {"s": {"legend": False}},
    }
    assert found.warnings == ()


def test_facts_that_contradict_are_said_and_none_is_lost():
    a = capture("a", gpus(1), facts={"nvswitches": 4})
    b = capture("b", gpus(1), source="s", facts={"nvswitches": 6})
    found = combine([a, b])
    assert found.facts == {"nvswitches": 4, "by_source": {"s": {"nvswitches": 6}}}
    assert found.warnings == (
        "nvswitches: 4 (a (NCCL topology XML)), 6 (b (s)); the first kept, the other is in facts.by_source",
    )


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
