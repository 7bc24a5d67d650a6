"""Square tables of AMD's tools: cells that differ, are unknown or damaged, and texts of other lengths."""

import re

import pytest

from tests.topology import damage
from tests.topology.readers.amd.test_amd_smi import MESH, read
from tests.topology.readers.amd.texts import all_pairs, amd_tables, bus, codes_of, xgmi_table
from topocomm.errors import TopologyError
from topocomm.topology.readers.amd import amd_smi, amd_smi_json, amd_smi_xgmi


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


def test_too_many_gpus():
    header = " ".join([bus(0)] * 129)
    with pytest.raises(TopologyError, match="129 GPUs; a host has at most 128"):
        amd_smi.read(f"HOPS TABLE:\n{header}\n", "dump.txt")


def test_the_largest_host_is_read():
    tables = {**MESH, "LINK TYPE": (lambda i, j: "XGMI" if i // 8 == j // 8 else "PCIE", "SELF")}
    text = amd_tables(128, tables)
    assert len(amd_smi.read(text, "dump.txt").pairs) == 128 * 127 // 2


METRICS = "LINK METRIC TABLE:\n bdf bit_rate max_bandwidth link_type GPU0\nGPU0 0000:0b:00.0 32 Gb/s 512 Gb/s XGMI\n"


BANDWIDTH = f"NUMA BW TABLE:\n{bus(0)} {bus(1)}\n{bus(0)} "


@pytest.mark.soak
@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (amd_smi, BANDWIDTH + "AMDSMI_STATUS_X - f " * 50_000),
        (amd_smi, bus(0) + "\nHOPS TABLE:" + "\n" * 1_000_000),
        (amd_smi, bus(0) + "\nHOPS TABLE:" + " " * 1_000_000 + "x"),
        (amd_smi_json, '[{"gpu": 0, "weight":' + "[" * 1_000_000),
        (amd_smi_json, '[{"gpu": 0, "weight": 1' + "\n" * 1_000_000),
        (amd_smi_json, '[{"gpu": 0, "weight": 1' + "] " * 500_000),
        (amd_smi_json, "[\n" * 300_000 + '"gpu", "weight": 1'),
        (amd_smi_xgmi, METRICS + " Read " + "1 KB " * 200_000),
        (amd_smi_xgmi, METRICS.replace("32 Gb/s", "1" * 1_000_000)),
        (amd_smi_xgmi, METRICS.replace("32 Gb/s", "32" + " " * 1_000_000)),
        (amd_smi_xgmi, xgmi_table(128, "32 Gb/s", "512 Gb/s", "PCIE", lambda i, j: "1 KB", by_bus_id=False)),
    ],
    ids=range(11),
)
def test_a_megabyte_is_read(reader, text):
    for other in (amd_smi, amd_smi_json, amd_smi_xgmi):
        other.matches(text)
    damage.attempt(reader, text)
