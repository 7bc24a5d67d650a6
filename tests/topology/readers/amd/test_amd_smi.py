"""`amd-smi topology` as text: any subset of its tables, and what damage to them says."""

import re

import pytest

from tests.topology.readers.amd.texts import all_pairs, amd_tables, bus, codes_of, readable
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


def test_types_the_tool_does_not_know():
    def cell(i, j):
        return {1: "UNKNOWN", 2: "N/A"}.get(i + j, "XGMI")

    topology = read(amd_tables(3, {"LINK TYPE": (cell, "SELF")}))
    assert codes_of(topology) == {"GPU0-GPU1": "UNKNOWN", "GPU0-GPU2": None, "GPU1-GPU2": "XGMI"}


def test_an_error_in_the_bandwidth_cells():
    text = amd_tables(2, {"NUMA BW": (lambda i, j: "AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported", "N/A")})
    assert read(text).facts["numa_bw"] == {"GPU0-GPU1": None}
    text = amd_tables(3, {"NUMA BW": (lambda i, j: "AMDSMI_STATUS_NO_DATA - No data was found", "N/A")})
    assert read(text).facts["numa_bw"] == all_pairs(3, None)


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


def test_a_second_listing_is_not_read():
    text = amd_tables(2, MESH)
    topology = read(text + "\n" + amd_tables(2, {"ACCESS": (lambda i, j: "DISABLED", "ENABLED")}))
    assert topology.facts["access"] == {"GPU0-GPU1": "ENABLED"}
    assert any("a second listing" in warning for warning in topology.warnings)


def test_capabilities_that_differ_by_direction_are_unknown():
    text = amd_tables(2, {"DMA": (lambda i, j: "T" if i < j else "F", "SELF")})
    topology = read(text)
    assert topology.facts["dma"] == {"GPU0-GPU1": None}
    assert topology.warnings == ("dump.txt: DMA: the two cells of GPU0-GPU1 differ",)


def test_a_type_lost_one_way_is_read_from_the_other():
    text = amd_tables(2, {"LINK TYPE": (lambda i, j: "XGMI" if i < j else "N/A", "SELF")})
    assert codes_of(read(text)) == {"GPU0-GPU1": "XGMI"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: text.rindex(bus(2))], r"dump\.txt:4: LINK TYPE: no row for"),
        (lambda text: text.replace("XGMI ", "     ", 1), r"dump\.txt:3: LINK TYPE: row \S+ has 2 cells, the header 3"),
        (lambda text: text.replace("XGMI", "PCIE", 1), r"dump\.txt:4: LINK TYPE: not symmetric: GPU0-GPU1 is 'PCIE'"),
        (lambda text: text.replace("XGMI", "XGM", 1), r"dump\.txt:3: LINK TYPE: GPU0-GPU1 is 'XGM'"),
        (lambda text: text.replace("XGMI", "15", 1), r"GPU0-GPU1 is '15'; that is a cell of 'weight'"),
        (lambda text: text.replace("SELF", "XGMI", 1), r"dump\.txt:3: LINK TYPE: GPU0-GPU0 is 'XGMI'"),
        (lambda text: text.replace(f"\n{bus(1)}", "\n...\n" + bus(1)), r"dump\.txt:4: rows were left out"),
        (lambda text: text.replace(f"\n{bus(1)}", "\n" + bus(2)), r"dump\.txt:4: LINK TYPE: row \S+ where the header"),
        (lambda text: re.sub(r"\n {13}.*", "", text), r"a row without a header"),
    ],
)
def test_damage_is_refused_with_its_place(change, message):
    text = amd_tables(3, {"LINK TYPE": MESH["LINK TYPE"]})
    with pytest.raises(TopologyError, match=message):
        read(change(text))


def test_tables_of_two_machines():
    text = amd_tables(2, {"ACCESS": MESH["ACCESS"]}) + amd_tables(3, {"HOPS": MESH["HOPS"]})
    with pytest.raises(TopologyError, match="HOPS names other GPUs than ACCESS"):
        read(text)


def test_no_table():
    with pytest.raises(TopologyError, match="no table"):
        amd_smi.read("HOPS TABLE:\n", "dump.txt")


def test_too_many_gpus():
    header = " ".join([bus(0)] * 129)
    with pytest.raises(TopologyError, match="129 GPUs; a host has at most 128"):
        amd_smi.read(f"HOPS TABLE:\n{header}\n", "dump.txt")


def test_mutations():
    text = amd_tables(4, MESH, legend=True)
    assert readable(amd_smi, text, 1) > 20


def test_the_largest_host_is_read():
    tables = {**MESH, "LINK TYPE": (lambda i, j: "XGMI" if i // 8 == j // 8 else "PCIE", "SELF")}
    text = amd_tables(128, tables)
    assert len(amd_smi.read(text, "dump.txt").pairs) == 128 * 127 // 2
