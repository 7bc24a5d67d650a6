"""What transformers calls in place of its own attention, for a rank that holds a part of the keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch

from attention.decode.bound_step import Attend
from attention.decode.prepared import DecodeOptions, PreparedDecode, prepared_step
from attention.decode.three_allreduce import three_allreduce_decode
from attention.decode.tree_decode import tree_decode
from attention.gpu.placement import on_gpu
from attention.huggingface.active import Active, active
from attention.huggingface.hf_layers import WITHOUT, ShardedLayer, autocast, no_autocast
from attention.huggingface.hf_masks import GIVE_CACHE, PositionMask, checked_mask, sharded_mask
from attention.huggingface.latents import LatentLayer, attend_latents
from attention.huggingface.layer_step import HARMLESS
from attention.huggingface.split_pass import Split
from attention.ring.ring_decode import ring_decode
from attention.spec import Spec
from attention.visibility import UNMASKED
from topocomm import MissingExtraError, OperatorError
from topocomm.extend import skipped_by_dynamo

try:
    from transformers import AttentionInterface, AttentionMaskInterface
except ImportError as error:
    raise MissingExtraError("attention.huggingface.generation", "transformers", "demo") from error

METHODS: dict[str, Callable[..., torch.Tensor]] = {
    "tree": tree_decode,
    "ring": ring_decode,
    "allreduce": three_allreduce_decode,
}
IMPLEMENTATION = "topocomm_sharded"
"""The name under which transformers knows the attention function."""


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
    attend: Attend | None = getattr(key, "sharded_attend", None)
    if attend is not None:
        out = attend(query, attention_mask, options)
        if out is not None:
            return out, None
    return checked_attention(module, (query, key, value), attention_mask, options), None


def checked_attention(
    module: torch.nn.Module,
    arrays: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    attention_mask: Any,
    options: dict[str, Any],
) -> torch.Tensor:
    """Return what `sharded_attention` does for (query, key, value), after all checks; steps like it may go shorter."""
    query, key, value = arrays
    state = active()
    layer, name = _layer_of(state, module, key)
    if layer.step is not None:  # which shows those of its first step
        key, value = layer.show()
    given = dict(options)
    mask = checked_mask(attention_mask, layer, name, options.pop("sliding_window", None))
    sinks = _sinks_of(module, options.pop("s_aux", None))
    scale, softcap = options.pop("scaling", None), options.pop("softcap", None)
    _refuse_options(options, name)
    plain_query, query = query, autocast(query)
    # A single query is after all keys, so there is nothing to hide from it, but what a window has not dropped yet.
    last = query.shape[2] == 1 and layer.restoring is None and layer.split is None and state.order == "any"
    last = last and not (isinstance(layer, LatentLayer) and mask.window)
    spec = _spec_of(scale, None if last else mask.window, softcap, sinks, causal=not last)
    call = _Call(state, layer, mask, spec, last)
    with no_autocast(query):
        out = call.attend(module, query, key, value).transpose(1, 2)
    layer.attended()
    weights = state.cache.weights
    heads = None if weights is None or layer.split is not None else weights.heads
    plain_mask = mask.present is None or mask.padding is not None
    alike = query is plain_query and plain_mask and type(layer) is ShardedLayer
    if alike and last and state.decode is METHODS["tree"]:
        layer.bind(call.prepared(query, key, value), query, mask, given, heads)
    return (out if heads is None else out[:, :, heads]).contiguous()


@dataclass
class _Call:
    """Attention of one layer in a pass, checked.

    Attributes:
        last: Whether there is one query, the last of the sequence, and any order will do.
    """

    state: Active
    layer: ShardedLayer
    mask: PositionMask
    spec: Spec
    last: bool

    def attend(self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return [batch, heads, q_len, d_v] of the query's dtype; collective."""
        layer, present = self.layer, self.mask.present
        if isinstance(layer, LatentLayer):
            canonical = self.state.order != "any"
            return attend_latents(module, layer, query, self.spec, present, self.decode, canonical=canonical)
        if layer.split is None:
            return self.decode(query, key, value, slice(None))
        if layer.whole is None:
            assert isinstance(layer.split, Split), "by heads, every rank has all keys"
            return layer.split.by_ring(query, (key, value), self.spec)
        return layer.split.attend(query, [layer.whole], layer.whole[0].shape[2], self.spec, present)

    def decode(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, part: slice) -> torch.Tensor:
        """Attend a part of the pass's queries over the shards of all ranks."""
        state, store = self.state, self.layer.store
        first = store.first_seen_row() if self.last else 0
        k, v = k[:, :, first:], v[:, :, first:]
        where: dict[str, Any] = {}
        if self.mask.present is not None:
            where["kv_mask"] = self.mask.present[:, store.positions[first:]]
        if self.last and state.decode is METHODS["tree"]:
            stepped: torch.Tensor = self.prepared(q, k, v).step(q, k, v, **where)
            return stepped
        if self.spec.causal:
            where |= {"q_positions": self.layer.queries[part], "kv_positions": store.positions}
        if state.order != "any":  # the host orders the keys
            where |= {"order": state.order, "shards": store.shards, "kv_positions": store.known_positions}
        return state.decode(q, k, v, state.cache.comm, spec=self.spec, **where)

    def prepared(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> PreparedDecode:
        """The prepared steps of one query over such keys; collective at the first of a kind.

        Not those that `tree_decode` keeps: of these every rank has the same, also where only some ranks go the
        shortest way.
        """
        state, comm = self.state, self.state.cache.comm
        if state.steps_of is not comm:
            state.steps_of, state.steps = comm, {}
        kind = q.shape, q.dtype, q.device, k.dtype, k.shape[1], v.shape[3], self.spec
        prepared = state.steps.get(kind)
        if prepared is None:
            prepared = prepared_step("tree_decode", (q, k, v), comm, self.spec, UNMASKED, DecodeOptions())
            state.steps[kind] = prepared
        return prepared


def _layer_of(state: Active, module: torch.nn.Module, key: torch.Tensor) -> tuple[ShardedLayer, str]:
    """The layer of the cache that has these keys, and what it is called in errors."""
    index = getattr(module, "layer_idx", None)
    if not isinstance(index, int) or index >= len(state.cache.sharded_layers):
        raise OperatorError(f"sharded attention: {type(module).__name__} is no layer of the text decoder; {WITHOUT}")
    layer: ShardedLayer | None = vars(key).get("sharded_layer", lambda: None)()
    name = f"layer {index} ({type(module).__name__})"
    if layer is None or not layer.has_shown(key):
        raise OperatorError(
            f"sharded attention: {name} got keys that are not those of the sharded cache; {GIVE_CACHE} (a model that "
            "alters cached keys is not covered)"
        )
    return layer, name


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


AttentionInterface.register(IMPLEMENTATION, sharded_attention)
AttentionMaskInterface.register(IMPLEMENTATION, sharded_mask)


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
