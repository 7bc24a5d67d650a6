"""Methods that the bench compares give right results."""

import numpy as np
import pytest

from attention import LOGSUMEXP
from tests.bench.operators import ADD, ENDS
from tests.bench.problems import results
from topocomm import ARGMAX, BXOR, MAX, PROD, SUM, run_local
from topocomm.bench.libraries import Library
from topocomm.bench.methods import GatherAndFold, LibraryCollective
from topocomm.bench.problem import PERIOD_ROWS, make_problem
from topocomm.bench.result_check import count_wrong, expected
from topocomm.planning.collectives import COLLECTIVES


class Threads(Library):
    """A library of threads, which has an all-gather and a sum."""

    name = "threads"

    def __init__(self, comm):
        self.comm, self.rank, self.size = comm, comm.rank, comm.size

    def title(self, collective):
        return f"threads {collective}"

    def collective(self, name, send, receive, op):
        if name == "allgather":
            return lambda: np.copyto(receive, self.comm.allgather(send).reshape(receive.shape))
        return (lambda: self.comm.allreduce(send, SUM, out=receive)) if op == "sum" else None


def outcome(problem, make):
    """Of every rank: whether the method was prepared, and the wrong elements of its result."""

    def body(comm):
        method = make(Threads(comm), problem)
        if not method.prepare(problem.value(comm.rank), problem.empty_result()):
            return None
        method.run()
        wrong = count_wrong(problem, dict(method.result()), expected(problem, comm.rank))
        method.free()
        return wrong

    return run_local(body, ranks=problem.ranks)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_ours_is_right_in_every_collective(collective, prepared):
    problem = make_problem(collective, SUM, 2 * PERIOD_ROWS + 5, 3)
    for rank, result in enumerate(results(problem, prepared)):
        segments = expected(problem, rank)
        assert (result is None) == (segments == [])
        if result is not None:
            assert count_wrong(problem, result, segments) == 0
            assert sum(segment.rows for segment in segments) == problem.result_rows


@pytest.mark.parametrize("operator", [PROD, MAX, ARGMAX, BXOR, ADD, ENDS, LOGSUMEXP], ids=lambda o: o.name)
@pytest.mark.parametrize("collective", ["allreduce", "scan", "exscan"])
def test_ours_is_right_with_every_kind_of_operator(collective, operator):
    problem = make_problem(collective, operator, 7, 4)
    for rank, result in enumerate(results(problem)):
        assert count_wrong(problem, result, expected(problem, rank)) == 0


@pytest.mark.parametrize("operator", [SUM, LOGSUMEXP, ARGMAX], ids=lambda o: o.name)
def test_gather_and_fold_is_right(operator):
    assert outcome(make_problem("allreduce", operator, 9, 3), GatherAndFold) == [0, 0, 0]


def test_gather_and_fold_leaves_other_collectives_and_large_values():
    assert outcome(make_problem("reduce", SUM, 9, 2), GatherAndFold) == [None, None]
    assert outcome(make_problem("allreduce", SUM, (128 << 18) + 1, 2), GatherAndFold) == [None, None]


@pytest.mark.parametrize(
    ("operator", "wrong"), [(SUM, 0), (MAX, None), (LOGSUMEXP, None)], ids=["sum", "max", "logsumexp"]
)
def test_a_library_does_what_it_has(operator, wrong):
    assert outcome(make_problem("allreduce", operator, 9, 2), LibraryCollective) == [wrong, wrong]
