"""Gradients of `tree_decode`: those of the own keys and values stay, the query's are summed over the ranks.

Every rank holds the same queries and the same result, and all ranks compute the same loss of it. Then the gradient that
arrives is the same everywhere, each shard adds its part (`attention.backward`), and one all-reduce with SUM gives every
rank the gradient of the queries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attention.arrays import check_inputs
from attention.backward import backward_block
from attention.communicators import as_communicator, prepared_allreduce
from attention.partial import Partial
from attention.spec import Spec
from attention.visibility import Masking
from topocomm import SUM

Decode = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Partial]


def wants_gradients(*tensors: Any) -> bool:
    """Whether any of them is a tensor whose gradient is wanted here."""
    return torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in tensors)


def decode_with_gradients(
    decode: Decode, tensors: tuple[Any, Any, Any], comm: Any, spec: Spec | None, masking: Masking
) -> Partial:
    """What `decode` returns for (q, k, v), differentiable; all of these tensors, no pages."""
    return Partial(*_Function.apply(*tensors, decode, comm, spec or Spec(), masking))  # type: ignore[no-untyped-call]


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v, decode, ctx.comm, ctx.spec, ctx.masking = given
        out, lse = decode(q.detach(), k.detach(), v.detach())
        ctx.save_for_backward(q, k, v, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> tuple[Any, ...]:
        q, k, v, out, lse = (x.detach() for x in ctx.saved_tensors)
        inputs = check_inputs("tree_decode", q, k, v, spec=ctx.spec, masking=ctx.masking)
        dq, dk, dv = backward_block(inputs, out, lse, *arriving)
        if ctx.needs_input_grad[0]:
            comm = as_communicator("tree_decode", ctx.comm)
            summed = {"value": dq}
            prepared_allreduce(comm, summed, SUM)(summed, out=summed)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None, None
