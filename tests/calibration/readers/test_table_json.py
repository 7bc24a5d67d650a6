"""Tables of public measurements as JSON."""

import json

import pytest

from topocomm import TopocommError
from topocomm.calibration.readers import table_json


def document(**changes):
    whole = {
        "slug": "box_2x4_all_reduce",
        "machine": "4x V100, 2x IB EDR",
        "n_hosts": 2,
        "n_gpus": 8,
        "collective": "all_reduce",
        "library": "NCCL 2.8.4",
        "env": {"NCCL_ALGO": "Ring"},
        "suspect": False,
        "rows": [{"bytes": 1048576, "time_us": 198.7, "algbw_GBps": 5.28, "busbw_GBps": 9.24}],
    }
    return json.dumps({**whole, **changes}, indent=1)


def read(**changes):
    return table_json.read(document(**changes), "box.json")


def test_a_table():
    (table,) = read()
    assert (table.name, table.collective, table.ranks, table.hosts) == ("box_2x4_all_reduce", "allreduce", 8, 2)
    assert (table.memory, table.suspect, table.env) == ("device", None, {"NCCL_ALGO": "Ring"})
    assert table.rows == ((1048576, 198.7),)


def test_host_memory_pairs_and_suspects():
    (table,) = read(collective="pt2pt_pairs", n_gpus=0, n_ranks=8, env={"pairs": 4}, suspect=True, reason="old plug-in")
    assert (table.collective, table.memory, table.ranks, table.pairs) == ("message", "host", 8, 4)
    assert table.suspect == "old plug-in"


def test_matrices_are_no_table():
    text = json.dumps({"machine": "x", "collective": "p2p_matrix", "matrices": {}})
    assert table_json.read(text, "box.json") == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": []}, r"box\.json: no rows"),
        ({"rows": [{"bytes": 8}]}, r"box\.json: rows\[0\]: KeyError"),
        ({"rows": [{"bytes": 8, "time_us": -1}]}, r"box\.json: rows\[0\]: time -1 us"),
        ({"rows": [{"bytes": 1048576, "time_us": 100.0, "algbw_GBps": 5.28}]}, r"rows\[0\]: algbw 5.28 GB/s disagrees"),
        ({"collective": "hypercube"}, r"box\.json: collective 'hypercube' is not known"),
    ],
)
def test_bad_documents(changes, message):
    with pytest.raises(TopocommError, match=message):
        read(**changes)


def test_what_may_be_missing_and_what_not():
    whole = json.loads(document())
    del whole["n_hosts"], whole["env"]
    assert table_json.read(json.dumps(whole), "box.json")[0].hosts is None
    del whole["library"]
    with pytest.raises(TopocommError, match=r"box\.json: no 'library'"):
        table_json.read(json.dumps(whole), "box.json")


def test_a_document_cut_off_names_its_line():
    text = document()
    with pytest.raises(TopocommError, match=r"box\.json: line \d+: no JSON"):
        table_json.read(text[:-60], "box.json")
