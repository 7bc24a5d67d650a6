"""What JAX calls back: NumPy arrays in and out, here on threads."""

import numpy as np
import pytest

pytest.importorskip("jax", reason="needs jax: make test-jax")

from topocomm import SUM, MismatchError, OperatorError, run_local
from topocomm.jax.host_side import JOINED_BYTES, Collective, perform

LONG = JOINED_BYTES // 4 + 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall"])
def test_results_have_the_shapes_that_were_said(name, ranks):
    def work(comm):
        operator = SUM if "reduce" in name else None
        what = Collective(name, comm, operator, root=ranks - 1)
        operands = [np.full(shape, comm.rank, np.float32) for shape in [(7, 2), (0, 3), (5,)]]
        results = perform(what, operands)
        assert [result.shape for result in results] == [what.result_shape(operand.shape) for operand in operands]
        return results[0].sum()

    sums = {"allreduce": 14 * sum(range(ranks)), "broadcast": 14 * (ranks - 1), "allgather": 14 * sum(range(ranks))}
    found = run_local(work, ranks=ranks)
    if name in sums:
        assert found == [sums[name]] * ranks
    else:
        assert sum(found) == 14 * sum(range(ranks))


def test_short_arrays_of_a_dtype_are_one_call():
    def work(comm):
        operands = [np.ones(shape, dtype) for shape in [(), (3, 2), (4,)] for dtype in (np.float32, np.int64)]
        before = comm.session.recorder.calls
        results = perform(Collective("allreduce", comm, SUM), [*operands, np.ones(LONG, np.float32)])
        assert [result.dtype for result in results] == [*[x.dtype for x in operands], np.float32]
        assert all((result == 2).all() for result in results)
        first = comm.session.recorder.calls - before
        perform(Collective("allreduce", comm, SUM), [*operands, np.ones(LONG, np.float32)])
        return first, comm.session.recorder.calls - before - first

    assert {calls for _, calls in run_local(work, ranks=2)} == {3}


def test_rows_that_differ_end_the_call_on_the_ranks_that_see_it():
    def work(comm):
        try:
            perform(Collective("allgather", comm), [np.ones((1 + comm.rank, 2))])
        except MismatchError as error:
            return str(error)

    told = run_local(work, ranks=2)
    assert "rank 0: topocomm.jax.allgather: expected 2 rows in all, as all ranks have 1, got 3" in told[0]
    assert "rank 1: topocomm.jax.allgather: expected 4 rows" in told[1]


def test_a_scalar_has_no_rows():
    def work(comm):
        with pytest.raises(OperatorError, match=r"jax.alltoall: expected arrays with a first axis, got a scalar"):
            perform(Collective("alltoall", comm), [np.float32(1)])

    run_local(work, ranks=1)
