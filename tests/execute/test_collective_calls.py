"""What every collective returns at run time is what its signature promises: the type of the value given."""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from topocomm import SUM, Field, Operator, run_local


@dataclass
class Moments:
    mean: Any
    count: Any


class Pair(NamedTuple):
    mean: Any
    count: Any


TWO = Operator(
    "two",
    (Field("mean"), Field("count")),
    lambda a, b: {name: a[name] + b[name] for name in ("mean", "count")},
    {"mean": 0, "count": 0},
    commutative=True,
)
VALUES = {
    "array": (lambda: np.ones(4, np.float32), SUM),
    "tensor": (lambda: torch.ones(4), SUM),
    "dict": (lambda: {"mean": np.ones(4), "count": np.ones(4, np.int64)}, TWO),
    "dict of tensors": (lambda: {"count": torch.ones(4), "mean": torch.ones(4)}, TWO),
    "dataclass": (lambda: Moments(torch.ones(4), torch.ones(4)), TWO),
    "NamedTuple": (lambda: Pair(np.ones(4), np.ones(4)), TWO),
}
COLLECTIVES = {
    "allreduce": lambda comm, x, op: comm.allreduce(x, op),
    "reduce": lambda comm, x, op: comm.reduce(x, op, root=comm.rank if comm.size == 1 else 0),
    "broadcast": lambda comm, x, op: comm.broadcast(x),
    "reduce_scatter": lambda comm, x, op: comm.reduce_scatter(x, op),
    "allgather": lambda comm, x, op: comm.allgather(x),
    "gather": lambda comm, x, op: comm.gather(x),
    "scatter": lambda comm, x, op: comm.scatter(x),
    "alltoall": lambda comm, x, op: comm.alltoall(x),
    "sendrecv": lambda comm, x, op: comm.sendrecv(x, 1 - comm.rank),
    "scan": lambda comm, x, op: comm.scan(x, op),
    "exscan": lambda comm, x, op: comm.exscan(x, op),
    "prepared": lambda comm, x, op: comm.prepare("allreduce", like=x, operator=op)(x),
    "handle": lambda comm, x, op: comm.prepare("allreduce", like=x, operator=op).start(x).wait(),
}


def parts(x):
    if isinstance(x, dict):
        return dict(x)
    if isinstance(x, Pair):
        return x._asdict()
    return {f.name: getattr(x, f.name) for f in fields(x)} if isinstance(x, Moments) else {"": x}


@pytest.mark.parametrize("kind", VALUES)
def test_what_goes_in_comes_out(kind):
    make, operator = VALUES[kind]

    def check(comm):
        for name, call in COLLECTIVES.items():
            x = make()
            result = call(comm, x, operator)
            if name in ("reduce", "gather") and comm.rank:
                assert result is None
                continue
            assert type(result) is type(x), name
            given, got = parts(x), parts(result)
            assert list(got) == list(given), name
            assert [(type(a), a.dtype) for a in got.values()] == [(type(a), a.dtype) for a in given.values()], name

    run_local(check, ranks=2)


def test_a_scalar_gives_an_array_without_axes():
    for result in run_local(lambda comm: comm.allreduce(np.float32(comm.rank + 1), SUM), ranks=2):
        assert (type(result), result.shape, result.dtype, result.item()) == (np.ndarray, (), np.float32, 3.0)
