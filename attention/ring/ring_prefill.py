"""Ring attention over a sequence whose queries, keys and values all are sharded; forward and backward.

Keys and values travel around the ring while each rank keeps its queries: P - 1 hops, and the next shard arrives while
the current one is attended. Backward they travel once more, with the sums of their gradients one step behind, P hops.
Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context" (2023), arXiv 2310.01889.
"""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

import torch
from torch.autograd.function import once_differentiable

from attention.array_types import AnyArray, Numbers, Ranks, SequenceArguments
from attention.arrays import Inputs, sequence_inputs, to_caller
from attention.decode.communicators import as_communicator, state_of
from attention.partial import Partial
from attention.ring.ring_layout import Parts, agree_on_parts
from attention.ring.ring_trips import Trips
from attention.spec import Spec
from topocomm.extend import skipped_by_dynamo


@overload
def ring_attention(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    comm: Ranks,
    *,
    return_lse: Literal[False] = False,
    **rest: Unpack[SequenceArguments],
) -> AnyArray: ...
@overload
def ring_attention(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    comm: Ranks,
    *,
    return_lse: Literal[True],
    **rest: Unpack[SequenceArguments],
) -> Partial: ...
@skipped_by_dynamo
def ring_attention(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    comm: Ranks,
    *,
    spec: Spec | None = None,
    positions: Numbers = None,
    layout: str = "contiguous",
    return_lse: bool = False,
) -> Any:
    """Return attention over a sequence of which every rank holds a part: queries, keys and values of the same tokens.

    K and V are sent in their own dtype with their own number of heads. Scores, softmax, merges and gradients are
    float32 whatever the dtype. What no local query can see (later chunks if causal, chunks beyond a window) is passed
    on and not computed. Partials are merged in the order in which shards come by and gradients in that in which ranks
    are passed, so the same call gives the same bits again (with as many torch threads on the same CPU).

    Beyond arguments and results a rank needs two buffers of the largest shard, two partials of its queries and the
    blocks of `local_attention`; backward also three buffers of the largest shard's gradients in float32. Buffers stay
    with the communicator. Positions that are given are sent to all ranks, 8 bytes a token.

    Args:
        q: This rank's queries [batch, heads, n_local, d], float32, float16 or bfloat16, NumPy or torch, all ranks' in
            host memory or all on GPUs; n_local may differ between ranks and may be 0.
        k: Its keys [batch, kv_heads, n_local, d]; heads is a multiple of kv_heads.
        v: Its values [batch, kv_heads, n_local, d_v], of k's dtype.
        comm: A topocomm.Communicator; or an mpi4py communicator, a torch ProcessGroup or a 1-D DeviceMesh.
        spec: Which attention; None: Spec(). Its sinks count once.
        positions: Global positions of this rank's tokens, integers [n_local] in any order; those of all ranks are 0
            to N - 1, each once. All ranks give them or none. None: they follow from the layout.
        layout: "contiguous": rank r holds the r-th range, of any length. "zigzag": the slices of `sequence_slices`,
            which balance causal attention.
        return_lse: Return Partial(out, lse) instead of out.

    Returns:
        out [batch, heads, n_local, d_v] of q's kind and dtype, for this rank's queries; with `return_lse` a Partial
        with lse float32 [batch, heads, n_local], sinks included. Queries that see nothing get 0 and -inf.
        Differentiable once in q, k and v, through out and lse, for torch tensors that require gradients; not in
        spec.sinks and spec.alibi_slopes.

    Collective, and so is the backward pass: every rank runs it, as often and in the same order.

    Raises:
        OperatorError: This rank's arguments do not fit.
        MismatchError: Ranks differ in batch, heads, dims, dtype, spec, layout or in whether gradients are wanted, or
            their positions overlap or leave some out; on every rank.
        DeadlineError, RankFailedError: Another rank did not come, or failed.
    """
    name = "ring_attention"
    comm = as_communicator(name, comm)
    tensors, inputs = sequence_inputs(name, q, k, v, spec)
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    parts = agree_on_parts(name, comm, inputs, positions=positions, layout=layout, gradients=wanted)
    state = state_of(comm)
    if name not in state:
        state[name] = Trips(comm)
    trips: Trips = state[name]
    if wanted:
        result = Partial(*_RingAttention.apply(*tensors, trips, inputs, parts))  # type: ignore[no-untyped-call]
    else:
        whole = trips.forward(inputs, parts)
        result = Partial(whole.out.to(inputs.q.dtype), whole.lse)
    out = to_caller(q, result.out)
    return Partial(out, to_caller(q, result.lse)) if return_lse else out


class _RingAttention(torch.autograd.Function):
    """The two trips as one differentiable operation."""

    @staticmethod
    def forward(
        ctx: Any, q: Any, k: Any, v: Any, trips: Trips, inputs: Inputs, parts: Parts
    ) -> tuple[torch.Tensor, torch.Tensor]:
        whole = trips.forward(inputs, parts)
        out = whole.out.to(q.dtype)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, *whole)  # out in float32: rounded, it would make every gradient less exact
        ctx.trips, ctx.spec, ctx.parts = trips, inputs.spec, parts
        return out, whole.lse

    @staticmethod
    @once_differentiable
    @skipped_by_dynamo
    def backward(ctx: Any, d_out: torch.Tensor | None, d_lse: torch.Tensor | None) -> Any:
        q, k, v, out, lse = (x.detach() for x in ctx.saved_tensors)
        inputs = Inputs(q, k, v, ctx.spec, None)
        d_out = torch.zeros_like(out) if d_out is None else d_out
        gradients = ctx.trips.backward(inputs, ctx.parts, Partial(out, lse), Partial(d_out, d_lse))
        return (*(gradient.to(x.dtype) for gradient, x in zip(gradients, (q, k, v), strict=True)), None, None, None)
