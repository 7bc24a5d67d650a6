"""Calls that do not fit, on one rank or between ranks: refused alike on every rank."""

import numpy as np
import pytest

import topocomm
from tests.execute.collective_cases import MOMENTS
from topocomm import (
    MAX,
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
        ({"value": [1, 2]}, SUM, "field 'value': expected a NumPy array or torch tensor, got list"),
        ({"other": np.ones(2)}, SUM, r"takes the fields \['value'\], got \['other'\]"),
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
            "ranks disagree about the call they make: error: ranks 1, 2: expected an array, or a dict, NamedTuple or "
            "dataclass of arrays, got NoneType"
        ]
        * 3
    )


def test_tensors_that_require_gradients_are_refused_with_the_remedy():
    torch = pytest.importorskip("torch")

    def body(comm):
        with pytest.raises(OperatorError, match=r"requires gradients; pass x.detach\(\)"):
            comm.allreduce(torch.ones(2, requires_grad=True), SUM)
        with pytest.raises(OperatorError, match=r"NumPy has no torch\.float8_e5m2"):
            comm.allreduce(torch.ones(2, dtype=torch.float8_e5m2), SUM)

    run_local(body, ranks=2)


@pytest.mark.parametrize("odd", [0, 1, 3])
def test_ranks_that_differ_are_named_on_every_rank(odd):
    seen = {}

    def body(comm):
        x = np.zeros(5 if comm.rank == odd else 4)
        try:
            comm.allreduce(x, SUM)
        except MismatchError as error:
            seen[comm.rank] = str(error)
            raise

    with pytest.raises(MismatchError):
        run_local(body, ranks=4)
    assert sorted(seen) == [0, 1, 2, 3]
    for rank, text in seen.items():
        assert text.startswith(f"rank {rank}: ranks disagree")
        assert f"rank {odd}: value float64 [5]" in text
        assert "value float64 [4]" in text


@pytest.mark.parametrize("what", ["dtype", "operator", "collective", "root"])
def test_every_part_of_a_call_is_compared(what):
    def body(comm):
        odd = comm.rank == 2
        x = np.zeros(4, np.float32 if what == "dtype" and odd else np.float64)
        if what == "collective" and odd:
            return comm.broadcast(x)
        if what == "root":
            return comm.reduce(x, SUM, root=1 if odd else 0)
        return comm.allreduce(x, MAX if what == "operator" and odd else SUM)

    part = {"dtype": "arrays"}.get(what, what)
    with pytest.raises(MismatchError, match=rf"{part}: ranks 0, 1: .*rank 2: "):
        run_local(body, ranks=3)
