"""One layer's attention of one step of vLLM on the CPU, with keys and values spread over the ranks by tokens."""

from __future__ import annotations

from dataclasses import replace

import torch

from attention.arrays import Inputs, empty_partial
from attention.engines.vllm.cpu_batch import Batch
from attention.engines.vllm.cpu_exchange import HeadExchange
from attention.local.dispatch import attend
from attention.merge.merge_states import merge_states
from attention.partial import Partial
from attention.spec import Spec

Pair = tuple[torch.Tensor, torch.Tensor]


def split_cache(cache: torch.Tensor) -> Pair:
    """Return keys and values [blocks, kv_heads, block size, d] of vLLM's [blocks, kv_heads, block size, 2 d]."""
    d = cache.shape[3] // 2
    return cache[..., :d], cache[..., d:]


def keep(cache: Pair, new: Pair, batch: Batch) -> None:
    """Write those of the new keys and values [tokens, kv_heads, d] that are this rank's to its cache."""
    for pages, x in zip(cache, new, strict=True):
        pages[batch.blocks, :, batch.offsets] = x[batch.own]


def attend_step(
    q: torch.Tensor,
    new: Pair,
    cache: Pair,
    batch: Batch,
    exchange: HeadExchange,
    spec: Spec,
    out: torch.Tensor,
) -> None:
    """Write the attention of a step's tokens; collective where the batch has shared tokens.

    Args:
        q: This rank's queries [tokens, heads, d].
        new: Keys [tokens, kv_heads, d] and values of the same tokens, all of them on every rank.
        cache: This rank's keys and values, as `split_cache` has them, with its part of the new ones.
        batch: The step.
        exchange: Over the ranks of the context.
        spec: Scale and softcap; the causal mask is that of the batch.
        out: [tokens, heads, d], written; d is that of the values.
    """
    merged = None
    if batch.n_shared:
        merged = _over_caches(q, cache, batch, exchange, spec)
        decoded = merged.out[:, : batch.n_decodes].transpose(0, 1).to(out.dtype)
        if batch.decodes is None:
            out[: batch.tokens] = decoded
        elif batch.n_decodes:
            out[batch.decodes] = decoded
    for prompt in batch.prompts:
        k, v = (x[prompt.tokens].transpose(0, 1)[None] for x in new)
        own = Inputs(q[prompt.tokens].transpose(0, 1)[None], k, v, replace(spec, causal=True), prompt.visibility)
        partial = own.empty_partial()
        attend(own, partial, exact=False)  # it is rounded to the same dtype in the end
        result = partial.out[0]
        if prompt.context is not None:
            assert merged is not None
            before = Partial(*(x[:, prompt.context] for x in merged))
            result = merge_states([before.out, partial.out[0]], [before.lse, partial.lse[0]]).out
        out[prompt.tokens] = result.transpose(0, 1).to(out.dtype)


def _over_caches(q: torch.Tensor, cache: Pair, batch: Batch, exchange: HeadExchange, spec: Spec) -> Partial:
    """The shared tokens over all ranks' caches: out [heads, shared, d_v], lse [heads, shared]; collective."""
    shared = q[: batch.tokens] if batch.shared is None else q[batch.shared]
    queries = exchange.gather(shared.transpose(0, 1))
    k, v = cache
    partial = empty_partial((*queries.shape[:2], v.shape[3]), q.device)
    for group in batch.groups:
        # [heads, batch * q_len, ...] as [batch, heads, q_len, ...]
        shape = len(queries), group.batch, group.q_len
        rows, out = (x[:, group.rows].view(*shape, -1).transpose(0, 1) for x in (queries, partial.out))
        lse = partial.lse[:, group.rows].view(shape).transpose(0, 1)
        attend(Inputs(rows, k, v, spec, group.visibility, group.pages), Partial(out, lse))
    return exchange.merge(partial)
