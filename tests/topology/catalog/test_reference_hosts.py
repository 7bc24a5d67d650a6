"""One host of each catalogue system: links, rates, latencies, pair codes."""

import pytest

from tests.topology.paths import latency_us
from topocomm.topology.catalog.systems import catalog


def egress_gb_per_s(topology, device):
    return sum(link.gb_per_s for link in topology.links if link.src == device)


def test_cube_mesh_has_six_links_per_gpu():
    topology = catalog("dgx-1-v100")
    for i in range(8):
        lanes = [link.lanes for link in topology.links if link.src == f"GPU{i}" and link.kind == "nvlink"]
        assert sorted(lanes) == [1, 1, 2, 2]


def test_full_mesh_has_one_link_per_pair():
    topology = catalog("mi300x-8")
    assert len(topology.links) == 56
    assert {(link.lanes, link.gb_per_s) for link in topology.links} == {(1, 64.0)}


@pytest.mark.parametrize(
    ("name", "gpus", "lanes"), [("dgx-1-p100", 8, [1] * 4), ("hgx-a100-4", 4, [4] * 3), ("mi100-8", 8, [1] * 3)]
)
def test_direct_links_of_every_gpu(name, gpus, lanes):
    topology = catalog(name)
    for i in range(gpus):
        own = [x.lanes for x in topology.links if x.src == f"GPU{i}" and x.kind in ("nvlink", "xgmi")]
        assert own == lanes


def test_the_cube_of_p100_is_two_quads_and_the_links_between_their_corners():
    linked = {(x.src, x.dst) for x in catalog("dgx-1-p100").links if x.kind == "nvlink"}
    assert {b for a, b in linked if a == "GPU1"} == {"GPU0", "GPU2", "GPU3", "GPU5"}


def test_pcie_codes_of_sixteen_gpus():
    codes = {(p.a, p.b): p.code for p in catalog("dgx-2").pairs}
    near = [codes["GPU0", f"NIC{i}"] for i in range(8)]
    assert near == ["PIX", "PXB", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert codes["GPU15", "NIC7"] == "PIX"
    assert codes["GPU0", "GPU15"] == "NV6"


def test_quads_of_mi100_meet_over_the_sockets_and_the_nic_is_on_the_second():
    codes = {(p.a, p.b): p.code for p in catalog("mi100-8").pairs}
    assert (codes["GPU0", "GPU3"], codes["GPU3", "GPU4"]) == ("XGMI", "SYS")
    assert (codes["GPU0", "NIC0"], codes["GPU4", "NIC0"]) == ("SYS", "PHB")


def test_codes_of_pairs():
    codes = {(p.a, p.b): p.code for p in catalog("dgx-h100").pairs}
    assert (codes["GPU0", "GPU1"], codes["GPU0", "NIC0"], codes["GPU0", "NIC3"], codes["GPU0", "NIC4"]) == (
        "NV18",
        "PIX",
        "NODE",
        "SYS",
    )
    assert {p.code for p in catalog("mi300x-8").pairs if "NIC" not in p.b} == {"XGMI"}
    codes = {(p.a, p.b): p.code for p in catalog("dgx-1-v100").pairs}
    assert (codes["GPU0", "GPU3"], codes["GPU0", "GPU5"], codes["GPU3", "NIC1"]) == ("NV2", "SYS", "PIX")


@pytest.mark.parametrize(
    ("name", "a", "b", "us"),
    [
        ("dgx-h100", "GPU0", "GPU7", 0.6),
        ("dgx-a100", "GPU3", "GPU4", 0.6),
        ("mi300x-8", "GPU0", "GPU5", 0.7),
        ("mi250x", "GPU0", "GPU6", 0.7),
        ("dgx-1-v100", "GPU0", "GPU4", 0.7),
        ("dgx-1-v100", "GPU0", "GPU5", 2.0),
        ("rtx4090-pcie-8", "GPU0", "GPU3", 1.4),
        ("rtx4090-pcie-8", "GPU0", "GPU4", 2.0),
        ("cpu-2-socket", "cpu0", "cpu7", 0.2),
        ("cpu-2-socket", "cpu0", "cpu8", 0.6),
        ("dgx-1-p100", "GPU3", "GPU7", 0.7),
        ("dgx-2", "GPU0", "GPU15", 0.6),
        ("hgx-a100-4", "GPU0", "GPU3", 0.7),
        ("gb200-nvl72", "h0/GPU0", "h17/GPU3", 0.6),
        ("mi100-8", "GPU0", "GPU3", 0.7),
        ("mi100-8", "GPU0", "GPU4", 2.0),
        ("rtx3090-pair", "GPU0", "GPU1", 0.7),
        ("rtx4090-pcie-4-2-socket", "GPU1", "GPU2", 2.0),
        ("rtx4090-pcie-8-1-socket", "GPU0", "GPU7", 1.4),
        ("cpu-1-socket", "cpu0", "cpu7", 0.2),
    ],
)
def test_latencies_inside_a_host(name, a, b, us):
    assert latency_us(catalog(name), a, b) == us


@pytest.mark.parametrize(
    ("name", "ends", "egress"),
    [
        ("dgx-h100", 8, 450.0),
        ("dgx-a100", 8, 300.0),
        ("mi300x-8", 8, 448.0),
        ("rtx4090-pcie-8", 8, 32.0),
        ("dgx-1-v100", 8, 150.0 + 16.0),
        ("cpu-2-socket", 16, 10.0),
        ("dgx-1-p100", 8, 80.0 + 16.0),
        ("dgx-2", 16, 150.0),
        ("hgx-a100-4", 4, 300.0),
        ("dgx-h200", 8, 450.0),
        ("dgx-b200", 8, 900.0),
        ("gb200-nvl72", 72, 900.0),
        ("mi100-8", 8, 138.0 + 32.0),
        ("rtx3090-pair", 2, 56.25 + 16.0),
        ("rtx4090-pcie-4", 4, 32.0),
        ("rtx4090-pcie-4-2-socket", 4, 32.0),
        ("rtx4090-pcie-8-1-socket", 8, 16.0),
        ("cpu-1-socket", 8, 10.0),
        ("cpu-2-socket-64", 64, 10.0),
    ],
)
def test_what_leaves_each_endpoint_of_one_host(name, ends, egress):
    topology = catalog(name)
    assert len(topology.endpoints) == ends
    assert {egress_gb_per_s(topology, end) for end in topology.endpoints} == {egress}
