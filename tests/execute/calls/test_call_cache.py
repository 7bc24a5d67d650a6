"""The calls that a communicator keeps: as many as fit, the same on all ranks, never one that the caller holds."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.mpi import mpirun
from topocomm import SUM, OperatorError, run_local
from topocomm.execute.calls import call_cache
from topocomm.operators.builtin import MAX

ROOT = Path(__file__).parents[3]
SHAPES = [(12,), (3, 4), (4, 3), (2, 6), (6, 2), (1, 12), (12, 1), (2, 2, 3), (2, 3, 2), (3, 2, 2)]
"""Of as many items each: one plan serves all."""
LEAST = 3


@pytest.fixture
def few_calls(monkeypatch):
    monkeypatch.setattr(call_cache, "MOST_CALLS", LEAST)


def shapes_of(comm, op=SUM):
    """The shapes of the calls of one operator that are kept."""
    kind = comm._calls.kinds.get(op)
    return [] if kind is None else [key[1] for key in kind.calls]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_the_oldest_calls_go_on_all_ranks_alike(few_calls, ranks):
    def body(comm):
        kept = []
        for _ in range(2):
            for number, shape in enumerate(SHAPES):
                result = comm.allreduce(np.full(shape, comm.rank + number), SUM)
                np.testing.assert_array_equal(result, np.full(shape, ranks * number + ranks * (ranks - 1) // 2))
                kept.append(shapes_of(comm))
                assert len(comm._calls) <= LEAST
        return kept

    kept = run_local(body, ranks=ranks)
    assert all(one == kept[0] for one in kept)
    assert kept[0][: LEAST + 1] == [SHAPES[:1], SHAPES[:2], SHAPES[:3], SHAPES[1:4]]


def test_a_call_that_went_is_made_again(few_calls):
    def body(comm):
        before = comm.allreduce(np.full(SHAPES[0], comm.rank), SUM)
        plans = [comm._calls.find(SUM, np.zeros(shape, int)).plan for shape in SHAPES]
        assert SHAPES[0] not in shapes_of(comm)
        assert all(plan is plans[0] for plan in plans)
        return before, comm.allreduce(np.full(SHAPES[0], comm.rank), SUM)

    for before, after in run_local(body, ranks=3):
        np.testing.assert_array_equal(before, after)


def test_calls_go_by_their_bytes(monkeypatch):
    monkeypatch.setattr(call_cache, "MOST_BYTES", 1000)

    def body(comm):
        for shape in SHAPES:
            comm.allreduce(np.zeros(shape), SUM)
            assert len(comm._calls) == 1 or comm._calls.bytes <= 1000
        many = len(comm._calls)
        comm.allreduce(np.ones(5000), SUM)  # larger than all that may be kept: it is kept alone
        return many, len(comm._calls)

    for many, alone in run_local(body, ranks=2):
        assert 1 < many < len(SHAPES)
        assert alone == 1


def test_kinds_go_with_their_last_call(few_calls):
    def body(comm):
        comm.allreduce(np.zeros(2), MAX)
        for shape in SHAPES:
            comm.allreduce(np.zeros(shape), SUM)
        return list(comm._calls.kinds), comm._calls._users.total()

    for kinds, users in run_local(body, ranks=2):
        assert kinds == [SUM]
        assert users == LEAST


def test_a_prepared_call_stays_the_callers(few_calls):
    def body(comm):
        call = comm.prepare("allreduce", like=np.zeros(SHAPES[0]), operator=SUM)
        send = call.input
        for shape in SHAPES:
            comm.allreduce(np.ones(shape), SUM)
        if send is not None:
            send[...] = comm.rank
        return call(np.full(SHAPES[0], float(comm.rank)) if send is None else send)

    for result in run_local(body, ranks=3):
        np.testing.assert_array_equal(result, np.full(SHAPES[0], 3.0))


@pytest.mark.parametrize("collective", ["allreduce", "reduce"])
def test_calls_go_while_another_is_under_way(few_calls, collective):
    def body(comm):
        call = comm.prepare(collective, like=np.zeros(7), operator=SUM)
        totals = []
        for number in range(3):
            handle = call.start(np.full(7, float(comm.rank + number)))
            for shape in SHAPES:
                np.testing.assert_array_equal(comm.allreduce(np.ones(shape), SUM), np.full(shape, 3.0))
            totals.append(handle.wait())
        return totals

    for rank, totals in enumerate(run_local(body, ranks=3)):
        for number, total in enumerate(totals):
            if collective == "allreduce" or rank == 0:
                np.testing.assert_array_equal(total, np.full(7, 3.0 + 3 * number))


def test_a_value_that_fits_no_call_leaves_none(few_calls):
    def body(comm):
        with pytest.raises(OperatorError):
            comm.allreduce("text", SUM)
        return len(comm._calls), comm.allreduce(np.ones(2), SUM)

    for calls, result in run_local(body, ranks=2):
        assert calls == 0
        np.testing.assert_array_equal(result, [2.0, 2.0])


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_more_shapes_than_files(ranks):
    program = ROOT / "tests/execute/mpi_programs/many_shapes.py"
    job = mpirun(ranks, [program], timeout_s=240.0, env={"PYTHONPATH": str(ROOT)})
    assert job.returncode == 0, job.stderr[-3000:]
    said = re.search(r"many shapes ok: (\d+) files, (\d+) calls", job.stdout)
    assert said is not None, job.stdout
    assert int(said[2]) == call_cache.MOST_CALLS
