"""Predictions beside measurements."""

import json

import pytest

from tools.netlab.commands import main
from tools.netlab.prediction import Held, held, order_share, summary


def row(way, measured_us, predicted_us, size=1 << 20):
    return {"way": way, "bytes": size, "median_us": measured_us, "planner_us": predicted_us}


def test_rows_with_a_prediction_are_held_against_it():
    document = {"sums": {"rows": [row("topocomm ring", 200.0, 150.0), row("Open MPI default", 300.0, None)]}}
    (found,) = held(document, lambda row: row["planner_us"])
    assert found == Held("sums", "topocomm ring", 1 << 20, 150.0, 200.0)
    assert found.error == pytest.approx(0.25)


def test_the_order_counts_where_times_differ():
    rows = [
        Held("sums", name, 1, *times)
        for name, times in {"a": (1, 10), "b": (2, 10.5), "c": (3, 20), "d": (2.5, 30)}.items()
    ]
    assert order_share(rows) == (4, 5)  # a and b are alike; c and d are predicted the other way round
    assert order_share([*rows, Held("sums", "e", 2, 9, 1)]) == (4, 5)  # of another size


def test_the_summary_has_errors_and_order(tmp_path, capsys):
    document = {"sums": {"rows": [row("a", 100.0, 90.0), row("b", 200.0, 210.0)]}}
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(document))
    assert main(["compare", str(path)]) == 0
    said = capsys.readouterr().out
    assert "median error 7.5% of 2" in said
    assert "order right in 1 of 1 pairs that differ by more than 10 % (100%)" in said
    assert summary([]) == "no schedule of ours in these figures"


@pytest.mark.parametrize("text", ["", "[]", '{"sums": {"rows": [{}]}}'])
def test_other_files_are_refused(tmp_path, capsys, text):
    path = tmp_path / "figures.json"
    path.write_text(text)
    assert main(["compare", str(path)]) == 2
    assert f"{path}: not what `measure` writes" in capsys.readouterr().err
