"""Gradients of `tree_decode`: those of the own keys and values stay, the query's are summed over the ranks.

Every rank holds the same queries and the same result, and all ranks compute the same loss of it. Then the gradient that
arrives is the same everywhere, each shard adds its part (`attention.ring.backward`), and one all-reduce with SUM gives
every rank the gradient of the queries.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from attention.arrays import check_inputs
from attention.decode.communicators import prepared_call
from attention.decode.sharded import Options
from attention.partial import Partial
from attention.ring.backward import backward_block
from attention.spec import Spec
from attention.visibility import Masking
from topocomm import SUM, Communicator


class Step(Protocol):
    """What is differentiated: a prepared step.

    Attributes:
        comm: The ranks.
        spec: Which attention.
    """

    comm: Communicator
    spec: Spec

    def general(self, arrays: tuple[Any, Any, Any], given: Options, *, verified: bool) -> Any:
        """As `PreparedDecode.general`."""


def wants_gradients(*tensors: Any) -> bool:
    """Whether any of them is a tensor whose gradient is wanted here."""
    return torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in tensors)


def decode_with_gradients(prepared: Step, tensors: tuple[Any, Any, Any], masking: Masking, verified: bool) -> Partial:
    """The step's result for (q, k, v), differentiable; all of these tensors, no pages."""
    return Partial(*_Function.apply(*tensors, prepared, masking, verified))  # type: ignore[no-untyped-call]


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v, ctx.prepared, ctx.masking, verified = given
        options = Options(ctx.prepared.spec, ctx.masking, True, None)
        detached = q.detach(), k.detach(), v.detach()
        out, lse = ctx.prepared.general(detached, options, verified=verified)
        ctx.save_for_backward(q, k, v, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> tuple[Any, ...]:
        q, k, v, out, lse = (x.detach() for x in ctx.saved_tensors)
        inputs = check_inputs("tree_decode", q, k, v, spec=ctx.prepared.spec, masking=ctx.masking)
        dq, dk, dv = backward_block(inputs, out, lse, *arriving)
        if ctx.needs_input_grad[0]:
            summed = {"value": dq}
            prepared_call(ctx.prepared.comm, "allreduce", summed, SUM)(summed, out=summed)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None
