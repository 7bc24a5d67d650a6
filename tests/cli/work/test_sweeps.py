"""Sweeps: tables, what does not apply."""

import pytest

from topocomm import PlanError
from topocomm.cli.options.sweep_values import Sweep
from topocomm.cli.work.sweeps import Row, sweep, sweep_document, sweep_text


def times(value, name):
    if name == "halving" and value == 3:
        raise PlanError("no power of two")
    return value * {"ring": 10.0, "halving": 5.5}[name]


def test_rows_have_every_algorithm_and_progress_says_what_comes():
    told = []
    rows = sweep(Sweep("hosts", (2, 3)), ("ring", "halving"), times, told.append)
    assert rows == [
        Row(2, {"ring": 20.0, "halving": 11.0}, {}),
        Row(3, {"ring": 30.0, "halving": None}, {"halving": "no power of two"}),
    ]
    assert told[0] == "1 of 2: hosts 2, ring"
    assert len(told) == 4
    assert sweep_text(Sweep("hosts", (2, 3)), rows) == [
        "hosts       ring    halving fastest",
        "    2      20.00      11.00 halving",
        "    3      30.00          - ring",
        "- halving: no power of two",
    ]
    assert sweep_text(Sweep("hosts", (2, 3)), rows, 24)[:6] == [
        *("hosts       ring", "    2      20.00", "    3      30.00"),
        *("", "hosts    halving fastest", "    2      11.00 halving"),
    ]
    assert sweep_document(Sweep("hosts", (2, 3)), rows)["rows"][1] == {
        "value": 3,
        "times_us": {"ring": 30.0, "halving": None},
        "not_possible": {"halving": "no power of two"},
    }


def test_an_algorithm_that_never_applies_is_refused():
    with pytest.raises(PlanError, match="no power of two"):
        sweep(Sweep("hosts", (3,)), ("ring", "halving"), times)
