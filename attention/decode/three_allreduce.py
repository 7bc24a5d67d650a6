"""The tree attention of the paper: three all-reduces after the local partial. A baseline for `tree_decode`."""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

import torch

from attention.array_types import AnyArray, DecodeArguments, Numbers, Ranks
from attention.decode.agreement import agree_once
from attention.decode.communicators import prepared_call
from attention.decode.sharded import Options, ShardedCall
from attention.gpu.loading import load_once
from attention.local.dispatch import attend
from attention.partial import Partial
from attention.spec import Spec
from attention.visibility import Masking
from topocomm import MAX, SUM
from topocomm.extend import skipped_by_dynamo


@overload
def three_allreduce_decode(
    q: AnyArray,
    k_shard: AnyArray,
    v_shard: AnyArray,
    comm: Ranks,
    *,
    return_lse: Literal[False] = False,
    out: AnyArray | None = None,
    **rest: Unpack[DecodeArguments],
) -> AnyArray: ...
@overload
def three_allreduce_decode(
    q: AnyArray,
    k_shard: AnyArray,
    v_shard: AnyArray,
    comm: Ranks,
    *,
    return_lse: Literal[True],
    out: AnyArray | None = None,
    **rest: Unpack[DecodeArguments],
) -> Partial: ...
# The arguments are those of a frozen public interface; the sharded methods share them.
@skipped_by_dynamo
def three_allreduce_decode(  # noqa: PLR0913
    q: AnyArray,
    k_shard: AnyArray,
    v_shard: AnyArray,
    comm: Ranks,
    *,
    spec: Spec | None = None,
    q_positions: Numbers = None,
    kv_positions: Numbers = None,
    kv_mask: Numbers = None,
    kv_lengths: Numbers = None,
    return_lse: bool = False,
    out: AnyArray | None = None,
) -> Any:
    """`tree_decode` by algorithm 3 of the paper; the same arguments, results and errors, for comparison.

    Shyam et al., "Tree Attention" (2024), algorithm 3: with each rank's (o, l), m = max l over the ranks,
    n = o exp(l - m), d = exp(l - m), out = sum n / sum d. Three all-reduces, of lse, numerator and denominator,
    all float32. Where a rank has no visible key, its l = -inf gives n = d = 0.
    """
    masking = Masking(q_positions, kv_positions, kv_mask, kv_lengths)
    options = Options(spec, masking, return_lse, out)
    call = ShardedCall.begin("three_allreduce_decode", q, (k_shard, v_shard), comm, options)
    agree_once("three_allreduce_decode", call)
    load_once("three_allreduce_decode", call)
    merged = call.empty()
    numerator, lse = merged
    attend(call.inputs, merged)
    top = {"value": lse.clone()}
    prepared_call(call.comm, "allreduce", top, MAX)(top, out=top)
    base = torch.where(top["value"] == -torch.inf, 0, top["value"])
    denominator = torch.exp(lse - base)
    numerator.mul_(denominator[..., None])
    for term in ({"value": numerator}, {"value": denominator}):
        prepared_call(call.comm, "allreduce", term, SUM)(term, out=term)
    numerator.div_(torch.where(denominator == 0, 1, denominator)[..., None])
    torch.add(base, denominator.log(), out=lse)
    return call.finish(merged)
