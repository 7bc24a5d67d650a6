"""Calls that do not fit, on one rank or between ranks: refused alike on every rank."""

import numpy as np
import pytest

import topocomm
from tests.execute.collective_cases import MOMENTS
from topocomm import (
    SUM,
    MismatchError,
    OperatorError,
    PlanError,
    run_local,
)


@pytest.mark.parametrize(
    ("value", "operator", "message"),
    [
        ([1, 2], SUM, "expected an array, or a dict, NamedTuple or dataclass of arrays, got list"),
        (
            {"value": [1, 2]},
            SUM,
            "field 'value': expected a NumPy array or torch tensor, got list; wrap it with np.asarray",
        ),
        ({"other": np.ones(2)}, SUM, r"takes the fields \['value'\]; missing 'value'; unknown 'other'"),
        (np.ones(2), MOMENTS, "got one bare array"),
        (np.ones(2), [SUM], r"expected an Operator such as topocomm.SUM or TOPK\(5\), got list"),
        (np.ones(2), topocomm.TOPK, "got function"),
        (np.ones(2), "sum", r"expected an Operator such as topocomm.SUM or TOPK\(5\), got str"),
    ],
)
def test_values_that_do_not_fit_are_refused_alike_on_every_rank(value, operator, message):
    def body(comm):
        with pytest.raises(OperatorError, match=message):
            comm.allreduce(value, operator)
        return comm.allreduce(np.ones(1), SUM)[0]

    assert run_local(body, ranks=3) == [3.0] * 3


def test_roots_rows_and_plans_of_another_kind_are_refused_alike_on_every_rank():
    def body(comm):
        x = np.ones(3)
        with pytest.raises(PlanError, match="root '0': expected the number of a rank, 0 to 2"):
            comm.reduce(x, SUM, root="0")
        with pytest.raises(OperatorError, match=r"rows \[1.5, 1.5, 0\]: expected 3 counts, whole and none below 0"):
            comm.reduce_scatter(x, SUM, rows=[1.5, 1.5, 0])
        with pytest.raises(PlanError, match=r"plan: expected a topocomm.Plan, got str; topocomm.Plan.load\(path\)"):
            comm.prepare("allreduce", like=x, operator=SUM, plan="saved.json")
        with pytest.raises(topocomm.TopocommError, match=r"split: expected whole numbers as color and key, .* rank 1"):
            comm.split(0.5 if comm.rank == 1 else 0)
        return comm.reduce_scatter(x, SUM, rows=np.array([1, 1, 1]))[0]

    assert run_local(body, ranks=3) == [3.0] * 3


def test_shards_that_are_no_pair_are_told_to_every_rank():
    def body(comm):
        with pytest.raises(MismatchError, match="shards of rank 1: expected"):
            comm.allreduce(np.ones((1, 2)), SUM, order="canonical", shards=5 if comm.rank == 1 else (0, 1))

    run_local(body, ranks=2)


def test_a_value_that_one_rank_refuses_is_told_by_its_error_alone():
    def body(comm):
        with pytest.raises(MismatchError) as told:
            comm.broadcast(np.ones(3) if comm.rank == 0 else None)
        return str(told.value).partition(": ")[2]

    assert (
        run_local(body, ranks=3)
        == [
            "ranks disagree about the call they make: ranks 1-2 refused their arrays: expected an array, or a dict, "
            "NamedTuple or dataclass of arrays, got None; every rank gives the same shapes and dtypes"
        ]
        * 3
    )


def test_a_collective_that_is_not_known_is_told_with_the_nearest():
    with pytest.raises(PlanError, match=r"unknown collective 'all_reduce'; .*; did you mean allreduce\?"):
        run_local(lambda comm: comm.prepare("all_reduce", like=np.ones(3), operator=SUM), ranks=1)


def test_a_barrier_is_called_one():
    def body(comm):
        comm.barrier(), comm.allreduce(np.ones(3), SUM)
        with pytest.raises(MismatchError, match=r"allreduce max, value uint8 \[1\] \(a barrier\)"):
            comm.barrier() if comm.rank else comm.allreduce(np.ones(3), SUM)

    run_local(body, ranks=2)


def test_tensors_that_require_gradients_are_refused_with_the_remedy():
    torch = pytest.importorskip("torch")

    def body(comm):
        with pytest.raises(OperatorError, match=r"requires gradients; pass x.detach\(\)"):
            comm.allreduce(torch.ones(2, requires_grad=True), SUM)
        with pytest.raises(OperatorError, match=r"NumPy has no torch\.float8_e5m2"):
            comm.allreduce(torch.ones(2, dtype=torch.float8_e5m2), SUM)

    run_local(body, ranks=2)
