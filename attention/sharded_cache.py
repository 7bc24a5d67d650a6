"""The cache that transformers sees: layers that keep the positions which one rank owns, with global lengths."""

from __future__ import annotations

from typing import Any

import torch

from attention.cache import ShardedKVCache
from attention.shards import ShardMap
from topocomm import Communicator, MissingExtraError

try:
    from transformers import PreTrainedModel
    from transformers.cache_utils import Cache, DynamicLayer
except ImportError as error:
    raise MissingExtraError("attention.huggingface", "transformers", "demo") from error

UNSUPPORTED_CONFIG = (
    "sliding_window",
    "attention_chunk_size",
    "attn_logit_softcapping",
    "kv_sharing_modes",
    "num_kv_shared_layers",
)
"""Configuration entries that, when set, mean attention that is not plain causal attention over all positions."""


class ShardedLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer of a `ShardedCache`: `keys` and `values` hold the owned positions only, lengths are global."""

    is_compileable = False

    def __init__(self, store: ShardedKVCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.store = store
        self.query_start = 0
        """Position of the first query of the running forward pass."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep the owned ones of the next tokens; returns all owned keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.query_start = self.store.length
        self.store.append(key_states, value_states)
        return self._show()

    def get_seq_length(self) -> int:
        """Tokens of the whole sequence, on all ranks."""
        return self.store.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Masks cover the whole sequence; the attention function picks the owned positions."""
        return self.store.length + query_length, 0

    def reset(self) -> None:
        """Forget all tokens."""
        self.store.reset()
        super().reset()

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last `-tokens_to_remove` tokens of the sequence (a negative number, as in transformers)."""
        if tokens_to_remove > 0:
            raise ValueError(f"ShardedLayer.crop: tokens_to_remove must be 0 or negative, got {tokens_to_remove}")
        if self.is_initialized:
            self.store.truncate(max(0, self.store.length + tokens_to_remove))
            self._show()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Take the batch rows `beam_idx`; local to each rank."""
        self._select(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every batch row."""
        if self.is_initialized:
            self._select(torch.arange(self.store.k.shape[0]).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the batch rows `indices`."""
        self._select(indices)

    def offload(self) -> None:
        """Refused: a shard stays where it is."""
        raise NotImplementedError("ShardedCache cannot be offloaded; use more ranks")

    def _select(self, index: torch.Tensor) -> None:
        if self.is_initialized:
            self.store.select_batch(index)
            self._show()

    def _show(self) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.keys, self.values = self.store.k, self.store.v
        return keys, values


class ShardedCache(Cache):
    """A cache for `generate(..., past_key_values=cache)` of which this rank holds the positions that it owns.

    Args:
        model: The model, or its configuration; refused if its attention is not plain causal attention.
        comm: The ranks to shard over.
        shards: Who owns which positions; None deals blocks of 16 tokens out round robin.

    Raises:
        ValueError: The model has features that a sharded cache does not cover, or there are more ranks than
            virtual shards.
    """

    def __init__(self, model: PreTrainedModel, comm: Communicator, shards: ShardMap | None = None) -> None:
        config = model.config.get_text_config(decoder=True)
        refuse_unsupported_model(config)
        self.shards = shards or ShardMap(comm.size)
        if self.shards.ranks != comm.size:
            raise ValueError(
                f"ShardedCache: the map is for {self.shards.ranks} ranks, the communicator has {comm.size}"
            )
        owned = [ShardedKVCache(self.shards, comm.rank) for _ in range(config.num_hidden_layers)]
        self.sharded_layers = tuple(ShardedLayer(store) for store in owned)
        """`layers`, with their type known."""
        super().__init__(layers=[*self.sharded_layers])

    @property
    def used_bytes(self) -> int:
        """Bytes of the keys and values that this rank holds, over all layers."""
        return sum(layer.store.used_bytes for layer in self.sharded_layers)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of this rank's storage for them."""
        return sum(layer.store.allocated_bytes for layer in self.sharded_layers)


def refuse_unsupported_model(config: Any) -> None:
    """Check that a configuration means plain causal attention over all positions.

    Raises:
        ValueError: It does not; the message names the entry.
    """
    found = [f"{name}={getattr(config, name)}" for name in UNSUPPORTED_CONFIG if getattr(config, name, None)]
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    found += [f"layers of type {kind}" for kind in kinds]
    if getattr(config, "is_encoder_decoder", False):
        found.append("an encoder-decoder model")
    if found:
        raise ValueError(
            f"a sharded cache covers plain causal attention only; {config.model_type} has {', '.join(found)}"
        )
