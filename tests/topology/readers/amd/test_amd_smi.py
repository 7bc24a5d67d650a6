"""`amd-smi topology` as text: any subset of its tables, and what damage to them says."""

import pytest

from tests.topology.dumps import assert_said, each_of, expected
from tests.topology.readers.amd.texts import all_pairs, amd_tables, bus, codes_of
from topocomm.errors import TopologyError
from topocomm.topology.readers.amd import amd_smi, amd_smi_json, amd_smi_xgmi, rocm_smi

MESH = {
    "ACCESS": (lambda i, j: "ENABLED", "ENABLED"),
    "WEIGHT": (lambda i, j: "15", "0"),
    "HOPS": (lambda i, j: "1", "0"),
    "LINK TYPE": (lambda i, j: "XGMI", "SELF"),
    "NUMA BW": (lambda i, j: "64000-128000", "N/A"),
    "CACHE COHERANCY": (lambda i, j: "C" if i + j == 1 else "NC", "SELF"),
    "ATOMICS": (lambda i, j: "64,32" if (i + j) % 2 else "N/A", "SELF"),
    "DMA": (lambda i, j: "T", "SELF"),
    "BI-DIRECTIONAL": (lambda i, j: "F", "SELF"),
}


def read(text):
    assert amd_smi.matches(text)
    assert not any(other.matches(text) for other in (rocm_smi, amd_smi_json, amd_smi_xgmi))
    return amd_smi.read(text, "/a/folder/dump.txt")


def test_all_tables_of_a_mesh():
    topology = read(amd_tables(4, MESH, legend=True))
    assert (topology.name, topology.source) == ("dump", "amd-smi topology")
    assert [(d.id, d.kind, d.bus_id, d.numa) for d in topology.devices] == [
        (f"GPU{i}", "gpu", bus(i), None) for i in range(4)
    ]
    assert codes_of(topology) == all_pairs(4, "XGMI")
    facts = topology.facts
    assert facts["tables"] == list(MESH) and facts["legend"] is True
    assert facts["access"] == all_pairs(4, "ENABLED")
    assert (facts["weight"], facts["hops"]) == (all_pairs(4, 15), all_pairs(4, 1))
    assert facts["numa_bw"] == all_pairs(4, "64000-128000")
    assert facts["coherency"] == {**all_pairs(4, "NC"), "GPU0-GPU1": "C"}
    assert facts["atomics"]["GPU0-GPU2"] == "N/A" and facts["atomics"]["GPU1-GPU2"] == "64,32"
    assert (facts["dma"], facts["bidirectional"]) == (all_pairs(4, "T"), all_pairs(4, "F"))
    assert len(topology.links) == 12 and {(link.kind, link.lanes) for link in topology.links} == {("xgmi", 2)}
    assert {link.gb_per_s for link in topology.links} == {None}
    assert topology.warnings[0].startswith("dump.txt: GB/s of xGMI unknown")


def test_radeons_without_xgmi():
    tables = {
        "ACCESS": (lambda i, j: "DISABLED", "ENABLED"),
        "WEIGHT": (lambda i, j: "72" if i + j > 1 else "40", "0"),
        "HOPS": (lambda i, j: "3" if i + j > 1 else "2", "0"),
        "LINK TYPE": (lambda i, j: "PCIE", "SELF"),
        "NUMA BW": (lambda i, j: "N/A", "N/A"),
        "DMA": (lambda i, j: "N/A", "SELF"),
    }
    topology = read(amd_tables(3, tables))
    assert codes_of(topology) == all_pairs(3, "PCIE")
    assert topology.facts["numa_bw"] == all_pairs(3, None)
    assert topology.facts["dma"] == all_pairs(3, "N/A")
    assert "legend" not in topology.facts
    assert [pair.latency_us for pair in topology.pairs] == [1.6, 2.0, 2.0]
    assert {link.kind for link in topology.links} == {"pcie", "smp"}
    assert topology.warnings == ()


@pytest.mark.parametrize("title", MESH)
def test_one_table_alone(title):
    topology = read(amd_tables(3, {title: MESH[title]}))
    assert topology.facts["tables"] == [title]
    assert codes_of(topology) == (all_pairs(3, "XGMI") if title == "LINK TYPE" else {})
    assert len(topology.devices) == 3


def test_bandwidth_alone_names_links_but_no_code():
    # A square of links; the driver has no figure for pairs across.
    def cell(i, j):
        return "50000-50000" if (i - j) % 2 else "0-0"

    topology = read(amd_tables(4, {"NUMA BW": (cell, "N/A")}))
    assert topology.pairs == ()
    assert {frozenset((link.src, link.dst)) for link in topology.links} == {
        frozenset(pair) for pair in [("GPU0", "GPU1"), ("GPU1", "GPU2"), ("GPU2", "GPU3"), ("GPU3", "GPU0")]
    }


def test_partitions_with_one_bus_id():
    text = amd_tables(3, {"LINK TYPE": MESH["LINK TYPE"]}).replace(bus(2), bus(1))
    topology = read(text)
    assert [d.bus_id for d in topology.devices] == [bus(0), bus(1), bus(1)]
    assert codes_of(topology) == all_pairs(3, "XGMI")
    assert "the same bus id" in topology.warnings[0]


def test_prompt_warnings_and_escapes_around():
    text = "$ amd-smi topology\nWARNING: User is missing the following required groups: render\n\x1b[0m" + amd_tables(
        3, MESH
    )
    topology = read(text.replace("\n", "\r\n"))
    assert codes_of(topology) == all_pairs(3, "XGMI")


def test_no_table():
    with pytest.raises(TopologyError, match="no table"):
        amd_smi.read("HOPS TABLE:\n", "dump.txt")


@each_of("amd-smi-topology", "amd-smi-xgmi")
def test_facts(path):
    text = path.read_text()
    facts = expected(path)
    (reader,) = [reader for reader in (amd_smi, amd_smi_json, amd_smi_xgmi) if reader.matches(text)]
    if facts["malformed"]:
        with pytest.raises(TopologyError, match=r"\.json:14: not JSON at column 13, and lines were left out"):
            reader.read(text, path.name)
        return
    topology = reader.read(text, path.name)
    said = {
        **topology.facts,
        "gpus": sum(d.kind == "gpu" for d in topology.devices),
        "busids": {d.id: d.bus_id for d in topology.devices if d.bus_id} or None,
        "links": {f"{pair.a}-{pair.b}": pair.code for pair in topology.pairs} or None,
    }
    assert_said(said, facts, but={"malformed", "format"}, absent=None)
