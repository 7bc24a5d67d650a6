"""Sequence-parallel passes: each rank takes its own tokens of a prompt through the whole model.

Two hooks on the model's decoder carry this (`forward_passes`): one leaves a rank the tokens that it will own, the other
gives back to all ranks the hidden states that are asked for. In between every layer computes for its rank's tokens
only; attention gets the keys and values of all ranks layer by layer, gathered or by the ring, or else all tokens of
some heads (`ring_or_gather`). The cache deals a prompt in zigzag, as in context-parallel training (Llama 3,
arXiv:2407.21783, section 3.3.2). Of latents the rows are gathered, whatever their number, and every rank expands them.
What goes the other way, where every rank passes all tokens and each layer's partials are reduced, is in
docs/guide/attention.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from attention import gpu
from attention.cache.growable_storage import on_device
from attention.cache.kv_cache import ShardedKVCache
from attention.cache.shards import BLOCK_TOKENS, Positions, ShardMap
from attention.gpu.placement import on_gpu
from attention.huggingface.ring_or_gather import GATHER, Exchange
from attention.local.dispatch import local_attention
from attention.merge.merge_states import merge_states
from attention.partial import Partial, add_sinks
from attention.ring.ring_prefill import ring_attention
from attention.spec import Spec
from attention.ulysses.sequence_cost import SequenceShape
from attention.ulysses.ulysses_attention import ulysses_attention
from topocomm import Communicator

KeysAndValues = tuple[torch.Tensor, torch.Tensor]
LEAST_TOKENS = 8
"""New tokens a rank, on average, from which on a pass is shared out; a choice that was not measured."""
MOST_CACHED = 32
"""Cached tokens for each new one, at most: their keys are gathered too; a choice that was not measured."""
PER_LAYER = ("output_hidden_states", "output_attentions", "output_router_logits")
"""What asks for states that only the end of a pass gives back."""


@dataclass(frozen=True)
class Split:
    """A pass over the positions [start, stop) of which each rank has those that it owns by `shards`.

    Attributes:
        kept: Hidden states of so many last tokens are wanted; 0: of all.
        whole: Whether all tokens before are none, no token is padding and no rank keeps copies, as the ring wants it.
        heads: Query heads of a layer; 0: as many as key heads.
        chosen: Of exchanges of this pass, the size of the rings that make them, or `GATHER`.
    """

    comm: Communicator
    shards: ShardMap
    start: int
    stop: int
    kept: int
    whole: bool
    heads: int = 0
    chosen: dict[Exchange, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def own(self) -> Positions:
        """This rank's positions, ascending."""
        return self.shards.owned(self.comm.rank, self.start, self.stop)

    def gathered(self, rows: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Return [stop - start, ...] of all ranks, in order, from this rank's rows of [start, stop), ascending."""
        owned = [self.shards.owned(rank, start, stop) for rank in range(self.comm.size)]
        whole: torch.Tensor = self.comm.allgather(rows.contiguous())
        return whole.index_select(0, on_device(np.argsort(np.concatenate(owned), kind="stable"), rows.device))

    def keys_and_values(self, k: torch.Tensor, v: torch.Tensor, start: int, stop: int) -> KeysAndValues:
        """The same of keys and values [batch, kv_heads, tokens, d] that this rank has."""
        rows = self.gathered(torch.cat([k, v], -1).permute(2, 0, 1, 3), start, stop).permute(1, 2, 0, 3)
        return rows[..., : k.shape[3]], rows[..., k.shape[3] :]

    def store(self, store: ShardedKVCache, k: torch.Tensor, v: torch.Tensor) -> KeysAndValues | None:
        """Keep this rank's tokens of a layer, and return what it attends to; None: by `by_ring`, what it keeps.

        Args:
            store: The layer's, which ends before the pass.
            k: This rank's keys [batch, kv_heads, tokens, d].
            v: Its values [batch, kv_heads, tokens, d_v]; d_v is 0 where they are columns of the keys, as of latents,
                which do not go by the ring: they are few numbers, and the ring would send their columns again.

        Returns:
            Keys and values of all ranks, of the positions from `store.first` before the call to `stop`.
        """
        if self.whole and v.shape[3] and self._ring_size(k, v) != GATHER:
            store.shards = self.shards
            store.extend(k, v, self.stop)
            return None
        return self.append(store, *self.keys_and_values(k, v, self.start, self.stop))

    def _ring_size(self, k: torch.Tensor, v: torch.Tensor) -> int:
        batch, kv_heads, _, d = k.shape
        width, heads = d + v.shape[3], self.heads or kv_heads
        token_bytes = batch * kv_heads * width * k.element_size()
        place = "gpu" if on_gpu(k) else "cpu"
        exchange = Exchange(self.stop, batch, heads, width, token_bytes, place)
        if exchange not in self.chosen:  # most layers are alike
            shape = SequenceShape(self.stop, batch, heads, kv_heads, d, v.shape[3], k.dtype, place)
            self.chosen[exchange] = exchange.ring_size(self.comm, shape)
        return self.chosen[exchange]

    def append(self, store: ShardedKVCache, *new: torch.Tensor) -> KeysAndValues:
        """As `store`, for keys and values of all ranks."""
        whole: KeysAndValues = (new[0], new[1])
        first = store.first
        if self.start > first:
            cached = store.rows_at(store.shards.owned(store.rank, first, self.start))
            before = self.keys_and_values(*cached[:2], first, self.start)
            whole = torch.cat([before[0], new[0]], 2), torch.cat([before[1], new[1]], 2)
        store.shards = self.shards
        store.append(new[0], new[1])
        return whole

    def by_ring(self, q: torch.Tensor, own: KeysAndValues, spec: Spec) -> torch.Tensor:
        """Return attention of this rank's queries, as `attend`, where rings or all-to-alls bring what is kept now."""
        ring, positions = self._ring_size(*own), self.own.copy()
        out: torch.Tensor
        if ring == self.comm.size:
            out = ring_attention(q, *own, self.comm, spec=spec, positions=positions)
        else:
            out = ulysses_attention(q, *own, self.comm, ring=ring, spec=spec, positions=positions)
        return out

    def attend(
        self, q: torch.Tensor, pieces: Iterable[KeysAndValues], tokens: int, spec: Spec, present: Any
    ) -> torch.Tensor:
        """Return attention of this rank's queries, [batch, heads, tokens, d_v] of q's dtype.

        Args:
            q: [batch, heads, tokens, d].
            pieces: Keys and values of all ranks, of consecutive positions up to `stop`; one piece at least.
            tokens: How many positions these are.
            spec: Which attention.
            present: Which positions hold tokens, bool [batch, stop]; None: all.
        """
        first, queries, seen = self.stop - tokens, on_device(self.own, q.device), None
        for k, v in pieces:
            end = first + k.shape[2]
            part = local_attention(
                q,
                k,
                v,
                spec=gpu.without_sinks(spec),
                q_positions=queries,
                kv_positions=torch.arange(first, end, device=q.device),
                kv_mask=None if present is None else present[:, first:end],
            )
            seen = part if seen is None else merge_states(*zip(seen, part, strict=True))
            first = end
        assert seen is not None
        merged: Partial = seen if spec.sinks is None else add_sinks(seen, spec.sinks)
        out: torch.Tensor = merged.out.to(q.dtype)
        return out

    def states(self, own: torch.Tensor) -> torch.Tensor:
        """Return the hidden states that are wanted, [batch, tokens, width], from those of this rank."""
        start = max(self.start, self.stop - self.kept) if self.kept else self.start
        rows = own[:, len(self.own) - len(self.shards.owned(self.comm.rank, start, self.stop)) :].transpose(0, 1)
        return self.gathered(rows, start, self.stop).transpose(0, 1)


def split_of(decoder: torch.nn.Module, cache: Any, given: Mapping[str, Any], kept: int) -> Split | None:
    """Return how a pass with these arguments, its `ShardedCache` among them, is shared out, on all ranks alike.

    `kept` is that of the split. None: every rank passes all tokens.
    """
    tokens = given.get("input_ids") if given.get("inputs_embeds") is None else given["inputs_embeds"]
    if tokens is None or not cache.may_split or tokens.shape[1] < LEAST_TOKENS * cache.comm.size:
        return None
    start, count = cache.get_seq_length(), tokens.shape[1]
    if start > MOST_CACHED * count or _asks_for_more(decoder, given) or mixes_tokens(decoder):
        return None
    shards, stop = cache.shards, start + count
    if shards.capacity is None and shards.holders is None and shards.block_size == BLOCK_TOKENS:
        shards = shards.with_prompt(start, stop)
    if any(len(shards.owned(rank, start, stop)) == 0 for rank in range(cache.comm.size)):
        return None
    mask, places = given.get("attention_mask"), given.get("position_ids")
    if not (mask is None or mask.shape[-1] == stop) or not (places is None or places.shape[-1] == count):
        return None  # where they are refused
    whole = start == 0 and shards.replicas == 1 and (mask is None or bool(mask.all()))
    return Split(cache.comm, shards, start, stop, kept, whole, getattr(decoder.config, "num_attention_heads", 0))


def _asks_for_more(decoder: torch.nn.Module, given: Mapping[str, Any]) -> bool:
    """Whether a pass asks for gradients or states of layers, or has arguments of unknown axes."""
    mask, known = given.get("attention_mask"), ("input_ids", "inputs_embeds", "position_ids", "attention_mask")
    if not (mask is None or (isinstance(mask, torch.Tensor) and mask.ndim == 2)) or given.get("return_dict") is False:
        return True
    if any(isinstance(x, torch.Tensor) and name not in known for name, x in given.items()):
        return True
    if torch.is_grad_enabled() and any(x.requires_grad for x in decoder.parameters()):
        return True
    return any(given.get(name) or getattr(decoder.config, name, False) for name in PER_LAYER)


def mixes_tokens(decoder: torch.nn.Module) -> bool:
    """Whether a layer looks at several tokens outside of attention, as convolutions do."""
    convolutions = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
    return any(isinstance(module, convolutions) and max(module.kernel_size) > 1 for module in decoder.modules())
