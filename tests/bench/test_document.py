"""JSON and CSV of rows."""

import csv
import io
import json

import numpy as np
import pytest

from tests.bench.test_table import FACTS
from topocomm import SUM
from topocomm.bench.document import CELL_KEYS, dump_csv, dump_json
from topocomm.bench.problem import make_problem
from topocomm.bench.row import Cell, Row
from topocomm.bench.timing import Times

TIMES = Times(np.array([1.0, 2.0, 3.0, 4.0]), calls=8)
ROWS = [
    Row(make_problem("allreduce", SUM, 4, 2), "topocomm", Cell(TIMES, 2.0, 4.0, 0), Cell(TIMES, 1.0, 2.0, 5)),
    Row(make_problem("allreduce", SUM, 4, 2), "MPI_Allreduce", None, Cell(TIMES, 1.0, 2.0, None)),
]


def test_json_keeps_the_keys_of_nccl_tests():
    document = json.loads(dump_json(FACTS, ROWS, {"sizes": "16"}))
    assert (document["schema"], document["config"]) == ("topocomm.bench/1", {"sizes": "16"})
    assert document["out_of_bounds"] == {"count": 5, "okay": False}
    assert document["average_bus_bandwidth"]["bandwidth"] == pytest.approx(3.0)
    ours, other = document["results"]
    assert ours["out_of_place"] == {
        **{"time": 2.5, "alg_bw": 2.0, "bus_bw": 4.0, "nwrong": 0},
        **{"p25_us": 1.75, "p50_us": 2.5, "p75_us": 3.25, "p99_us": pytest.approx(3.97)},
    }
    assert (ours["size"], ours["count"], ours["actual_iterations"]) == (16, 4, 32)
    assert (other["out_of_place"], other["in_place"]["nwrong"], other["plan_digest"]) == (None, None, None)


def test_csv_has_the_same_rows_with_empty_cells_for_null():
    ours, other = csv.DictReader(io.StringIO(dump_csv(ROWS)))
    assert [key for key in ours if key.startswith("in_place_")] == [f"in_place_{key}" for key in CELL_KEYS]
    assert (ours["out_of_place_time"], ours["in_place_nwrong"]) == ("2.5", "5")
    assert (other["out_of_place_time"], other["in_place_nwrong"]) == ("", "")
