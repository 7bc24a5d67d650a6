"""`amd-smi xgmi`: its three tables, from ROCm 6.1 to 7, as text and as JSON."""

from tests.topology.readers.amd.texts import all_pairs, bus, codes_of, status_table, xgmi_table
from topocomm.topology.readers.amd import amd_smi, amd_smi_json, amd_smi_xgmi, rocm_smi


def read(text):
    assert amd_smi_xgmi.matches(text)
    assert not any(other.matches(text) for other in (rocm_smi, amd_smi, amd_smi_json))
    return amd_smi_xgmi.read(text, "dump.txt")


def traffic(i, j):
    return f"{i * j + 1} KB"


def test_eight_gpus_have_one_link_to_each_other():
    topology = read(xgmi_table(8, "32 Gb/s", "512 Gb/s", "XGMI", traffic))
    assert [(d.id, d.bus_id) for d in topology.devices] == [(f"GPU{i}", bus(i)) for i in range(8)]
    assert codes_of(topology) == all_pairs(8, "XGMI")
    assert topology.facts == {"bit_rate_gbps": 32, "max_bandwidth_gbps": 512, "self": "N/A"}
    assert len(topology.links) == 56
    assert {(x.kind, x.lanes, x.gb_per_s, x.gb_per_s_source) for x in topology.links} == {("xgmi", 1, 64.0, "read")}
    assert {(pair.gb_per_s, pair.gb_per_s_source) for pair in topology.pairs} == {(64.0, "read")}
    assert topology.warnings == ()


def test_four_gpus_may_have_two_links_each():
    topology = read(xgmi_table(4, "32 Gb/s", "512 Gb/s", "XGMI", traffic))
    assert {(link.lanes, link.gb_per_s) for link in topology.links} == {(None, None)}
    assert "GB/s of xGMI unknown" in topology.warnings[0]


def test_the_status_table_counts_links():
    text = xgmi_table(3, "32 Gb/s", "512 Gb/s", "XGMI", traffic, by_bus_id=False)
    text += "\n" + status_table(3, lambda i, j: "U/U" if i + j == 1 else "D" if i + j == 2 else "N/A")
    text += "\n\nLegend:\n  SELF = Current GPU\n  U / D / X = Link is Up / Down / Disabled\n"
    topology = read(text)
    assert topology.facts["link_status"] == {"GPU0-GPU1": "U/U", "GPU0-GPU2": "D", "GPU1-GPU2": "N/A"}
    assert topology.facts["legend"] is True
    assert {(link.src, link.dst, link.lanes, link.gb_per_s) for link in topology.links} == {
        ("GPU0", "GPU1", 2, 128.0),
        ("GPU1", "GPU0", 2, 128.0),
        ("GPU1", "GPU2", None, None),
        ("GPU2", "GPU1", None, None),
    }
    assert any("links of GPU0-GPU2" in warning for warning in topology.warnings)


def test_pairs_without_a_counter_have_no_link():
    def cell(i, j):
        return "2 KB" if i // 2 == j // 2 else "N/A"

    topology = read(xgmi_table(4, "25 Gb/s", "400 Gb/s", "XGMI", cell, by_bus_id=False))
    known = {pair: code for pair, code in codes_of(topology).items() if code}
    assert known == {"GPU0-GPU1": "XGMI", "GPU2-GPU3": "XGMI"}
    assert "no link type for GPU0-GPU2, GPU0-GPU3" in topology.warnings[0]


def test_counters_that_cannot_be_read_say_nothing_of_links():
    topology = read(xgmi_table(4, "16 Gb/s", "256 Gb/s", "XGMI", lambda i, j: "N/A KB"))
    assert codes_of(topology) == all_pairs(4, "XGMI")
    assert {link.gb_per_s for link in topology.links} == {None}
    assert "16 Gb/s is the rate of the PCIe slot" in topology.warnings[0]


def test_radeons_without_links():
    text = xgmi_table(2, "65535 Gb/s", "4294967295 Gb/s", "N/A", lambda i, j: "N/A", by_bus_id=False)
    text = text.replace("Gb/s 4294967295 Gb/s", "Gb/s4294967295 Gb/s")
    text += "\nGPU LINK PORT STATUS:\n       bdf           port_num\n"
    text += "".join(f"GPU{i}   {bus(i)}  X  X  X  X\n" for i in range(2))
    text += "\n" + status_table(2, lambda i, j: "N/A")
    topology = read(text)
    assert (topology.pairs, topology.links) == ((), ())
    assert topology.facts["bit_rate_gbps"] is None and topology.facts["max_bandwidth_gbps"] is None
    assert topology.facts["port_status"] == {"GPU0": ["X"] * 4, "GPU1": ["X"] * 4}
    assert "all bits set (65535 Gb/s)" in topology.warnings[0]
    after_the_fix = xgmi_table(2, "N/A", "N/A", "N/A", lambda i, j: "N/A", by_bus_id=False)
    assert read(after_the_fix).facts["bit_rate_gbps"] is None


def test_pcie_gpus():
    topology = read(xgmi_table(2, "16 Gb/s", "256 Gb/s", "PCIE", traffic))
    assert codes_of(topology) == {"GPU0-GPU1": "PCIE"}
    assert {link.kind for link in topology.links} == {"pcie"}


def test_figures_that_differ_are_given_by_gpu():
    text = xgmi_table(2, "32 Gb/s", "512 Gb/s", "XGMI", traffic).replace("512 Gb/s", "500 Gb/s", 1)
    topology = read(text)
    assert topology.facts["max_bandwidth_gbps"] == {"GPU0": 500, "GPU1": 512}
    assert {link.gb_per_s for link in topology.links} == {None}
