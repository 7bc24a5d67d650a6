"""The cache that transformers sees: layers that keep the positions which one rank owns, with global lengths."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from attention.cache import ShardedKVCache
from attention.loss import Loss
from attention.recovery import Recovery
from attention.shards import Positions, ShardMap
from attention.token_record import TokenRecord
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

RECOMPUTED_TOKENS = 1024
"""Lost tokens pass through the model in pieces of this size, which bounds the memory that this takes."""


class ShardedLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer of a `ShardedCache`: `keys` and `values` hold the owned positions only, lengths are global."""

    is_compileable = False

    def __init__(self, store: ShardedKVCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.store = store
        self.queries = torch.arange(0)
        """Positions of the queries of the running forward pass."""
        self.restoring: Positions | None = None
        """Positions of the running pass where it puts back lost tokens; None: it adds the next ones."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep the owned ones of the next tokens; returns all owned keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.restoring is None:
            self.queries = torch.arange(self.store.length, self.store.length + key_states.shape[2])
            self.store.append(key_states, value_states)
        else:
            self.queries = torch.from_numpy(self.restoring)
            self.store.restore(key_states, value_states, self.restoring)
        return self.show()

    def get_seq_length(self) -> int:
        """Tokens of the whole sequence, on all ranks."""
        return self.store.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Masks cover the whole sequence; the attention function picks the owned positions."""
        return self.store.length + (query_length if self.restoring is None else 0), 0

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
            self.show()

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

    def adopted(self) -> None:
        """Follow a store that a recovery has changed."""
        if self.store.length:
            self.show()
        elif self.is_initialized:
            self.reset()

    def _select(self, index: torch.Tensor) -> None:
        if self.is_initialized:
            self.store.select_batch(index)
            self.show()

    def show(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The owned keys and values, after the store has changed."""
        keys, values = self.keys, self.values = self.store.k, self.store.v
        return keys, values


class ShardedCache(Cache):
    """A cache for `generate(..., past_key_values=cache)` of which this rank holds the positions that it owns.

    Args:
        model: The model; refused if its attention is not plain causal attention.
        comm: The ranks to shard over.
        shards: Who owns which positions; None deals blocks of 16 tokens out round robin.
        replicas: How many ranks hold each token; None: as `shards` says.

    Attributes:
        comm: The ranks; `recover` puts those that are left in their place.

    Raises:
        ValueError: The model has features that a sharded cache does not cover, there are more ranks than virtual
            shards, or more replicas than ranks.
    """

    def __init__(
        self, model: PreTrainedModel, comm: Communicator, shards: ShardMap | None = None, replicas: int | None = None
    ) -> None:
        config = model.config.get_text_config(decoder=True)
        refuse_unsupported_model(config)
        shards = shards or ShardMap(comm.size)
        if shards.ranks != comm.size:
            raise ValueError(f"ShardedCache: the map is for {shards.ranks} ranks, the communicator has {comm.size}")
        if replicas is not None:
            shards = replace(shards, replicas=replicas)
        self.comm = comm
        self.record = TokenRecord()
        self._model = model
        owned = [ShardedKVCache(shards, comm.rank) for _ in range(config.num_hidden_layers)]
        self.sharded_layers = tuple(ShardedLayer(store) for store in owned)
        """`layers`, with their type known."""
        super().__init__(layers=[*self.sharded_layers])

    @property
    def shards(self) -> ShardMap:
        """Who owns which positions."""
        return self.sharded_layers[0].store.shards

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """The tokens so far, as `generate` takes them to go on; after `recover` the same on every rank.

        `input_ids` and `attention_mask`, int64 [batch, tokens]; empty before the first token, and where the model
        was given embeddings.
        """
        if self.record.length == 0 or self.record.length < self.get_seq_length():
            return {}
        return {"input_ids": self.record.ids.clone(), "attention_mask": self.record.mask.clone()}

    def lost(self, survivors: Iterable[int]) -> Loss:
        """What the cache loses if only these ranks of it are left, the same in all layers."""
        shortest = min(self.sharded_layers, key=lambda layer: layer.store.length)
        return shortest.store.lost(survivors)

    def recover(self, comm: Communicator) -> Loss:
        """Go on over `comm`, which `shrink` made after a loss; returns what was lost. Collective.

        All ranks cut back to the tokens that all of them have in all layers. Who is left keeps what it holds, copies
        become owned where their owner is gone, and missing copies are made again. Tokens of which nothing is left
        pass through the model once more, in order: at each layer their keys and values are put back and their
        queries see all positions before them, so that nothing else is computed again. The cost is that of a prefill
        of the lost tokens alone, attending to all that lies before each. Call this inside `shard_generation`, whose
        next calls then run over `comm`; if another rank is lost meanwhile, call it again with the next communicator.

        Raises:
            ValueError: Tokens are lost that the model was given as embeddings; nothing has changed then.
            RankFailedError, DeadlineError: Another rank was lost.
        """
        stores = [layer.store for layer in self.sharded_layers]
        recovery = Recovery.agree(stores, comm)
        mine = np.array([self.record.length, self.record.batch], np.int64)
        told = [record.view(np.int64).tolist() for record in comm.allgather_bytes(mine.view(np.uint8))]
        root = max(range(comm.size), key=lambda rank: told[rank][0])
        tokens, batch = told[root]
        if tokens < recovery.length and len(recovery.missing):
            raise ValueError(
                f"ShardedCache.recover: {recovery.loss}; {recovery.length - tokens} of {recovery.length} tokens were "
                "given to the model as embeddings, which are not kept; use replicas=2"
            )
        self.comm = comm
        recovery.move()
        for layer in self.sharded_layers:
            layer.adopted()
        if tokens and tokens >= recovery.length:
            self.record.spread(comm, root, batch, tokens)
        self._recompute(recovery.missing)
        if 0 < tokens == recovery.length:
            for layer in self.sharded_layers:
                layer.crop(-1)  # so that a token is left from which the next one follows
        return recovery.loss

    def reset(self) -> None:
        """Forget all tokens."""
        super().reset()  # type: ignore[no-untyped-call]
        self.record.clear()

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last `-tokens_to_remove` tokens of the sequence (a negative number, as in transformers)."""
        super().crop(tokens_to_remove)
        self.record.truncate(self.get_seq_length())

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Take the batch rows `beam_idx`; local to each rank."""
        super().reorder_cache(beam_idx)  # type: ignore[arg-type]
        self.record.select_batch(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every batch row."""
        super().batch_repeat_interleave(repeats)
        self.record.select_batch(torch.arange(self.record.batch).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the batch rows `indices`."""
        super().batch_select_indices(indices)
        self.record.select_batch(indices)

    def _recompute(self, missing: Positions) -> None:
        """Pass the tokens at these positions through the model and put their keys and values back; collective."""
        mask = self.record.mask[:, : self.get_seq_length()] if len(missing) else None
        for start in range(0, len(missing), RECOMPUTED_TOKENS):
            part = missing[start : start + RECOMPUTED_TOKENS]
            for layer in self.sharded_layers:
                layer.restoring = part
            try:
                with torch.no_grad():
                    self._model.base_model(
                        input_ids=self.record.ids[:, part],
                        position_ids=self.record.places[:, part],
                        attention_mask=mask,
                        past_key_values=self,
                        use_cache=True,
                    )
            finally:
                for layer in self.sharded_layers:
                    layer.restoring = None

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
