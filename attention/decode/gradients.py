"""Gradients of `tree_decode`: those of the own keys and values stay, the query's are summed over the ranks.

Every rank holds the same queries and the same result, and all ranks compute the same loss of it. Then the gradient that
arrives is the same everywhere, each shard adds its part (`attention.ring.backward`), and one all-reduce with SUM gives
every rank the gradient of the queries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attention.arrays import check_inputs
from attention.decode.communicators import prepared_call
from attention.decode.sharded import Options
from attention.partial import Partial
from attention.ring.backward import backward_block
from topocomm import SUM, Communicator

Forward = Callable[[tuple[Any, Any, Any], Options], Partial]
"""A decode step of (q, k, v) without gradients: out and lse."""


def wants_gradients(*tensors: Any) -> bool:
    """Return whether any of them is a tensor whose gradient is wanted now."""
    return torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in tensors)


def decode_with_gradients(
    forward: Forward, tensors: tuple[Any, Any, Any], comm: Communicator, options: Options
) -> Partial:
    """Return what `forward` gives for (q, k, v), differentiable; all of these tensors, no pages."""
    return Partial(*_Function.apply(*tensors, forward, comm, options))  # type: ignore[no-untyped-call]


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v, forward, ctx.comm, ctx.options = arguments
        out, lse = forward((q.detach(), k.detach(), v.detach()), ctx.options)
        ctx.save_for_backward(q, k, v, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> tuple[Any, ...]:
        q, k, v, out, lse = (x.detach() for x in ctx.saved_tensors)
        inputs = check_inputs("tree_decode", q, k, v, spec=ctx.options.spec, masking=ctx.options.masking)
        dq, dk, dv = backward_block(inputs, out, lse, *arriving)
        if ctx.needs_input_grad[0]:
            summed = {"value": dq}
            prepared_call(ctx.comm, "allreduce", summed, SUM)(summed, out=summed)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None
