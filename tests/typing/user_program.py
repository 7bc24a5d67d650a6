"""A program of a user, for type checkers: what goes in comes out, and what no call takes is an error.

mypy reads it with the packages' sources (`make types`), mypy and pyright with the installed wheel
(test_user_program.py). It is never run.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, assert_type

import numpy as np
import torch
from numpy.typing import NDArray

import topocomm
from attention import (
    LOGSUMEXP,
    Partial,
    Spec,
    local_attention,
    merge_states,
    prepare_decode,
    ring_attention,
    tree_decode,
)
from topocomm import SUM, Communicator, Handle, Operator, Plan, PreparedCall, Topology

Floats = NDArray[np.float32]


@dataclass
class Moments:
    """A value of two fields."""

    mean: Floats
    count: NDArray[np.int64]


class Pair(NamedTuple):
    """A value of two tensors."""

    out: torch.Tensor
    lse: torch.Tensor


def values_keep_their_type(comm: Communicator, x: Floats, t: torch.Tensor, moments: Moments, pair: Pair) -> None:
    """An array gives an array, a tensor a tensor, a container of arrays such a container."""
    assert_type(comm.allreduce(x, SUM), Floats)
    assert_type(comm.allreduce(x, SUM, out=x), Floats)
    assert_type(comm.allreduce(t, SUM, order="canonical"), torch.Tensor)
    assert_type(comm.allreduce({"out": t, "lse": t}, LOGSUMEXP), dict[str, torch.Tensor])
    assert_type(comm.allreduce(moments, SUM), Moments)
    assert_type(comm.allreduce(pair, LOGSUMEXP), Pair)
    assert_type(comm.allreduce(x.max(), SUM), Any)
    assert_type(comm.allreduce(np.float64(3), SUM), NDArray[np.float64])
    assert_type(comm.broadcast(x), Floats)
    assert_type(comm.broadcast(pair, root=1), Pair)
    assert_type(comm.scan(t, SUM), torch.Tensor)
    assert_type(comm.exscan({"x": x}, SUM), dict[str, Floats])
    assert_type(comm.reduce_scatter(x, SUM, rows=[1, 2]), Floats)
    assert_type(comm.allgather(t), torch.Tensor)
    assert_type(comm.scatter(moments), Moments)
    assert_type(comm.alltoall(x), Floats)
    assert_type(comm.sendrecv(t, 1), torch.Tensor)


def roots_alone_have_a_result(comm: Communicator, x: Floats, t: torch.Tensor) -> None:
    """Elsewhere it is None, which a program must ask for."""
    assert_type(comm.reduce(x, SUM), Floats | None)
    assert_type(comm.gather(t, root=2), torch.Tensor | None)
    assert_type(comm.prepare("gather", like=x)(x), Floats | None)


def prepared_calls(comm: Communicator, x: Floats, t: torch.Tensor) -> None:
    """A prepared call and its handles know the value that they are for."""
    call = comm.prepare("allreduce", like=x, operator=SUM)
    assert_type(call, PreparedCall[Floats, Floats])
    assert_type(call(x), Floats)
    assert_type(call.plan, Plan)
    assert_type(call.input, Floats | None)
    handle = comm.prepare("broadcast", like={"a": t}).start({"a": t})
    assert_type(handle, Handle[dict[str, torch.Tensor]])
    assert_type(handle.wait(timeout_s=1.0), dict[str, torch.Tensor])
    assert_type(comm.prepare_sum(like=t, operator=SUM)(t), torch.Tensor)
    of_any_value: PreparedCall = call
    assert_type(of_any_value(x), Any)


def machines_and_plans(operator: Operator) -> None:
    """Topologies, plans and threads."""
    topology = topocomm.catalog("dgx-h100", hosts=2)
    assert_type(topology, Topology)
    plan = topocomm.plan(topology, "allreduce", payload_bytes=1 << 20, operator=operator, objective="throughput")
    assert_type(plan, Plan)
    assert_type(plan.predicted_us, float)
    assert_type(topocomm.run_local(lambda comm: comm.rank, ranks=2), list[int])
    with topocomm.init() as comm:
        assert_type(comm, Communicator)
        assert_type(comm.explain("allreduce", like=np.zeros(3), operator=SUM), Plan)
        assert_type(comm.split(comm.rank % 2), Communicator | None)


def attention_of_shards(comm: Communicator, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, x: Floats) -> None:
    """Tensors give tensors, arrays arrays; `return_lse` gives a Partial."""
    spec = Spec(causal=True)
    assert_type(tree_decode(q, k, v, comm, spec=spec, q_positions=[7], kv_positions=np.arange(8)), torch.Tensor)
    assert_type(tree_decode(q, k, v, comm, return_lse=True), Partial)
    assert_type(tree_decode(x, x, x, comm), NDArray[Any])
    assert_type(prepare_decode(comm, q, like_kv=(k, v)).step(q, k, v), torch.Tensor)
    assert_type(ring_attention(q, k, v, comm, layout="zigzag"), torch.Tensor)
    assert_type(local_attention(q, k, v), Partial)
    assert_type(merge_states([q, q], [k, k]), Partial)
    assert_type(comm.allreduce(local_attention(q, k, v), LOGSUMEXP), Partial)


def what_no_call_takes(comm: Communicator, x: Floats, t: torch.Tensor) -> None:
    """Each is an error, which the comment expects: where it is none, that is one."""
    comm.allreduce([1.0, 2.0], SUM)  # type: ignore
    comm.allreduce(3.0, SUM)  # type: ignore
    comm.allreduce("word", SUM)  # type: ignore
    comm.allreduce(x, "sum")  # type: ignore
    comm.allreduce(x)  # type: ignore
    comm.allgather(np.float64(3))  # type: ignore
    comm.prepare("allreduce", like=3, operator=SUM)  # type: ignore
    tree_decode(t, x, x, comm)  # type: ignore
    topocomm.plan(comm.topology, objective="fastest", payload_bytes=8)  # type: ignore
    comm.reduce(x, SUM).sum()  # type: ignore
