"""The cache that transformers sees: all layers of a model, each with the positions that one rank owns."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from attention.cache.kv_cache import ShardedKVCache
from attention.cache.loss import Loss
from attention.cache.recovery import Recovery
from attention.cache.shards import Positions, ShardMap
from attention.cache.token_record import TokenRecord
from attention.huggingface.call_arguments import CACHE
from attention.huggingface.hf_layers import ShardedLayer, layer_windows
from attention.huggingface.latents import LatentLayer, latent_modules
from attention.huggingface.split_pass import Split
from attention.huggingface.weights.head_split import HeadSplit
from attention.huggingface.weights.sharded_weights import sharded_weights
from topocomm import Communicator, MissingExtraError, OperatorError
from topocomm.extend import skipped_by_dynamo

try:
    from transformers import PreTrainedModel
    from transformers.cache_utils import Cache
except ImportError as error:
    raise MissingExtraError("attention.huggingface.generation", "transformers", "demo") from error

RECOMPUTED_TOKENS = 1024
"""Lost tokens pass through the model in pieces of this size, which bounds the memory that this takes."""


@skipped_by_dynamo
class ShardedCache(Cache):
    """A cache for `generate(..., past_key_values=cache)` of which this rank holds the positions that it owns.

    Newer transformers call the argument `cache`.

    Args:
        model: The model; layers with a sliding window keep about the window.
        comm: The ranks to shard over.
        shards: Who owns which positions; None deals blocks of 16 tokens out in turn.
        replicas: How many ranks hold each token; None: as `shards` says.

    Attributes:
        comm: The ranks; `recover` puts those that are left in their place.

    Raises:
        OperatorError: The model has features that a sharded cache does not cover, there are more ranks than virtual
            shards, or more replicas than ranks.
    """

    def __init__(
        self, model: PreTrainedModel, comm: Communicator, shards: ShardMap | None = None, replicas: int | None = None
    ) -> None:
        windows = layer_windows(model.config.get_text_config(decoder=True))
        shards = shards or ShardMap(comm.size)
        if shards.ranks != comm.size:
            raise OperatorError(f"ShardedCache: the map is for {shards.ranks} ranks, the communicator has {comm.size}")
        if replicas is not None:
            shards = replace(shards, replicas=replicas)
        self.comm = comm
        self.record = TokenRecord()
        self.splits = True
        """Whether passes may be shared out by tokens (`attention.huggingface.split_pass`)."""
        self.kept = 0
        self.ended = False
        """Whether the model is not sharded any more that filled it."""
        self.weights = sharded_weights(model)
        """How the model's weights are sharded; None: every rank has them whole."""
        self._model = model
        owned = [ShardedKVCache(shards, comm.rank, window=window) for window in windows]
        latent = latent_modules(model)
        self.sharded_layers = tuple(
            LatentLayer(store, latent[index].kv_lora_rank) if index in latent else ShardedLayer(store)
            for index, store in enumerate(owned)
        )
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

    def prefill(self, input_ids: torch.Tensor) -> None:
        """Take a prompt but for its last token, from which `generate` then goes on; collective.

        Args:
            input_ids: The prompt, int64 [batch, tokens], without padding; the same on every rank.

        Raises:
            OperatorError: The cache is not empty.
        """
        tokens = input_ids.shape[1] - 1
        if self.get_seq_length():
            raise OperatorError(
                f"ShardedCache.prefill: the cache has {self.get_seq_length()} tokens already; reset() it"
            )
        if tokens >= 1:
            self.record.add(0, input_ids[:, :tokens], None, None)
            self._pass(np.arange(tokens), None)

    def fresh(self, *, drafts: bool = False) -> ShardedCache:
        """Return an empty cache of the same model, ranks and map; for drafts all passes can be undone at once."""
        cache = ShardedCache(self._model, self.comm, replace(self.shards, prompts=()))
        cache.splits = self.splits and not drafts
        for layer in cache.sharded_layers:
            layer.drafts = drafts
        return cache

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardedCache:
        """A copy on the same ranks, as those make who pass a prompt once and go on from it several times; local."""
        cache = copy(self)
        memo |= {id(self): cache, id(self.shards): self.shards}
        cache.record = deepcopy(self.record, memo)
        cache.sharded_layers = tuple(layer.copied(memo) for layer in self.sharded_layers)
        cache.layers = [*cache.sharded_layers]
        return cache

    def begin(self, split: Split | HeadSplit | None) -> None:
        """Share out the tokens of the pass that begins; None: every rank passes all."""
        if split is None and self.sharded_layers[0].split is None:  # a decode step: nothing is looked at twice
            return
        for layer in self.sharded_layers:
            layer.split = split
            if split is not None:
                layer.step = None

    def end(self) -> Split | HeadSplit | None:
        """End the pass, also one that failed; returns how its tokens were shared out."""
        split = self.sharded_layers[0].split
        for layer in () if split is None else self.sharded_layers:
            layer.split = layer.whole = None
        return split

    def take_kept(self) -> int:
        """Return of how many last tokens the pass that begins is to give hidden states, 0: of all; once."""
        kept, self.kept = self.kept, 0
        return kept

    @property
    def may_split(self) -> bool:
        """Whether the next pass may be shared out by tokens."""
        return self.splits and self.comm.size > 1 and self.sharded_layers[0].restoring is None

    def lost(self, survivors: Iterable[int]) -> Loss:
        """Return what the cache loses if only these ranks of it are left, the same in all layers."""
        shortest = min(self.sharded_layers, key=lambda layer: layer.store.length)
        return shortest.store.lost(survivors)

    def recover(self, comm: Communicator) -> Loss:
        """Go on over `comm`, which `shrink` made after a loss; returns what was lost. Collective.

        All ranks cut back to the tokens that all of them have in all layers. Who is left keeps what it holds, copies
        become owned where their owner is gone, and missing copies are made again. Tokens of which nothing is left
        pass through the model once more, in order: at each layer their keys and values are put back and their
        queries see all positions before them, so that nothing else is computed again. The cost is that of a prefill
        of the lost tokens alone, attending to all that lies before each. Where a sliding window has dropped tokens that
        those would see, or the model takes no `position_ids`, all tokens are computed again, in order. Call this inside
        `shard_generation`, whose next calls then run over `comm`; if another rank is lost meanwhile, call it again with
        the next communicator.

        Raises:
            OperatorError: Tokens are lost that the model was given as embeddings, or a lost rank held weights that no
                other one has; nothing has changed then.
            RankFailedError, DeadlineError: Another rank was lost.
        """
        if self.weights is not None and comm is not self.comm:
            raise OperatorError(
                "ShardedCache.recover: the weights are sharded, so a lost rank held some that no other has; load the "
                "model again over the ranks that are left"
            )
        recovery = Recovery([layer.store for layer in self.sharded_layers], comm)
        own = np.array([self.record.length, self.record.batch], np.int64)
        records = [record.view(np.int64).tolist() for record in comm.allgather_bytes(own.view(np.uint8))]
        root = max(range(comm.size), key=lambda rank: records[rank][0])
        tokens, batch = records[root]
        if tokens < recovery.length and len(recovery.missing):
            raise OperatorError(
                f"ShardedCache.recover: {recovery.loss}; {recovery.length - tokens} of {recovery.length} tokens were "
                "given to the model as embeddings, which are not kept; use replicas=2"
            )
        self.comm = comm
        anew = len(recovery.missing) > 0 and (any(recovery.firsts) or not self._in_any_order)
        if anew:
            recovery.start_over()
        else:
            recovery.move()
        for layer in self.sharded_layers:
            layer.adopted()
        if tokens and tokens >= recovery.length:
            self.record.spread(comm, root, batch, tokens, self._model.device)
        if anew:
            self._fill(recovery.length)
        elif len(recovery.missing):
            mask = self.record.mask[:, : self.get_seq_length()]
            for start in range(0, len(recovery.missing), RECOMPUTED_TOKENS):
                part = recovery.missing[start : start + RECOMPUTED_TOKENS]
                self._pass(part, mask, restoring=part)
        if 0 < tokens == recovery.length:
            for layer in self.sharded_layers:
                layer.crop(-1)  # so that a token is left from which the next one follows
        return recovery.loss

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As transformers'; Dynamo skips it before looking at the layer's number, so one graph can serve all layers.

        In a step that goes the shortest way the result is the tensors that the layer returned last, by which the
        attention function knows that step; the cache holds more rows by then.
        """
        if self.ended:
            raise OperatorError(
                "this ShardedCache has a part of the positions on each rank, and the sharding of its model has ended: "
                "go on inside the `with`, or enable the model again"
            )
        layer = self.sharded_layers[layer_idx]
        step = layer.step
        if step is not None and (
            step.add(key_states, value_states) or (step.next_run() and step.add(key_states, value_states))
        ):
            return step.shown
        return layer.update(key_states, value_states, *args, **kwargs)

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

    def join(self, other: ShardedCache) -> None:
        """Add the batch rows of another cache of the same model and ranks, as `ShardedKVCache.join` does; local.

        Give `attention_mask` (0 behind the end of the shorter one) and `position_ids` to the passes that follow.

        Raises:
            OperatorError: As there: the caches' maps differ, or layers have windows.
        """
        for layer, more in zip(self.sharded_layers, other.sharded_layers, strict=True):
            layer.store.join(more.store)
            layer.show()
        self.record.join(other.record)

    @property
    def _in_any_order(self) -> bool:
        """Whether the model can be given tokens that do not follow each other."""
        return "position_ids" in inspect.signature(self._model.base_model.forward).parameters

    def _fill(self, length: int) -> None:
        """Pass the first `length` tokens through the model, into an empty cache; collective."""
        for start in range(0, length, RECOMPUTED_TOKENS):
            part = np.arange(start, min(start + RECOMPUTED_TOKENS, length))
            self._pass(part, self.record.mask[:, : part[-1] + 1])

    def _pass(self, positions: Positions, mask: torch.Tensor | None, **state: Any) -> None:
        """Pass the tokens at these positions through the model; `state` are attributes of every layer meanwhile."""
        for layer in self.sharded_layers:
            vars(layer).update(state, step=None)
        self.kept = 1
        try:
            with torch.no_grad():
                self._model.base_model(
                    input_ids=self.record.ids[:, positions],
                    position_ids=self.record.places[:, positions],
                    attention_mask=mask,
                    use_cache=True,
                    **{CACHE: self},
                )
        finally:
            for layer in self.sharded_layers:
                vars(layer).update(dict.fromkeys(state))

    @property
    def used_bytes(self) -> int:
        """Bytes of the keys and values that this rank holds, over all layers."""
        return sum(layer.store.used_bytes for layer in self.sharded_layers)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of this rank's storage for them."""
        return sum(layer.store.allocated_bytes for layer in self.sharded_layers)
