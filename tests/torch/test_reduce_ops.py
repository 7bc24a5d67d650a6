"""torch's ReduceOps as operators."""

import pytest

from topocomm import BOR, SUM, OperatorError

torch = pytest.importorskip("torch")

from torch._C._distributed_c10d import _make_nccl_premul_sum  # noqa: E402 - where there is torch
from torch.distributed import AllreduceOptions, ReduceOp  # noqa: E402

from topocomm.torch.reduce_ops import OPERATORS, Reduction, reduction_of  # noqa: E402


def test_every_kind_of_torch_has_an_operator():
    assert set(ReduceOp.RedOpType.__members__) - {"UNUSED"} == {kind.name for kind in OPERATORS}


def test_kinds_and_ops_mean_the_same():
    options = AllreduceOptions()
    options.reduceOp = ReduceOp.AVG
    for op in (ReduceOp.AVG, options.reduceOp):
        assert reduction_of(op, torch.float32) == Reduction(SUM, averages=True)


def test_bools_are_added_by_logic():
    assert reduction_of(ReduceOp.SUM, torch.bool).operator is BOR
    with pytest.raises(OperatorError, match=r"AVG of torch.bool: expected one of SUM"):
        reduction_of(ReduceOp.AVG, torch.bool)


@pytest.mark.parametrize("factor", [0.5, torch.tensor([0.5])])
def test_a_factor_scales_what_a_rank_puts_in(factor):
    reduction, value = reduction_of(_make_nccl_premul_sum(factor), torch.float32), torch.ones(2)
    assert reduction.scaled(value, in_place=False).tolist() == [0.5, 0.5] and value.tolist() == [1, 1]
    assert reduction.scaled(value, in_place=True) is value and value.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("value", "expected"), [(torch.tensor([7, -7]), [3, -3]), (torch.tensor([7.0]), [3.5])])
def test_averages(value, expected):
    reduction_of(ReduceOp.AVG, value.dtype).finish(value, 2)
    assert value.tolist() == expected
