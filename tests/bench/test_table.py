"""The table keeps nccl-tests' columns, and fits a narrow terminal."""

import numpy as np
import pytest

from topocomm import SUM, catalog, plan
from topocomm.bench.facts import Facts
from topocomm.bench.problem import make_problem
from topocomm.bench.row import Cell, Row
from topocomm.bench.table import Table, average_bus_gb_per_s, figure
from topocomm.bench.timing import Times

FACTS = Facts(2, ("host0",), 4, 2, {"shared memory": 1}, "mpi", "Open MPI v5", {"topocomm": "0", "python": "3"}, "CPU")
PROBLEM = make_problem("allreduce", SUM, 1 << 20, 2)


def cell(wrong, us=1000.0, bus=4.0):
    return Cell(Times(np.full(5, us), 1), 4.0, bus, wrong)


def rows(wrong=0):
    made = plan(catalog("cpu-2-socket"), payload_bytes=PROBLEM.size_bytes, operator=SUM, ranks=None)
    ours = Row(PROBLEM, "topocomm", cell(wrong), cell(0), made, "shared memory")
    return [ours, Row(PROBLEM, "3 all-reduces + rescale", cell(None, bus=100.0), None)]


def test_the_first_thirteen_columns_are_those_of_nccl_tests():
    table = Table(None)
    head = table.head(FACTS, [PROBLEM], [rows()[0].plan], "kernel k/1").splitlines()
    half = ["time", "algbw", "busbw", "#wrong"]
    assert head[-2].split()[:14] == ["#", "size", "count", "type", "redop", "root", *half, *half]
    assert head[-1].split()[:9] == ["#", "(B)", "(elements)", *["(us)", "(GB/s)", "(GB/s)"] * 2]
    line = table.row(rows()[0])
    assert line.split()[:5] == ["4194304", "1048576", "float32", "sum", "-1"]
    assert line.split()[5:13] == ["1000.0", "4.00", "4.00", "0"] * 2
    assert line.split()[-1] == "topocomm"
    # A column ends where its name ends, at nccl-tests' own places.
    for name, end in (("size", 12), ("count", 26), ("redop", 44), ("time", 61), ("#wrong", 85)):
        assert head[-2][:end].endswith(name)
        assert line[end - 1] != " "
        assert line[end] == " "


def test_what_was_not_checked_or_not_done_is_no_number():
    assert Table(None).row(rows()[1]).split()[8:13] == ["N/A", "-", "-", "-", "N/A"]


@pytest.mark.parametrize("wrong", [0, 3])
def test_the_foot(wrong):
    foot = Table(None).foot(rows(wrong)).splitlines()
    assert foot[0] == f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    assert foot[1] == "# Avg bus bandwidth    : 4", "of ours alone"
    assert average_bus_gb_per_s([]) == 0


@pytest.mark.parametrize("columns", [80, 100, 180])
def test_a_narrow_terminal_gets_lines_that_fit(columns):
    table = Table(columns)
    text = table.head(FACTS, [PROBLEM], [rows()[0].plan], "kernel k/1") + "".join(map(table.row, rows(1)))
    assert max(map(len, text.splitlines())) <= min(columns, 100)
    assert "3 all-reduces + rescale" in text
    assert not Table(200).narrow


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.001, "   0.00"), (123.456, " 123.46"), (12345.6, "  12346"), (1234567.0, "1234567"), (None, "      -")],
)
def test_figures_keep_their_width(value, text):
    assert figure(value) == text


def test_a_figure_too_long_for_its_column_is_short_in_powers():
    assert len(figure(123456789.0)) == 7


def test_80_columns_leave_out_what_was_done_in_place():
    head = Table(80).head(FACTS, [PROBLEM], [], "kernel").splitlines()
    assert "in-place" not in "".join(head[-3:])
    wide, slim = (Table(columns).row(rows()[0]).split() for columns in (120, 80))
    assert slim == [*wide[:-4], wide[-2]]
