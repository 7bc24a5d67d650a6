"""What transformers calls in place of its own attention and masks, for a rank that holds a part of the keys.

A mask is not made here but handed through: which positions hold tokens, and the window. Every layer gets one, so a
layer without has made a mask of its own, or none, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from threading import RLock
from types import FunctionType
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, WeakSet

import torch

from attention.decode.three_allreduce import three_allreduce_decode
from attention.decode.tree_decode import tree_decode
from attention.gpu.placement import on_gpu
from attention.huggingface.hf_layers import WITHOUT, ShardedLayer, autocast, no_autocast
from attention.huggingface.latents import LatentLayer, attend_latents
from attention.huggingface.sharded_cache import ShardedCache
from attention.huggingface.split_pass import Split
from attention.ring.ring_decode import ring_decode
from attention.spec import Spec
from topocomm import MissingExtraError, OperatorError, TopocommError
from topocomm.extend import skipped_by_dynamo

try:
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    from transformers.cache_utils import Cache
    from transformers.masking_utils import (
        bidirectional_mask_function,
        causal_mask_function,
        sliding_window_causal_mask_function,
    )
except ImportError as error:
    raise MissingExtraError("attention.huggingface.generation", "transformers", "demo") from error

METHODS: dict[str, Callable[..., torch.Tensor]] = {
    "tree": tree_decode,
    "ring": ring_decode,
    "allreduce": three_allreduce_decode,
}
IMPLEMENTATION = "topocomm_sharded"
"""The name under which transformers knows the attention function."""

GIVE_CACHE = (
    "pass past_key_values=cache, the cache of shard_generation or enable, to every call but a generate after enable"
)
"""The remedy where a call has another cache."""

HARMLESS = frozenset({"position_ids", "use_cache", "logits_to_keep", "output_hidden_states", "return_dict"})
"""Keyword arguments that reach the attention function but do not change its result."""


class NotShardedError(TopocommError, RuntimeError):
    """A sharded model was called outside of its context, or in a thread that is not its rank's."""


@dataclass(eq=False)
class Active:
    """The state of the hooks on one rank.

    Attributes:
        decode: One of `METHODS`.
        model: The model whose `generate` gets its cache by itself; None: it is passed one.
        replaced: Caches of transformers that a sharded one took the place of.
        generating: Held by the thread whose `generate` runs.
        generates: Whether one runs.
        passes: Of the running forward passes, what keeps torch's modes out of them: no token is chosen there, and to
            ask at each of some thousand operations would take a tenth of a step.
    """

    cache: ShardedCache
    decode: Callable[..., torch.Tensor]
    order: str = "any"
    model: PreTrainedModel | None = None
    replaced: WeakSet[Cache] = field(default_factory=WeakSet)
    generating: Any = field(default_factory=RLock)
    generates: bool = False
    passes: list[Any] = field(default_factory=list)


ACTIVE: ContextVar[Active | None] = ContextVar("topocomm_sharded_generation", default=None)


class MaskError(OperatorError, AttributeError):
    """A model computes with its attention mask, of which a rank has no values."""


@dataclass(frozen=True)
class PositionMask:
    """The mask of a forward pass, by position.

    Attributes:
        window: Keys that a query sees, itself among them; None: all before it.
        present: Which positions hold tokens, bool [batch, kv_length]; None: all.
        model: The type of the model that asked for it.
        causal: Whether a query sees no later keys.
    """

    window: int | None
    present: torch.Tensor | None
    model: str = ""
    causal: bool = True

    def __getattr__(self, name: str) -> Any:
        raise MaskError(
            f"sharded attention: {self.model} makes a mask of its own from the attention mask and all keys or values "
            f"(it reads {name} of the mask), of which a rank holds a part; {WITHOUT}"
        )

    def __getitem__(self, _: Any) -> Any:
        return self.__getattr__("items")

    def contiguous(self) -> NoReturn:
        """Refused: `generate` asks for this where it makes masks ahead, for a static cache of its own.

        Raises:
            OperatorError: Always.
        """
        raise OperatorError(f"sharded attention: this call is for a static cache, whole on every rank; {GIVE_CACHE}")


