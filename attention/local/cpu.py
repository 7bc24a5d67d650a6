"""Attention over one shard of keys: on the CPU, and by `attention.gpu` where the tensors are on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attention import gpu
from attention.arrays import Inputs, check_inputs, check_out, to_caller
from attention.gpu.where import on_gpu
from attention.local.blocks import attend_blocks
from attention.local.rows import attend_rows, covers
from attention.partial import Partial
from attention.spec import PLAIN, Spec
from attention.visibility import Masking
from topocomm import OperatorError


# The arguments are those of a public interface; the sharded functions share them.
def local_attention(  # noqa: PLR0913
    q: Any,
    k: Any,
    v: Any,
    *,
    spec: Spec | None = None,
    q_positions: Any = None,
    kv_positions: Any = None,
    kv_mask: Any = None,
    kv_lengths: Any = None,
    block_tables: Any = None,
    out: Partial | None = None,
) -> Partial:
    """Attention of all queries over the keys given, as a float32 Partial.

    Scores, softmax and sums are float32 whatever the input dtype. K and V are never expanded over query heads: the
    heads that share a key head are folded into the query axis. Work goes in blocks of keys with an online softmax
    between them, so that beyond inputs and result the call needs less than 32 MiB, whatever n and q_len. Up to 16
    queries (decoding) run in a compiled kernel that reads K and V once, if numba is installed; more, and keys whose
    last axis is strided, as matrix products of torch.

    CUDA tensors of up to 16 queries go to `attention.gpu.decode.decode_partial`, of more to
    `attention.gpu.prefill.prefill_partial`, which rounds weights to the dtype of K and V and takes no block_tables.

    Args:
        q: [batch, heads, q_len, d], float32, float16 or bfloat16; NumPy or torch (CPU or CUDA), any strides.
        k: [batch, kv_heads, n, d]; heads is a multiple of kv_heads; n may be 0. With block_tables
            [pages, kv_heads, page size, d], any strides.
        v: [batch, kv_heads, n, d_v], of k's dtype; likewise.
        spec: Which attention; None: Spec(). Without sinks, which are no part of a partial: `add_sinks` adds them.
        q_positions: Global positions of the queries, integers [q_len] or [batch, q_len], in any order. Used only if
            causal or with a window or slopes; without both positions the queries are taken to be the last ones of
            these keys.
        kv_positions: Global positions of the keys, [n] or [batch, n], in any order.
        kv_mask: Bool [n] or [batch, n]: True where a key exists. None: all exist.
        kv_lengths: Integers [batch]: only the first so many keys of an entry exist. None: all.
        block_tables: Integers [batch, pages of an entry]: key i of an entry is number i modulo the page size of the
            page block_tables[entry, i // page size]. What lies beyond kv_lengths, which are needed, may be anything.
        out: A Partial of arrays to write the result into; None allocates them.

    Returns:
        out [batch, heads, q_len, d_v] and lse [batch, heads, q_len] (natural logarithm), float32, of q's kind. Rows
        that see no key are (0, -inf). What keys hold that no query of the batch entry sees does not matter, NaN
        neither.

    Raises:
        OperatorError: Shapes, dtypes or devices do not fit, or there are sinks.
    """
    masking = Masking(q_positions, kv_positions, kv_mask, kv_lengths, block_tables)
    if on_gpu(q):
        return gpu.local_partial("local_attention", (q, k, v), PLAIN if spec is None else spec, masking, out)
    if spec is not None and spec.sinks is not None:
        raise OperatorError(
            "local_attention: spec.sinks are counted once, after the partials are merged; leave them out here and call "
            "attention.add_sinks(partial, sinks) on the merged one"
        )
    inputs = check_inputs("local_attention", q, k, v, spec=PLAIN if spec is None else spec, masking=masking)
    if out is None:
        result = inputs.empty_partial()
        attend(inputs, result)
        return Partial(to_caller(q, result.out), to_caller(q, result.lse))
    shape = inputs.out_shape
    attend(
        inputs,
        Partial(
            check_out("local_attention", "out.out", out.out, shape, torch.float32, inputs.q.device),
            check_out("local_attention", "out.lse", out.lse, shape[:3], torch.float32, inputs.q.device),
        ),
    )
    return out


def attend(inputs: Inputs, result: Partial, *, between: Callable[[], None] | None = None) -> None:
    """Write the attention of checked inputs into float32 tensors (out, lse) of any strides.

    `between` is called now and then on the way, so that messages move meanwhile.
    """
    if on_gpu(inputs.q):
        gpu.attend(inputs, result, between=between)
    elif covers(inputs):
        attend_rows(inputs, result, between)
    else:
        attend_blocks(inputs, result, between)
