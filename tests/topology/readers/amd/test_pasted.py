"""amd-smi's tables and JSON as they are pasted."""

import json

import pytest

from tests.topology.readers.amd.texts import amd_tables, json_links, xgmi_table
from tests.topology.ways_to_paste import WAYS, assert_survives, read_file
from topocomm.errors import TopologyError

LINKS = json_links(
    2,
    {
        "weight": lambda i, j: 0 if i == j else 15,
        "link_type": lambda i, j: "SELF" if i == j else "XGMI",
        "num_hops": lambda i, j: int(i != j),
    },
)
TEXTS = {
    "topology": amd_tables(3, {"WEIGHT": (lambda i, j: "15", "0"), "LINK TYPE": (lambda i, j: "XGMI", "SELF")}),
    "JSON": LINKS,
    "xgmi": xgmi_table(3, "32 Gb/s", "512 Gb/s", "XGMI", lambda i, j: "1.123 PB"),
}
OTHER = json.dumps([{"gpu": 0, "usage": {"gfx_activity": {"value": 1, "unit": "%"}}}], indent=4)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_ways_to_paste(text, way, tmp_path):
    assert_survives(text, tmp_path, way)


def test_the_json_of_another_command_below(tmp_path):
    both = f"$ amd-smi topology --json\n{LINKS}\n$ amd-smi metric --json\n{OTHER}\n"
    assert read_file(both, tmp_path).pairs == read_file(LINKS, tmp_path).pairs


@pytest.mark.parametrize("first", [LINKS, OTHER])
def test_two_documents_of_which_the_second_counts_are_refused(first, tmp_path):
    with pytest.raises(TopologyError, match=r"capture.txt:\d+: not JSON: Extra data at column 1"):
        read_file(f"{first}\n{LINKS}\n", tmp_path)
