"""Attention over a sequence whose tokens are sharded, by dealing out heads; forward and backward.

An all-to-all gives every rank all tokens of some heads, which it attends alone, and another one brings the results
back to the tokens' ranks: 2 messages a pair whatever the length. Jacobs et al., "DeepSpeed Ulysses" (2023), arXiv
2309.14509. With a ring, groups of ranks deal heads and rings over the groups pass keys and values: Fang and Zhao,
"USP" (2024), arXiv 2405.07719.
"""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

import torch
from torch.autograd.function import once_differentiable

from attention.array_types import AnyArray, Numbers, Ranks, SequenceArguments
from attention.arrays import DTYPES, Inputs, sequence_inputs, to_caller
from attention.decode.communicators import as_communicator
from attention.gpu.placement import on_gpu
from attention.partial import Partial
from attention.ring.ring_layout import agree_on_parts
from attention.spec import Spec
from attention.ulysses.head_grid import HeadGrid
from attention.ulysses.sequence_cost import SequenceShape, best_cost
from attention.ulysses.ulysses_call import UlyssesCall
from topocomm import OperatorError
from topocomm.extend import skipped_by_dynamo

NAME = "ulysses_attention"
AUTO = 0
"""Stands for the ring that is to take least."""


@overload
def ulysses_attention(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    comm: Ranks,
    *,
    return_lse: Literal[False] = False,
    ring: int | str = 1,
    **rest: Unpack[SequenceArguments],
) -> AnyArray: ...
@overload
def ulysses_attention(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    comm: Ranks,
    *,
    return_lse: Literal[True],
    ring: int | str = 1,
    **rest: Unpack[SequenceArguments],
) -> Partial: ...
@skipped_by_dynamo
def ulysses_attention(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    comm: Ranks,
    *,
    ring: int | str = 1,
    spec: Spec | None = None,
    positions: Numbers = None,
    layout: str = "contiguous",
    return_lse: bool = False,
) -> Any:
    """Return attention over a sequence of which every rank holds a part, as `ring_attention`, by all-to-alls of heads.

    q, k and v go to the rank that has their heads in one message a pair, results come back in another. A rank has as
    many query heads as the others or one more or less, none where there are more ranks than heads; a key head goes once
    to each rank that has query heads of it. Ranks of a group are consecutive: with `ring` R these are P / R ranks, and
    keys and values of a rank's heads go around R ranks of different groups, as in `ring_attention`.

    Scores, softmax and gradients are float32 whatever the dtype, and float32 results within 1e-5 of the largest
    element. What is sent is of the dtype of q, or of k and v; gradients of key heads that several ranks have are summed
    in float32, in rank order. The same call gives the same bits again (with as many torch threads on the same CPU).

    Beyond arguments and results a rank needs its heads of q, k, v and out for the tokens of its group, in float32 too
    for out, and twice what it sends and receives; backward as much again. Buffers stay with the communicator.

    Args:
        q: This rank's queries [batch, heads, n_local, d], float32, float16 or bfloat16, NumPy or torch, all ranks' in
            host memory or all on GPUs; n_local may differ between ranks and may be 0.
        k: Its keys [batch, kv_heads, n_local, d]; heads is a multiple of kv_heads, neither need divide by ranks.
        v: Its values [batch, kv_heads, n_local, d_v], of k's dtype.
        comm: A topocomm.Communicator; or an mpi4py communicator, a torch ProcessGroup or a 1-D DeviceMesh.
        ring: Ranks of a ring R, a divisor of the number of ranks P. 1: heads are dealt over all ranks; P: as
            `ring_attention`. "auto": whichever `sequence_cost` predicts to take least on the communicator's machine.
        spec: Which attention; None: Spec(). Its sinks count once.
        positions: As in `ring_attention`: global positions of this rank's tokens, in any order.
        layout: "contiguous", or "zigzag", which balances causal attention of rings; without one any layout does.
        return_lse: Return Partial(out, lse) instead of out; the same on all ranks.

    Returns:
        out [batch, heads, n_local, d_v] of q's kind and dtype, for this rank's queries; with `return_lse` a Partial
        with lse float32 [batch, heads, n_local], sinks included. Queries that see nothing get 0 and -inf.
        Differentiable once in q, k and v, through out and lse, for torch tensors that require gradients; not in
        spec.sinks and spec.alibi_slopes.

    Collective, and so is the backward pass: every rank runs it, as often and in the same order.

    Raises:
        OperatorError: This rank's arguments do not fit.
        MismatchError: Ranks differ in batch, heads, dims, dtypes, spec, layout, ring, return_lse or in whether
            gradients are wanted, or their positions overlap or leave some out; on every rank.
        DeadlineError, RankFailedError: Another rank did not come, or failed.
    """
    comm = as_communicator(NAME, comm)
    tensors, inputs = sequence_inputs(NAME, q, k, v, spec)
    ring_given = _checked_ring(ring, comm.size)
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    choices = {"ring": ring_given, "return_lse": int(return_lse), "dtype of q": DTYPES.index(inputs.q.dtype)}
    parts = agree_on_parts(NAME, comm, inputs, positions=positions, layout=layout, gradients=wanted, choices=choices)
    ring_size = ring_given
    if ring_given == AUTO:
        ring_size = best_cost(
            comm, _shape(inputs, sum(parts.sizes), balanced=layout == "zigzag" or positions is not None)
        ).ring
    grid = HeadGrid(comm.size, ring_size, inputs.q.shape[1], inputs.k.shape[1])
    call = UlyssesCall.of(comm, grid, parts, inputs, return_lse=return_lse)
    if wanted:
        result = _UlyssesAttention.apply(*tensors, call)  # type: ignore[no-untyped-call]
    else:
        result = call.forward(inputs.q, inputs.k, inputs.v, keep=False)[0]
    out = to_caller(q, result[0])
    return Partial(out, to_caller(q, result[1])) if return_lse else out


