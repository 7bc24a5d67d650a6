"""Values and counts of the bench."""

import numpy as np
import pytest

from attention import LOGSUMEXP
from topocomm import SUM
from topocomm.bench.problem import PERIOD_ROWS, make_problem


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
        ("gather", 40, 2, "none", 0),
        ("alltoall", 40, 2, "none", -1),
    ],
)
def test_sizes_and_counts_are_those_of_nccl_tests(collective, size_bytes, count, redop, root):
    problem = make_problem(collective, SUM, 12, 5)
    assert (problem.size_bytes, problem.count, problem.redop, problem.root) == (size_bytes, count, redop, root)
