"""Links of several captures: rates and far ends of NVLinks, one PCIe tree."""

from itertools import combinations

from tests.topology.joined import capture, far_ends, gpus, link, rates, topo_m
from tests.topology.readers.nvidia.listings import address, meshed, status, switched
from topocomm.topology.links import both_ways
from topocomm.topology.merge.captures import combine
from topocomm.topology.model import Device, Link, Pair
from topocomm.topology.readers.nvidia import nvidia_nvlink_status


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
