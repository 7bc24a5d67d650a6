"""The JSON of nccl-tests, whole and cut off."""

import json

import pytest

from topocomm import TopocommError
from topocomm.calibration.readers import nccl_tests_json


def document(**changes):
    cell = {"time": 50.0, "alg_bw": 20.97152, "bus_bw": 31.457, "nwrong": None}
    result = {"size": 1 << 20, "count": 1 << 18, "type": "float", "redop": "sum", "root": "    -1"}
    devices = [{"rank": rank, "hostname": f"host{rank // 2}", "device": rank % 2} for rank in range(4)]
    whole = {
        "version": 1,
        "args": ["./build/all_reduce_perf", "-b", "1M"],
        "env": ["PATH=/bin", "NCCL_ALGO=Ring"],
        "nccl_version": 22703,
        "config": {"nthreads": 1, "devices": devices},
        "results": [{**result, "out_of_place": cell, "in_place": {**cell, "time": 49.0}}],
    }
    return json.dumps({**whole, **changes}, indent=1)


def test_a_document():
    (table,) = nccl_tests_json.read(document(), "a.json")
    assert (table.collective, table.ranks, table.hosts, table.library) == ("allreduce", 4, 2, "NCCL 2.27.3")
    assert table.rows == ((1 << 20, 50.0),)
    assert table.env == {"NCCL_ALGO": "Ring"}


def test_in_place_where_there_is_no_other():
    results = json.loads(document())["results"]
    results[0]["out_of_place"] = None
    results[0]["in_place"]["alg_bw"] = 21.4
    assert nccl_tests_json.read(document(results=results), "a.json")[0].rows == ((1 << 20, 49.0),)


def test_a_document_cut_off_names_its_line():
    text = document()
    with pytest.raises(TopocommError, match=r"a\.json: line \d+: no JSON .*cut off"):
        nccl_tests_json.read(text[: len(text) // 2], "a.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"results": []}, r"a\.json: no `results`"),
        ({"results": [{"size": 8}]}, r"a\.json: results\[0\]: KeyError.*expected size and out_of_place"),
        ({"args": []}, r"a\.json: args \[\]: expected the program's name"),
    ],
)
def test_what_is_missing_is_named(changes, message):
    with pytest.raises(TopocommError, match=message):
        nccl_tests_json.read(document(**changes), "a.json")


@pytest.mark.parametrize(("key", "value", "message"), [("time", 0, "over 0"), ("alg_bw", 2.0, "disagrees")])
def test_times_and_bandwidths_are_checked(key, value, message):
    results = json.loads(document())["results"]
    results[0]["out_of_place"][key] = value
    with pytest.raises(TopocommError, match=rf"results\[0\]: .*{message}"):
        nccl_tests_json.read(document(results=results), "a.json")
