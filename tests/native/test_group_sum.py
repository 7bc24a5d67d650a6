"""torch's all_reduce in C: what it takes, and that the turn is given back."""

import threading
from datetime import timedelta

import numpy as np
import pytest

from topocomm import SUM, OperatorError
from topocomm.native import _native

torch = pytest.importorskip("torch")
c10d = pytest.importorskip("torch._C._distributed_c10d")

UNSET = timedelta(milliseconds=-1)


class Group:
    """What the call in C is bound to, with a view of any tensor and a record of the calls made."""

    def __init__(self, run=None):
        self.left, self.turn, self.made = [], threading.Lock(), []
        acquire, release = self.turn.acquire, self.turn.release
        bound = c10d.AllreduceOptions, UNSET, c10d.ReduceOp.SUM, self.view, self.left, acquire, release
        self.sum = _native.bind_group_sum(*bound, run or self.run, SUM)

    def view(self, tensor, flat):
        assert flat is True
        return None if tensor is None else np.asarray(tensor)

    def run(self, operator, value, out):
        assert self.turn.locked() and operator is SUM and value is out
        self.made.append(value)


def options(**given):
    made = c10d.AllreduceOptions()
    made.reduceOp, made.asyncOp = c10d.ReduceOp.SUM, False
    for name, value in given.items():
        setattr(made, name, value)
    return made


def test_a_sum_that_the_program_waits_for_is_made():
    group = Group()
    assert group.sum([torch.ones(3)], options()) is True
    assert [value.tolist() for value in group.made] == [[1, 1, 1]] and not group.turn.locked()


UNUSUAL = {
    "a handle": ([1], options(asyncOp=True)),
    "a limit": ([1], options(timeout=timedelta(seconds=3))),
    "a maximum": ([1], options(reduceOp=c10d.ReduceOp.MAX)),
    "a product with a factor": ([1], options(reduceOp=c10d._make_nccl_premul_sum(2.0))),
    "other options": ([1], c10d.ReduceOptions()),
    "an operator": ([1], c10d.ReduceOp.SUM),
    "no options": ([1], None),
    "two tensors": ([1, 2], options()),
    "no tensor": ([], options()),
    "a tensor by itself": (torch.ones(1), options()),
    "one that is not plain": ([None], options()),
}


@pytest.mark.parametrize("what", UNUSUAL)
def test_nothing_is_done_with_what_is_unusual(what):
    group = Group()
    assert group.sum(*UNUSUAL[what]) is False
    assert not group.made and not group.turn.locked()


def test_calls_issued_before_come_first():
    group = Group()
    group.left.append("a call")
    assert group.sum([1], options()) is False and not group.turn.locked()
    group.left.clear()
    with group.turn:
        assert group.sum([1], options()) is False and group.turn.locked()
    assert not group.made and group.sum([1], options()) is True


def test_errors_come_through_and_the_turn_is_given_back():
    def run(operator, value, out):
        raise OperatorError("what is wrong")

    group = Group(run)
    for _ in range(2):
        with pytest.raises(OperatorError, match="what is wrong"):
            group.sum([1], options())
        assert not group.turn.locked()
    with pytest.raises(TypeError, match="got 1 arguments"):
        group.sum([1])
    with pytest.raises(TypeError, match="bound to 9 things, got 1"):
        _native.bind_group_sum(1)
