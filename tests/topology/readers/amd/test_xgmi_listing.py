"""The tables of `amd-smi xgmi` as text and as JSON, whole and damaged."""

import json

import pytest

from tests.topology.readers.amd.test_amd_smi_xgmi import read, traffic
from tests.topology.readers.amd.texts import all_pairs, bus, codes_of, status_table, xgmi_table
from topocomm.errors import TopologyError
from topocomm.topology.readers.amd import amd_smi_xgmi


def test_readable_units_and_gpu_numbers_above_the_columns():
    def cell(i, j):
        return ["1.123 PB", "39.61 TB", "229.1 MB", "0 B"][(i + j) % 4]

    topology = read(xgmi_table(8, "38 Gb/s", "608 Gb/s", "XGMI", cell, by_bus_id=False))
    assert {link.gb_per_s for link in topology.links} == {76.0}
    assert topology.facts["bit_rate_gbps"] == 38


def test_short_bus_ids():
    topology = read(xgmi_table(8, "32 Gb/s", "512 Gb/s", "XGMI", traffic).replace("0000:", ""))
    assert topology.by_id["GPU1"].bus_id == "1c:00.0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: text.index("GPU2")], r"dump\.txt:9: 2 GPUs have rows, 4 columns"),
        (lambda text: text[: text.rindex(" Write")], "GPU3 or another GPU has no Read and Write row"),
        (lambda text: text[:-30], r"dump\.txt:14: GPU3: Write has [23] cells, the header 4 columns"),
        (lambda text: text.replace("1 KB", "    ", 1), r"dump\.txt:4: GPU0: Read has 3 cells, the header 4"),
        (lambda text: text.replace("1 KB", "1 Kb", 1), r"dump\.txt:4: GPU0: Read: '1 Kb .*' is no amount"),
        (lambda text: text.replace("32 Gb/s", "fast", 1), r"dump\.txt:3: GPU0: 'fast .* was expected"),
        (lambda text: text.replace(" Write", " Read ", 1), r"dump\.txt:5: GPU0: another Read row"),
        (lambda text: text.replace(" Read ", " Write", 1), r"dump\.txt:5: GPU0: another Write row"),
        (lambda text: text.replace("GPU1", "GPU0"), r"dump\.txt:6: GPU0 is there twice"),
        (lambda text: text.replace(bus(3), "slot3", 1), r"dump\.txt:2: column 'slot3' is neither a GPU nor a bus id"),
        (lambda text: text.replace("GPU0 ", "     ", 1), "a Read row without a GPU above"),
    ],
)
def test_damage_is_refused_with_its_place(change, message):
    with pytest.raises(TopologyError, match=message):
        read(change(xgmi_table(4, "32 Gb/s", "512 Gb/s", "XGMI", traffic)))


def test_damage_to_the_status_table():
    with pytest.raises(TopologyError, match=r"dump\.txt:3: GPU0: unknown state 'Q'"):
        read(status_table(2, lambda i, j: "Q"))
    with pytest.raises(TopologyError, match=r"row GPU0 has 1 cells, the header 2 columns"):
        read(status_table(2, lambda i, j: ""))
    text = status_table(2, lambda i, j: "U") + xgmi_table(3, "32 Gb/s", "512 Gb/s", "XGMI", traffic)
    with pytest.raises(TopologyError, match="the tables name different GPUs"):
        read(text)


def json_of(count, *, rate=32, wrap=False, status=None):
    def amount(i, j):
        return "N/A" if i == j else {"value": 5, "unit": "KB"}

    def unit(value):
        return {"value": value, "unit": "Gb/s"}

    metrics = [
        {
            "gpu": i,
            "bdf": bus(i),
            "link_metrics": {
                "bit_rate": unit(rate),
                "max_bandwidth": unit(16 * rate),
                "link_type": "XGMI",
                "links": [{"gpu": j, "bdf": bus(j), "read": amount(i, j), "write": amount(i, j)} for j in range(count)],
            },
        }
        for i in range(count)
    ]
    document = {"xgmi_metric": [metrics], "source_status": [], "link_status": []} if wrap else metrics
    if status:
        ports = [{"gpu": i, "bdf": bus(i), "link_status": ["U", "X"]} for i in range(count)]
        ends = [["SELF" if i == j else status for j in range(count)] for i in range(count)]
        states = [{"gpu": i, "bdf": bus(i), "link_status": ends[i]} for i in range(count)]
        document |= {"source_status": ports, "link_status": states}
    return json.dumps(document, indent=4)


def test_json():
    old, new = read(json_of(8)), read(json_of(8, wrap=True))
    for topology in (old, new):
        assert codes_of(topology) == all_pairs(8, "XGMI")
        assert {link.gb_per_s for link in topology.links} == {64.0}
        assert topology.facts == {"bit_rate_gbps": 32, "max_bandwidth_gbps": 512, "self": "N/A"}
        assert topology.by_id["GPU7"].bus_id == bus(7)


def test_json_with_states():
    topology = read(json_of(2, wrap=True, status="U/U"))
    assert topology.facts["link_status"] == {"GPU0-GPU1": "U/U"}
    assert topology.facts["port_status"] == {"GPU0": ["U", "X"], "GPU1": ["U", "X"]}
    assert {(link.lanes, link.gb_per_s) for link in topology.links} == {(2, 128.0)}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"link_type": "XGMI"', '"link_type": 2', r"xgmi_metric\[0\]\.link_metrics\.link_type: expected one of XGMI"),
        ('"value": 32', '"value": "fast"', r"xgmi_metric\[0\]\.link_metrics\.bit_rate: expected a number"),
        ('"links"', '"link"', r"link_metrics\.links: expected a list"),
        ('"gpu": 1', '"gpu": 4', r"not one link for each GPU"),
        ('"U/U"', '"u"', r"link_status\[0\]\.link_status: expected a list of U, D, X and N/A"),
        ('"xgmi_metric": [', '"xgmi_metric": [7,', r"xgmi_metric\[0\]: expected an object"),
    ],
)
def test_json_damage_is_refused_with_its_path(old, new, message):
    text = json_of(2, wrap=True, status="U/U").replace(old, new, 1)
    with pytest.raises(TopologyError, match=message):
        read(text)


def test_no_gpu():
    with pytest.raises(TopologyError, match="no GPU under xgmi_metric"):
        amd_smi_xgmi.read('{"xgmi_metric": []}', "dump.txt")
    with pytest.raises(TopologyError, match="no row of a GPU"):
        amd_smi_xgmi.read("LINK METRIC TABLE:\n", "dump.txt")
