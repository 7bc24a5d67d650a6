"""A prompt's pass where the weights are sharded: each rank passes all tokens, and attends with its own heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attention import gpu
from attention.cache.kv_cache import ShardedKVCache
from attention.huggingface.split_pass import LEAST_TOKENS, MOST_CACHED, KeysAndValues, Split
from attention.huggingface.weights.slices import groups_of_heads
from attention.local.dispatch import local_attention
from attention.partial import add_sinks
from attention.spec import Spec


@dataclass(frozen=True)
class HeadSplit:
    """A pass over the positions [start, stop), of which every rank has all queries, keys and values.

    So attention needs no reduction: a rank's output projection takes the heads that it attends with. Of the keys and
    values it keeps its own positions.
    """

    split: Split
    heads: slice

    @property
    def stop(self) -> int:
        """The tokens of the sequence after the pass."""
        return self.split.stop

    def store(self, store: ShardedKVCache, k: torch.Tensor, v: torch.Tensor) -> KeysAndValues:
        """As `Split.store`, for keys and values of all new tokens."""
        return self.split.append(store, k, v)

    def attend(
        self, q: torch.Tensor, pieces: Iterable[KeysAndValues], tokens: int, spec: Spec, present: Any
    ) -> torch.Tensor:
        """Return attention of this rank's heads, [batch, own heads, tokens, d_v] of q's dtype, as `Split.attend`."""
        ((k, v),) = pieces
        first, group = self.stop - tokens, q.shape[1] // k.shape[1]
        sinks, plain = spec.sinks, gpu.without_sinks(spec)
        places = torch.arange(first, self.stop, device=q.device)
        outs = []
        for heads, kv_heads in groups_of_heads(self.heads, group):
            seen = local_attention(
                q[:, heads],
                k[:, kv_heads],
                v[:, kv_heads],
                spec=plain,
                q_positions=places[self.split.start - first :],
                kv_positions=places,
                kv_mask=None if present is None else present[:, first:],
            )
            outs.append((seen if sinks is None else add_sinks(seen, sinks[heads])).out)
        return torch.cat(outs, 1).to(q.dtype)

    def states(self, own: torch.Tensor) -> torch.Tensor:
        """The hidden states that are wanted: every rank has all."""
        return own


def head_split_of(cache: Any, given: Mapping[str, Any]) -> HeadSplit | None:
    """Return how a pass is shared out by heads; None: each rank attends with all heads to the keys that it has."""
    tokens = given.get("input_ids") if given.get("inputs_embeds") is None else given["inputs_embeds"]
    if tokens is None or not cache.may_split or cache.weights.heads is None:
        return None
    start, count = cache.get_seq_length(), tokens.shape[1]
    if count < LEAST_TOKENS * cache.comm.size or start > MOST_CACHED * count:
        return None
    return HeadSplit(Split(cache.comm, cache.shards, start, start + count, 0, False), cache.weights.heads)
