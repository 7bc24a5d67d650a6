"""torch's ReduceOps as operators, with what is done to values before and after them."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp

from topocomm.errors import OperatorError
from topocomm.operators.builtin import BAND, BOR, BXOR, MAX, MIN, PROD, SUM
from topocomm.operators.operator import Operator

KINDS: Any = ReduceOp.RedOpType
SUM_KIND: Any = ReduceOp.SUM
SUM_NUMBER = int(SUM_KIND)
OPERATORS = {
    ReduceOp.SUM: SUM,
    ReduceOp.AVG: SUM,
    ReduceOp.PREMUL_SUM: SUM,
    ReduceOp.PRODUCT: PROD,
    ReduceOp.MIN: MIN,
    ReduceOp.MAX: MAX,
    ReduceOp.BAND: BAND,
    ReduceOp.BOR: BOR,
    ReduceOp.BXOR: BXOR,
}
OF_BOOLS = {**OPERATORS, ReduceOp.SUM: BOR, ReduceOp.PRODUCT: BAND, ReduceOp.MIN: BAND, ReduceOp.MAX: BOR}
"""Of bools sums and products are those of logic: two bytes that are 1 never make a bool of the byte 2."""


class Reduction(NamedTuple):
    """What a ReduceOp does: values are multiplied by `factor`, folded, and divided by the number of ranks."""

    operator: Operator
    factor: Any = None
    """A number or a tensor of one item; None: values stay as they are."""
    averages: bool = False
    takes_factor: bool = False
    """Whether the factor is still to be taken from the ReduceOp."""

    def scaled(self, value: torch.Tensor, *, in_place: bool) -> torch.Tensor:
        """Return what a rank puts in; `in_place` says whether the value's memory may be written."""
        if self.factor is None:
            return value
        return value.mul_(self.factor) if in_place else value * self.factor

    def finish(self, value: torch.Tensor, ranks: int) -> None:
        """Divide the fold in place where an average is asked for; integers are cut off, as NCCL does it."""
        if self.averages:
            rounded = None if value.is_floating_point() or value.is_complex() else "trunc"
            value.div_(ranks, rounding_mode=rounded)


def reduction_of(op: Any, dtype: torch.dtype) -> Reduction:
    """Return the reduction that a ReduceOp, or one of its kinds, stands for on a dtype.

    Raises:
        OperatorError: There is none.
    """
    if op == SUM_KIND:  # what most ask for, and each look at a kind takes as long as a step of a collective
        return _plain(SUM_NUMBER, dtype)
    kind = op if isinstance(op, KINDS) else op.op
    reduction = _plain(int(kind), dtype)
    if reduction.takes_factor:
        _, factor = op.__getstate__()  # the only way to the factor
        return reduction._replace(factor=factor)
    return reduction


@cache
def _plain(number: int, dtype: torch.dtype) -> Reduction:
    """Return the reduction of a kind, without a factor; by its number, which is found quickly."""
    kind = KINDS(number)
    operator = (OF_BOOLS if dtype == torch.bool else OPERATORS).get(kind)
    takes = kind not in (ReduceOp.AVG, ReduceOp.PREMUL_SUM) or dtype != torch.bool
    if operator is None or not takes:
        raise OperatorError(f"{kind} of {dtype}: expected one of {', '.join(OPERATORS_BY_NAME)}, of numbers")
    return Reduction(operator, averages=kind == ReduceOp.AVG, takes_factor=kind == ReduceOp.PREMUL_SUM)


OPERATORS_BY_NAME = [str(kind).removeprefix("RedOpType.") for kind in OPERATORS]
