"""Synthetic keys, values and queries that do not depend on how many ranks share them.

Every block of tokens has its own random seed, so a rank makes its own blocks and nobody else's, and anybody can
make any block again to check a result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from attention.cache.shards import BLOCK_TOKENS, ShardMap

QUERY_SEED = 1 << 40  # no block has this number


@dataclass(frozen=True)
class Sizes:
    """Sizes of one decode step: one query per batch row and head, `context` keys."""

    context: int
    batch: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of all keys and values in float32."""
        return 2 * 4 * self.batch * self.kv_heads * self.context * self.head_dim


def queries(sizes: Sizes) -> torch.Tensor:
    """Standard normal queries [batch, heads, 1, head_dim], float32; the same on every rank."""
    random = torch.Generator().manual_seed(QUERY_SEED)
    return torch.randn((sizes.batch, sizes.heads, 1, sizes.head_dim), generator=random)


def block(sizes: Sizes, number: int) -> torch.Tensor:
    """Keys and values of block `number`, standard normal [2, batch, kv_heads, tokens, head_dim], float32."""
    random = torch.Generator().manual_seed(number)
    drawn = torch.randn((2, sizes.batch, sizes.kv_heads, BLOCK_TOKENS, sizes.head_dim), generator=random)
    return drawn[..., : sizes.context - number * BLOCK_TOKENS, :]


def shard(sizes: Sizes, shards: ShardMap, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values [batch, kv_heads, n_local, head_dim] that `rank` owns."""
    positions = shards.owned(rank, 0, sizes.context)
    kv = torch.empty((2, sizes.batch, sizes.kv_heads, len(positions), sizes.head_dim))
    start = 0
    for number in np.unique(positions // BLOCK_TOKENS):
        part = block(sizes, int(number))
        stop = start + part.shape[3]
        kv[..., start:stop, :] = part
        start = stop
    return kv[0], kv[1]


def exact(sizes: Sizes, heads: list[int]) -> torch.Tensor:
    """Return attention of some query heads over all keys by formula, float64 [batch, len(heads), 1, head_dim].

    Two passes over the blocks, first for the softmax, then for the sum, so that memory does not grow with
    batch x context x head_dim.
    """
    group = sizes.heads // sizes.kv_heads
    kv_heads = [head // group for head in heads]
    q = queries(sizes)[:, heads].double() / sizes.head_dim**0.5
    blocks = range(-(-sizes.context // BLOCK_TOKENS))
    scores = torch.cat([q @ block(sizes, b)[0][:, kv_heads].double().mT for b in blocks], dim=-1)
    weights = torch.split(torch.softmax(scores, dim=-1), BLOCK_TOKENS, dim=-1)
    out = torch.zeros_like(q)
    for number in blocks:
        out += weights[number] @ block(sizes, number)[1][:, kv_heads].double()
    return out
