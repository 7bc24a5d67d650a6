"""NVLink and xGMI from the distance matrices of hwloc's XML."""

import pytest

from tests.topology.paths import latency_us
from tests.topology.readers.hwloc.facts import assert_facts, codes_of
from tests.topology.readers.hwloc.machines import Xml, machine, package
from topocomm.topology.readers.hwloc import hwloc_xml


def boxed(gpus, model="Tesla V100-SXM2-16GB", driver="nvml", kind="0302 [10de:1db1]"):
    """Opens a machine with GPUs on host bridges of their own; their gp_index."""
    xml = Xml()
    machine(xml)
    package(xml, 0)
    found = []
    for i in range(gpus):
        xml.host_bridge()
        found += xml.gpu(f"0000:{16 * (i + 1):02x}:00.0", f"{driver}{i}", model=model, kind=kind)
        xml.end()
    return xml, found


def square(count, entries, diagonal=1000000):
    """The values of a symmetric matrix."""
    values = [diagonal if i == j else 0 for i in range(count) for j in range(count)]
    for (i, j), value in entries.items():
        values[i * count + j] = values[j * count + i] = value
    return values


def test_direct_links_are_counted_by_the_rate_of_one():
    xml, gpus = boxed(4)
    xml.end(2)
    xml.matrix("NVLinkBandwidth", gpus, square(4, {(0, 1): 50000, (0, 2): 25000, (2, 3): 50000}))
    topology = hwloc_xml.read(xml.text(), "x.xml")
    assert_facts(
        topology,
        {
            "links": {
                "GPU0-GPU1": "NV2",
                "GPU0-GPU2": "NV1",
                "GPU0-GPU3": "NODE",
                "GPU1-GPU2": "NODE",
                "GPU1-GPU3": "NODE",
                "GPU2-GPU3": "NV2",
            },
            "nvlink_total_per_gpu": {"GPU0": 3, "GPU1": 2, "GPU2": 3, "GPU3": 2},
            "nvlink_bw_mb_per_s": [25000, 50000],
        },
    )
    link = next(link for link in topology.links if (link.src, link.dst) == ("GPU0", "GPU1"))
    assert (link.kind, link.lanes, link.gb_per_s, link.gb_per_s_source) == ("nvlink", 2, 50.0, "read")


@pytest.mark.parametrize(
    ("model", "rate", "code"),
    [("NVIDIA A100", 100000, "NV4"), ("Tesla P100", 40000, "NV2"), ("NVIDIA B200", 100000, "NV2")],
)
def test_one_link_has_the_rate_of_its_generation(model, rate, code):
    xml, gpus = boxed(2, model)
    xml.end(2)
    xml.matrix("NVLinkBandwidth", gpus, square(2, {(0, 1): rate}))
    assert codes_of(hwloc_xml.read(xml.text(), "x.xml")) == {"GPU0-GPU1": code}


def test_a_rate_that_fits_no_generation_is_not_counted():
    xml, gpus = boxed(2)
    xml.end(2)
    xml.matrix("NVLinkBandwidth", gpus, square(2, {(0, 1): 30001}))
    topology = hwloc_xml.read(xml.text(), "x.xml")
    assert codes_of(topology) == {"GPU0-GPU1": "NODE"}
    assert "30001 MB/s: no multiple" in topology.warnings[0]


def switched(boards, lanes, gpus_per_board=2, switches_per_board=3):
    xml, gpus = boxed(boards * gpus_per_board)
    switches = []
    for i in range(boards * switches_per_board):
        bus_id, kind = f"0001:{i:02x}:00.0", "0680 [10de:1af1] [0000:0000] a1"
        switches.append(xml.single("PCIDev", pci_busid=bus_id, pci_type=kind, subtype="NVSwitch"))
    xml.end(2)
    entries = {
        (g, len(gpus) + s): 25000 * lanes
        for g in range(len(gpus))
        for s in range(len(switches))
        if g // gpus_per_board == s // switches_per_board
    }
    indexes = [*(f"OSDev:{i}" for i in gpus), *(f"PCIDev:{i}" for i in switches)]
    xml.matrix("NVLinkBandwidth", indexes, square(len(indexes), entries), hetero=True)
    return hwloc_xml.read(xml.text(), "x.xml")


def test_switches_of_one_board_fold_into_one():
    topology = switched(1, 6, gpus_per_board=3)
    assert set(codes_of(topology).values()) == {"NV18"}
    assert topology.facts["nvswitches"] == ["0001:00:00.0", "0001:01:00.0", "0001:02:00.0"]
    assert topology.facts["nvlink_total_per_gpu"] == {"GPU0": 18, "GPU1": 18, "GPU2": 18}
    assert topology.by_id["nvswitch0"].in_network == "nvls"
    assert latency_us(topology, "GPU0", "GPU2") == pytest.approx(0.6)


def test_two_boards_are_joined_by_what_the_file_does_not_show():
    topology = switched(2, 2)
    assert codes_of(topology) == {
        "GPU0-GPU1": "NV6",
        "GPU0-GPU2": "NV6?",
        "GPU0-GPU3": "NV6?",
        "GPU1-GPU2": "NV6?",
        "GPU1-GPU3": "NV6?",
        "GPU2-GPU3": "NV6",
    }
    assert set(topology.facts["nvswitches"]) == {"board0", "board1"}
    assert "2 groups of NVSwitches" in topology.warnings[0]


def test_links_to_the_cpu():
    xml, gpus = boxed(2, "Tesla V100")
    xml.end(2)
    xml.matrix("NVLinkBandwidth", [*(f"OSDev:{i}" for i in gpus), "Package:2"], square(3, {(0, 2): 75000}), hetero=True)
    topology = hwloc_xml.read(xml.text(), "x.xml")
    assert topology.facts["gpu_cpu_links"] == {"GPU0-Package0": "NV3"}
    assert codes_of(topology) == {"GPU0-GPU1": "NODE"}
    assert any((link.src, link.dst, link.lanes) == ("GPU0", "numa0", 3) for link in topology.links)


def test_xgmi_is_not_counted():
    xml, gpus = boxed(3, "AMD INSTINCT", "rsmi", "0380 [1002:7408]")
    xml.end(2)
    xml.matrix("XGMIBandwidth", gpus, square(3, {(0, 1): 100000, (1, 2): 100000}))
    xml.matrix("XGMIHops", gpus, square(3, {(0, 1): 1, (1, 2): 2}, diagonal=0))
    topology = hwloc_xml.read(xml.text(), "x.xml")
    assert codes_of(topology) == {"GPU0-GPU1": "XGMI", "GPU0-GPU2": "NODE", "GPU1-GPU2": "XGMI"}
    assert topology.facts["xgmi_bw_mb_per_s_reported"] == 100000
    assert topology.facts["xgmi_hops_reported"] == {"GPU0-GPU1": 1, "GPU1-GPU2": 2}
    assert {link.gb_per_s for link in topology.links if link.kind == "xgmi"} == {None}


def test_old_hwloc_names_peers_instead():
    xml, _ = boxed(2, "AMD", "rsmi", "0380 [1002:7408]")
    xml.end(2)
    text = xml.text().replace('name="GPUModel" value="AMD"', 'name="XGMIPeers" value="rsmi0 rsmi1 rsmi7 "')
    assert codes_of(hwloc_xml.read(text, "x.xml")) == {"GPU0-GPU1": "XGMI"}