def _checked_ring(ring: Any, ranks: int) -> int:
    """Return the size of a ring that divides the ranks, or `AUTO`."""
    if isinstance(ring, str) and ring == "auto":
        return AUTO
    if isinstance(ring, bool) or not isinstance(ring, int) or ring < 1 or ranks % ring:
        divisors = ", ".join(str(r) for r in range(1, ranks + 1) if ranks % r == 0)
        raise OperatorError(
            f'{NAME}: ring must divide the {ranks} ranks, so one of {divisors}, or be "auto"; got {ring!r}'
        )
    return ring


def _shape(inputs: Inputs, tokens: int, *, balanced: bool) -> SequenceShape:
    """What the cost of a pass depends on; q's dtype counts as that of k and v too."""
    batch, heads, _, d = inputs.q.shape
    place = "gpu" if on_gpu(inputs.q) else "cpu"
    _, kv_heads, _, d_v = inputs.v.shape
    spec, dtype = inputs.spec, inputs.q.dtype
    return SequenceShape(max(tokens, 1), batch, heads, kv_heads, d, d_v, dtype, place, spec.causal, balanced)


class _UlyssesAttention(torch.autograd.Function):
    """Both all-to-alls and what is between as one differentiable operation."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: UlyssesCall
    ) -> tuple[torch.Tensor, ...]:
        result, kept = call.forward(q.detach(), k.detach(), v.detach(), keep=True)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*kept)
        ctx.call, ctx.out = call, (result[0].shape, result[0].dtype, result[0].device)
        return result

    @staticmethod
    @once_differentiable
    @skipped_by_dynamo
    def backward(ctx: Any, d_out: torch.Tensor | None, d_lse: torch.Tensor | None = None) -> Any:
        shape, dtype, device = ctx.out
        d_out = torch.zeros(shape, dtype=dtype, device=device) if d_out is None else d_out
        return (*ctx.call.backward(ctx.saved_tensors, d_out, d_lse), None)
