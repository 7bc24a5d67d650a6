"""Predictions beside measurements."""

import json
import re
from statistics import median

import pytest

from tests.tools.netlab.conftest import ROOT
from tools.netlab.commands import main
from tools.netlab.network import racks
from tools.netlab.prediction import Held, Simulator, held, order_share, summary
from topocomm.operators.builtin import SUM
from topocomm.planning.collectives import Collective
from topocomm.planning.planner import every_plan
from topocomm.planning.request import layout_of, on_every_endpoint
from topocomm.topology.readers.plain.topology_json import to_document

LAB = racks(4, 2, 100.0, 2)


def row(way, measured_us, predicted_us, size=1 << 20):
    return {
        "way": way,
        "collective": "allreduce",
        "operator": "sum",
        "bytes": size,
        "median_us": measured_us,
        "planner_us": predicted_us,
    }


def test_rows_with_a_prediction_are_held_against_it():
    document = {"sums": {"rows": [row("topocomm ring", 200.0, 150.0), row("Open MPI default", 300.0, None)]}}
    (found,) = held(document, lambda part, row: row["planner_us"])
    assert found == Held("sums", "topocomm ring", 1 << 20, 150.0, 200.0)
    assert found.error == pytest.approx(0.25)


def test_the_order_counts_where_times_differ():
    rows = [
        Held("sums", name, 1, *times)
        for name, times in {"a": (1, 10), "b": (2, 10.5), "c": (3, 20), "d": (2.5, 30)}.items()
    ]
    assert order_share(rows) == (4, 5)  # a and b are alike; c and d are predicted the other way round
    assert order_share([*rows, Held("sums", "e", 2, 9, 1)]) == (4, 5)  # of another size


def test_planner_and_simulator_are_held_against_the_times(tmp_path, capsys):
    request = on_every_endpoint(LAB, Collective("allreduce", 8), SUM, layout_of(SUM, 1 << 20))
    plans = every_plan(LAB, request)[:4]
    rows = [row(f"topocomm {p.algorithm}", p.figures.predicted_us, p.figures.predicted_us) for p in plans]
    rows.append(row("Open MPI default", 1.0, None))
    document = {"two-tier": {"topology": to_document(LAB), "rows": rows}}
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(document))
    assert main(["compare", str(path)]) == 0
    planner, simulator = capsys.readouterr().out.split("by the simulator")
    assert "median error 0.0% of 4" in planner and "Open MPI" not in planner
    # the simulator lets the messages of a round share links; both agree on schedules of one message a round
    assert float(re.search(r"median error ([\d.]+)% of 4", simulator)[1]) < 10.0


def test_the_simulator_says_what_was_measured():
    """The measurement of docs/results/netlab.md: 49 schedules and sizes."""
    document = json.loads((ROOT / "docs/results/netlab.json").read_text())
    rows = held(document, Simulator(document).time_us)
    right, count = order_share(rows)
    assert len(rows) == 49
    assert median(row.error for row in rows) <= 0.15
    assert right >= 0.9 * count > 90


def test_nothing_of_ours_is_said():
    assert summary([]) == "no schedule of ours in these figures"


@pytest.mark.parametrize("text", ["", "[]", '{"sums": {"rows": [{}]}}'])
def test_other_files_are_refused(tmp_path, capsys, text):
    path = tmp_path / "figures.json"
    path.write_text(text)
    assert main(["compare", str(path)]) == 2
    assert f"{path}: not what `measure` writes" in capsys.readouterr().err
