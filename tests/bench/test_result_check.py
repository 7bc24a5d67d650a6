"""Results of every collective are right by the check, and what is wrong with one is counted."""

from dataclasses import replace

import numpy as np
import pytest

from attention import LOGSUMEXP, bench
from tests.bench.operators import LOGADD
from tests.bench.problems import results
from topocomm import BXOR, SUM
from topocomm.bench.problem import PERIOD_ROWS, make_problem
from topocomm.bench.result_check import count_wrong, expected
from topocomm.planning.collectives import COLLECTIVES


@pytest.mark.parametrize("collective", sorted({*COLLECTIVES} - {"reduce", "exscan", "gather"}))
@pytest.mark.parametrize("row", [0, PERIOD_ROWS, -1])
def test_one_wrong_number_is_counted_wherever_it_is(collective, row):
    problem = make_problem(collective, SUM, 3 * PERIOD_ROWS + 3, 2)
    result = results(problem)[1]
    (array,) = result.values()
    array[row] += max(1e-4, 1e-4 * abs(array[row]))
    assert count_wrong(problem, result, expected(problem, 1)) == 1


def test_a_part_of_another_rank_is_wrong():
    problem = make_problem("reduce_scatter", SUM, 4000, 2)
    other = results(problem)[0]
    assert count_wrong(problem, other, expected(problem, 1)) > 1990


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinities_are_wrong_unless_expected(value):
    problem = make_problem("allreduce", SUM, 100, 2)
    (segment,) = expected(problem, 0)
    result = {"value": segment.expected["value"].astype(np.float32)}
    assert count_wrong(problem, result, [segment]) == 0
    result["value"][3] = value
    assert count_wrong(problem, result, [segment]) == 1
    segment.expected["value"][3] = value
    assert count_wrong(problem, result, [segment]) == 0


def test_infinite_operands_take_no_tolerance_away():
    def sample(rng, layout):
        values = rng.standard_normal(layout.leading).astype(np.float32)
        values[: 3 if values[0] > 0 else 2] = -np.inf
        return {"value": values}

    problem = make_problem("allreduce", replace(LOGADD, sample=sample), 50, 4)
    for rank, result in enumerate(results(problem)):
        assert count_wrong(problem, result, expected(problem, rank)) == 0


def test_integers_must_be_exact():
    problem = make_problem("allreduce", BXOR, 50, 2)
    result = results(problem)[0]
    result["value"][7] ^= 1
    assert count_wrong(problem, result, expected(problem, 0)) == 1


def test_the_formula_of_the_merge_is_the_fold_by_its_combine():
    problem = make_problem("allreduce", LOGSUMEXP, 40, 5)
    (by_combine,) = expected(problem, 0)
    (by_formula,) = expected(problem, 0, bench.exact)
    for name in ("out", "lse"):
        np.testing.assert_allclose(by_combine.expected[name], by_formula.expected[name], rtol=1e-5, atol=1e-5)
    assert all(array.dtype == np.float64 for array in by_formula.expected.values())


def test_the_formula_of_the_merge_takes_empty_partials():
    empty = {"out": np.zeros((2, 3)), "lse": np.full(2, -np.inf)}
    one = {"out": np.ones((2, 3)), "lse": np.array([0.5, -np.inf])}
    merged = bench.exact([empty, one])
    np.testing.assert_array_equal(merged["lse"], [0.5, -np.inf])
    np.testing.assert_array_equal(merged["out"], [[1, 1, 1], [0, 0, 0]])
