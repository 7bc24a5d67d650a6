"""Values, counts, sizes and bandwidths of the bench."""

import numpy as np
import pytest

from attention import LOGSUMEXP
from topocomm import SUM, PlanError
from topocomm.bench.problem import PERIOD_ROWS, make_problem
from topocomm.bench.report.bandwidth import bus_factor, gb_per_s
from topocomm.cli.sizes import parse_sizes


def test_values_repeat_after_a_prime_number_of_rows_and_differ_by_rank():
    problem = make_problem("allreduce", LOGSUMEXP, PERIOD_ROWS + 10, 2)
    first, other = problem.value(0), problem.value(1)
    assert first["out"].shape == (PERIOD_ROWS + 10, 128)
    np.testing.assert_array_equal(first["lse"][PERIOD_ROWS:], first["lse"][:10])
    assert not np.array_equal(first["lse"], other["lse"])
    np.testing.assert_array_equal(problem.value(1)["out"], other["out"])


@pytest.mark.parametrize(
    ("collective", "size_bytes", "count", "redop", "root"),
    [
        ("allreduce", 48, 12, "sum", -1),
        ("reduce", 48, 12, "sum", 0),
        ("broadcast", 48, 12, "none", 0),
        ("allgather", 40, 2, "none", -1),
        ("reduce_scatter", 40, 2, "sum", -1),
    ],
)
def test_sizes_and_counts_are_those_of_nccl_tests(collective, size_bytes, count, redop, root):
    problem = make_problem(collective, SUM, 12, 5)
    assert (problem.size_bytes, problem.count, problem.redop, problem.root) == (size_bytes, count, redop, root)


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("allreduce", 1.75), ("allgather", 0.875), ("reduce_scatter", 0.875), ("broadcast", 1), ("scan", 1)],
)
def test_bus_factors_on_8_ranks(collective, factor):
    assert bus_factor(collective, 8) == factor


def test_bandwidths_are_decimal():
    assert gb_per_s(10**9, 1e6) == 1.0
    assert gb_per_s(8, 0.0) == 0.0


@pytest.mark.parametrize(
    ("text", "row_bytes", "rows"),
    [
        ("8:128:2", 4, (2, 4, 8, 16, 32)),
        ("8:16KiB:8", 516, (1, 7)),
        ("1KiB:1KiB:2", 4, (256,)),
        ("16512", 516, (32,)),
    ],
)
def test_sizes_in_rows(text, row_bytes, rows):
    assert parse_sizes(text, row_bytes) == rows


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("16513", ["--sizes 16513", "516 bytes", "such as 16512"]),
        ("0", ["expected a multiple", "such as 516"]),
        ("8:16", ["FROM:TO:FACTOR"]),
        ("8:16:1", ["the factor over 1"]),
        ("8:16:2:3", ["FROM:TO:FACTOR"]),
        ("16:8:2", ["the first not above the second"]),
        ("0:8:2", ["at least 1 byte"]),
        ("8:x:2", ["--sizes 'x'"]),
    ],
)
def test_bad_sizes_are_named(text, parts):
    with pytest.raises(PlanError) as error:
        parse_sizes(text, 516)
    for part in parts:
        assert part in str(error.value)
