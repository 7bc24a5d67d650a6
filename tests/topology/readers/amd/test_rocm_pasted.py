"""rocm-smi's tables as they are pasted."""

import re

import pytest

from tests.topology.readers.amd.texts import rocm_tables
from tests.topology.ways_to_paste import WAYS, assert_survives, read_file

TABLES = {
    "Weight between two GPUs": lambda i, j: "15" if i // 2 == j // 2 else "72",
    "Hops between two GPUs": lambda i, j: "1" if i // 2 == j // 2 else "3",
    "Link Type between two GPUs": lambda i, j: "XGMI" if i // 2 == j // 2 else "PCIE",
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_paste(way, tmp_path):
    assert_survives(rocm_tables(4, TABLES, [(i // 2, i // 2) for i in range(4)]), tmp_path, way)


@pytest.mark.parametrize("sign", ["-", "*", "# "])
def test_titles_between_other_signs(sign, tmp_path):
    text = rocm_tables(4, TABLES, [(i // 2, i // 2) for i in range(4)])
    other = re.sub(r"=+ ((?:Weight|Hops|Link|Numa)[^=]*) =+", rf"{sign * 12} \1 {sign * 12}", text)
    assert other.count("=") < text.count("=")
    assert read_file(other, tmp_path).pairs == read_file(text, tmp_path).pairs