def active() -> Active:
    """Return the state of this thread.

    Raises:
        NotShardedError: The model is not sharded in this thread.
    """
    state = ACTIVE.get()
    if state is None:
        raise NotShardedError(
            "this model is sharded over ranks; call it inside `with shard_generation(model, comm)`, "
            "or where enable(model, comm) was called"
        )
    return state


@skipped_by_dynamo
def sharded_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention function that transformers calls: all queries against this rank's shard, then the merge.

    Args:
        module: The attention layer.
        query: [batch, heads, q_len, d], the same on every rank.
        key: The owned keys [batch, kv_heads, n_local, d], as `ShardedLayer.update` returned them.
        value: The owned values.
        attention_mask: The `PositionMask` of `sharded_mask`.
        **options: `scaling`, `softcap`, `s_aux` (sinks), `sliding_window`, and what else transformers passes;
            refused if it would change the result.

    Returns:
        The attention output [batch, q_len, heads, d], and None for the weights.

    Raises:
        OperatorError: What this layer asks for is not covered, or not by this call; the message names the layer.
    """
    state = active()
    index = getattr(module, "layer_idx", None)
    if not isinstance(index, int) or index >= len(state.cache.sharded_layers):
        raise OperatorError(f"sharded attention: {type(module).__name__} is no layer of the text decoder; {WITHOUT}")
    layer: ShardedLayer | None = vars(key).get("sharded_layer", lambda: None)()
    name = f"layer {index} ({type(module).__name__})"
    if layer is None or layer.keys is not key:
        raise OperatorError(
            f"sharded attention: {name} got keys that are not those of the sharded cache; {GIVE_CACHE} (a model that "
            "alters cached keys is not covered)"
        )
    mask = _checked_mask(attention_mask, layer, name, options.pop("sliding_window", None))
    sinks = _sinks_of(module, options.pop("s_aux", None))
    scale, softcap = options.pop("scaling", None), options.pop("softcap", None)
    _refuse_options(options, name)
    query = autocast(query)
    # A single query is after all keys, so there is nothing to hide from it, but what a window drops with its blocks.
    last = query.shape[2] == 1 and mask.window is None and layer.restoring is None and layer.split is None
    spec = _spec_of(scale, mask.window, softcap, sinks, causal=not last or state.order != "any")

    def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, part: slice) -> torch.Tensor:
        where: dict[str, Any] = {}
        if mask.present is not None:
            where["kv_mask"] = mask.present[:, layer.store.positions]
        if spec.causal:
            where |= {"q_positions": layer.queries[part], "kv_positions": layer.store.positions}
        if state.order != "any":  # the host orders the keys
            where |= {"order": state.order, "shards": layer.store.shards, "kv_positions": layer.store.known_positions}
        return state.decode(q, k, v, state.cache.comm, spec=spec, **where)

    with no_autocast(query):
        if isinstance(layer, LatentLayer):
            canonical = state.order != "any"
            out = attend_latents(module, layer, query, spec, mask.present, decode, canonical=canonical)
        elif layer.split is None:
            out = decode(query, key, value, slice(None))
        elif layer.whole is None:
            assert isinstance(layer.split, Split), "by heads, every rank has all keys"
            out = layer.split.by_ring(query, (key, value), spec)
        else:
            out = layer.split.attend(query, [layer.whole], layer.whole[0].shape[2], spec, mask.present)
    weights = state.cache.weights
    if weights is not None and weights.heads is not None and layer.split is None:
        out = out[:, weights.heads]
    layer.attended()
    return out.transpose(1, 2).contiguous(), None


@lru_cache(maxsize=256)
def _spec_of(
    scale: float | None, window: int | None, softcap: float | None, sinks: tuple[float, ...] | None, *, causal: bool
) -> Spec:
    """One Spec for all steps of a layer, by which `tree_decode` finds its prepared step."""
    return Spec(scale=scale, causal=causal, window=window, softcap=softcap, sinks=sinks)


_sinks: WeakKeyDictionary[torch.nn.Module, tuple[tuple[int, int], tuple[float, ...]]] = WeakKeyDictionary()
"""By layer: address and version of the tensor that was read, and its numbers."""


def _sinks_of(layer: torch.nn.Module, sinks: torch.Tensor | None) -> tuple[float, ...] | None:
    """The same as numbers; from a GPU, where a reading waits for all that was put on it, read once."""
    if sinks is None or not on_gpu(sinks):
        return None if sinks is None else tuple(sinks.tolist())
    version = sinks.data_ptr(), sinks._version
    known = _sinks.get(layer)
    if known is None or known[0] != version:
        known = _sinks[layer] = version, tuple(sinks.tolist())
    return known[1]


@skipped_by_dynamo
def sharded_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    config: Any = None,
    local_size: int | None = None,
    **_: Any,
) -> PositionMask:
    """Return the mask function that transformers calls for every kind of mask of a forward pass: checks, and the mask.

    Raises:
        OperatorError: The mask does not fit, the sequence is too long for the model, or the model wants another
            pattern than causal, with a window or without.
    """
    active()
    model = getattr(config, "model_type", "the model")
    if mask_function is bidirectional_mask_function:  # decoders make one for an encoder that there may not be
        return PositionMask(None, None, model, causal=False)
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and kv_length > limit:
        raise OperatorError(f"the sequence has {kv_length} tokens, the model has {limit} positions; shorten the prompt")
    window = None
    if mask_function is not causal_mask_function:
        window = local_size or getattr(config, "sliding_window", None)
        if window is None or not _same(mask_function, sliding_window_causal_mask_function(window)):
            raise OperatorError(
                "sharded attention covers the causal mask and the sliding window; this call adds another pattern to it "
                f"(packed sequences, images or chunks): leave out what asks for it, or {WITHOUT}"
            )
    if attention_mask is None:
        return PositionMask(window, None, model)
    if attention_mask.shape != (batch_size, kv_length):
        raise OperatorError(
            f"attention_mask must be [batch, tokens so far] = {[batch_size, kv_length]}, "
            f"got {list(attention_mask.shape)}; it covers the cached tokens and the new ones. If this call is for a "
            f"static cache, which is whole on every rank: {GIVE_CACHE}"
        )
    present = attention_mask.bool()
    return PositionMask(window, None if bool(present.all()) else present, model)


AttentionInterface.register(IMPLEMENTATION, sharded_attention)
AttentionMaskInterface.register(IMPLEMENTATION, sharded_mask)


def _checked_mask(mask: Any, layer: ShardedLayer, name: str, sliding_window: int | None) -> PositionMask:
    """The mask of a layer.

    Raises:
        OperatorError: It is another's, or does not fit what the layer says and what its cache keeps.
    """
    if mask is None:
        raise OperatorError(
            f"sharded attention: {name} got no mask, so which tokens are padding is not known; the model "
            f"must take its masks from transformers.masking_utils: {WITHOUT}"
        )
    if not isinstance(mask, PositionMask):
        shape = list(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise OperatorError(
            f"sharded attention takes a padding mask [batch, length], got one of shape {shape} in {name}; "
            "give the model the tokenizer's attention_mask"
        )
    if not mask.causal:
        raise OperatorError(
            f"sharded attention is causal; {name} attends to later tokens too, or to an encoder: give no "
            f"encoder_hidden_states, or {WITHOUT}"
        )
    kept = layer.store.window
    if mask.window != kept or sliding_window not in (None, kept):
        raise OperatorError(
            f"sharded attention: {name} has a mask of window {mask.window}, asks for sliding_window={sliding_window}, "
            f"and the model's configuration for {kept}; all three must be one number: check config.layer_types and "
            "config.sliding_window"
        )
    return mask


def _refuse_options(options: dict[str, Any], name: str) -> None:
    """Refuse every keyword argument that may change attention and is not covered."""
    if options.pop("is_causal", None) is False:
        raise OperatorError(f"sharded attention is causal; {name} asks for is_causal=False: {WITHOUT}")
    for option, value in options.items():
        if option in HARMLESS or value is None or value is False:
            continue
        if isinstance(value, torch.Tensor) or value != 0.0:
            shown = f"a tensor {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
            raise OperatorError(
                f"sharded attention: {name} does not support {option}={shown}; leave it out of the call, or {WITHOUT}"
            )


def _same(a: Any, b: Any) -> bool:
    """Whether two functions have the same code over the same values."""
    if isinstance(a, FunctionType) and isinstance(b, FunctionType):
        cells = [[cell.cell_contents for cell in f.__closure__ or ()] for f in (a, b)]
        return a.__code__ is b.__code__ and _same(tuple(cells[0]), tuple(cells[1]))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and isinstance(a, (int, str)) and a == b
