"""Bandwidths and figures of a row."""

import numpy as np
import pytest

from tests.bench.operators import ADD
from topocomm import SUM, run_local
from topocomm.bench.problem import make_problem
from topocomm.bench.row import Cell, Row, bus_factor, gb_per_s, measure_problem
from topocomm.bench.timing import Pace, Times


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("allreduce", 1.75), ("allgather", 0.875), ("reduce_scatter", 0.875), ("broadcast", 1), ("scan", 1)],
)
def test_bus_factors_on_8_ranks(collective, factor):
    assert bus_factor(collective, 8) == factor


def test_bandwidths_are_decimal():
    assert gb_per_s(10**9, 1e6) == 1.0
    assert gb_per_s(8, 0.0) == 0.0


def test_a_row_without_a_cell_out_of_place_shows_the_other():
    cells = [Cell(Times(np.full(3, us)), 1.0, 1.0, wrong) for us, wrong in ((2.0, None), (4.0, 3))]
    problem = make_problem("allreduce", SUM, 4, 2)
    both, place = Row(problem, "topocomm", *cells), Row(problem, "MPI_Allreduce", None, cells[1])
    assert (both.main, both.wrong, both.is_ours) == (cells[0], 3, True)
    assert (place.main, place.wrong, place.is_ours) == (cells[1], 3, False)
    assert (place.predicted_us, place.predicted_over_measured) == (None, None)


def test_rows_of_a_problem_are_measured_checked_and_freed():
    freed = []

    class Off:
        """A method whose result is off by one, out of place only."""

        name, in_place = "off", False

        def prepare(self, x, out):
            self.out = {name: array + 1 for name, array in x.items()}
            return True

        def run(self):
            return None

        def result(self):
            return self.out

        def free(self):
            freed.append(self)

    problem = make_problem("allreduce", ADD, 50, 2)
    rows = run_local(lambda comm: measure_problem(comm, problem, lambda _: [Off()], Pace(2, 1, 1), None), ranks=2)[0]
    assert [(row.name, row.out_of_place.wrong, row.in_place is None) for row in rows] == [
        ("topocomm", 0, False),
        ("topocomm prepared", 0, False),
        ("off", 100, True),
    ]
    assert rows[0].plan is not None and rows[2].plan is None
    assert len(freed) == 2
