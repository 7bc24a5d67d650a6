"""What transformers' layers keep in a sharded cache: one rank's positions of one layer, with global lengths."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from copy import copy, deepcopy
from typing import Any
from weakref import ref

import torch

from attention.cache.growable_storage import on_device
from attention.cache.kv_cache import ShardedKVCache
from attention.cache.shards import Positions
from attention.decode.prepared import PreparedDecode
from attention.huggingface.layer_step import LayerStep, bind_layer
from attention.huggingface.split_pass import KeysAndValues, Split
from attention.huggingface.weights.head_split import HeadSplit
from topocomm import MissingExtraError, OperatorError, TopocommError
from topocomm.extend import skipped_by_dynamo

try:
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
except ImportError as error:
    raise MissingExtraError("attention.huggingface.generation", "transformers", "demo") from error

WITHOUT = "generate with this model on one rank, without attention.huggingface.generation"
"""The remedy where a model is not covered."""

COVERED_TYPES = frozenset({"full_attention", "sliding_attention"})


class OffloadError(TopocommError, NotImplementedError):
    """A shard stays where it is."""


@skipped_by_dynamo
class ShardedLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer of a `ShardedCache`: `keys` and `values` hold the owned positions only, lengths are global."""

    is_compileable = False
    step: LayerStep | None = None
    """The shortest way through the next decode steps, if they are like the last one."""
    _shown: tuple[torch.Tensor | None, torch.Tensor | None] = None, None

    def __init__(self, store: ShardedKVCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.store = store
        self.is_sliding = store.window is not None
        self.record_past = False
        """Whether transformers will undo tokens of the passes to come, with `crop` after each."""
        self.drafts = False
        """Whether one `crop` may undo tokens of several passes."""
        self.asked = 0
        """Of the running forward pass, the first position."""
        self.restoring: Positions | None = None
        """Positions of the running pass where it puts back lost tokens; None: it adds the next ones."""
        self.split: Split | HeadSplit | None = None
        """How the tokens of the running pass are shared out; None: all ranks pass all."""
        self.whole: KeysAndValues | None = None
        """What such a pass attends to in this layer."""

    @property
    def keys(self) -> torch.Tensor | None:
        """All owned keys: a view, valid until the cache changes; None before the first token."""
        return self._now()[0]

    @keys.setter
    def keys(self, keys: torch.Tensor | None) -> None:
        self._shown = keys, self._shown[1]

    @property
    def values(self) -> torch.Tensor | None:
        """All owned values, likewise."""
        return self._now()[1]

    @values.setter
    def values(self, values: torch.Tensor | None) -> None:
        self._shown = self._shown[0], values

    def _now(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if self.step is not None:  # which shows those of its first step
            self.show()
        return self._shown

    def has_shown(self, keys: torch.Tensor) -> bool:
        """Whether `update` returned these keys last."""
        return keys is self._shown[0]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep the owned ones of the next tokens; returns all owned keys and values."""
        if self.restoring is None:
            key_states, value_states = autocast(key_states), autocast(value_states)
        else:  # it may have been filled inside `torch.autocast`
            key_states, value_states = key_states.to(self.store.k.dtype), value_states.to(self.store.v.dtype)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.split is not None:
            self.whole = self.split.store(self.store, key_states, value_states)
        elif self.restoring is None:
            self.asked = self.store.length
            self.store.append(key_states, value_states, evict=not self.drafts)
        else:
            self.store.restore(key_states, value_states, self.restoring)
        return self.show()

    @property
    def queries(self) -> torch.Tensor:
        """Positions of the queries of the running forward pass, where every rank passes all tokens: int64."""
        device = self.store.k.device
        if self.restoring is not None:
            return on_device(self.restoring, device)
        return torch.arange(self.asked, self.store.length, device=device)

    def attended(self) -> None:
        """The queries of the running pass are done: drop what none that follow can see."""
        self.whole = None
        if self.is_sliding and not (self.record_past or self.drafts) and self.restoring is None:
            self.store.evict()
            self.show()

    def activate_past_recording(self) -> None:
        """Keep all tokens of a pass until the next one, so that any of them can be undone."""
        self.record_past = True

    def get_seq_length(self) -> int:
        """Return tokens of the whole sequence, on all ranks."""
        return self.store.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Masks cover the whole sequence; the attention function picks the owned positions."""
        if self.split is not None:
            return self.split.stop, 0
        return self.store.length + (query_length if self.restoring is None else 0), 0

    def reset(self) -> None:
        """Forget all tokens."""
        self.step = None
        self.store.reset()
        super().reset()

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last `-tokens_to_remove` tokens of the sequence (a negative number, as in transformers)."""
        tokens = int(tokens_to_remove)  # transformers 5.17 gives a tensor
        if tokens > 0:
            raise OperatorError(f"ShardedLayer.crop: tokens_to_remove must be 0 or negative, got {tokens}")
        if self.is_initialized:
            self.store.truncate(max(0, self.store.length + tokens))
            if self.drafts:
                self.store.evict()
            self.show()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Take the batch rows `beam_idx`; local to each rank."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every batch row."""
        if self.is_initialized:
            self.batch_select_indices(torch.arange(self.store.k.shape[0]).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the batch rows `indices`."""
        if self.is_initialized:
            self.store.select_batch(indices)
            self.show()

    def offload(self) -> None:
        """Refused: a shard stays where it is."""
        raise OffloadError("ShardedCache cannot be offloaded; use more ranks")

    def copied(self, memo: dict[int, Any]) -> ShardedLayer:
        """Return a copy with a store of its own, as `copy.deepcopy` makes with this memo."""
        layer = copy(self)
        layer.store = deepcopy(self.store, memo)
        layer.adopted()
        return layer

    def adopted(self) -> None:
        """Follow a store that a recovery has changed."""
        if self.store.length:
            self.show()
        elif self.is_initialized:
            self.reset()

    def show(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the owned keys and values, after the store has changed."""
        self.step = None
        keys, values = self._shown = self.store.k, self.store.v
        vars(keys)["sharded_layer"] = ref(self)  # the attention function is given keys, of one of several caches
        return keys, values

    def bind(self, prepared: PreparedDecode, query: torch.Tensor, mask: Any, options: Any, heads: slice | None) -> None:
        """Let steps like this one, which is done, go the shortest way, if there is one; arguments of `bind_layer`."""
        if self.step is None:
            keys, values = self.show()
            bound = bind_layer(self.store, prepared, query, mask, options, heads)
            if bound is not None:
                self.step = LayerStep(self.store, bound[0], (keys, values), mask.padding)
                vars(keys)["sharded_attend"] = bound[1]


def autocast(x: torch.Tensor) -> torch.Tensor:
    """Return x as torch's own attention takes it inside `torch.autocast`, where rotary keys stay float32; else x."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def no_autocast(x: torch.Tensor) -> AbstractContextManager[None]:
    """Return a context in which torch's products on the device of x are float32 as they are given."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def layer_windows(config: Any) -> list[int | None]:
    """Return the sliding window of every layer of a text decoder of this configuration, None where a layer has none.

    Raises:
        OperatorError: A layer keeps something else than keys and values of its own, or the model is no decoder of which
            every layer is causal; the message says which layer, and what to do.
    """
    refused = _unsupported_model(config)
    windows: list[int | None] = []
    if not refused:
        types = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        layers = DynamicCache(config=config).layers
        for index, (kind, layer) in enumerate(zip(types, layers, strict=True)):
            if kind not in COVERED_TYPES or type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
                refused = f"layer {index} is of type {kind}, kept in a {type(layer).__name__}"
                break
            windows.append(getattr(layer, "sliding_window", None))
    if refused:
        raise OperatorError(
            f"a sharded cache covers layers with causal attention over all tokens or over a sliding window; "
            f"in {config.model_type} {refused}; {WITHOUT}"
        )
    return windows


def _unsupported_model(config: Any) -> str:
    """What of a whole model is not covered; empty if nothing."""
    if getattr(config, "is_encoder_decoder", False):
        return "a decoder attends to an encoder"
    if getattr(config, "use_bidirectional_attention", None) in (True, "all") or not getattr(config, "is_causal", True):
        return "all layers attend to later tokens too (use_bidirectional_attention, is_causal)"
    if shared := getattr(config, "num_kv_shared_layers", None):
        return f"the last {shared} layers use keys of earlier layers (num_kv_shared_layers={shared})"
    sharing = getattr(config, "kv_sharing_modes", None) or ()
    for index, mode in enumerate(sharing):
        if mode is not None:
            return f"layer {index} shares keys with another (kv_sharing_modes: {mode})"
    if not getattr(config, "layer_types", None) and getattr(config, "attention_chunk_size", None):
        return f"all layers attend in chunks (attention_chunk_size={config.attention_chunk_size})"
    return ""
