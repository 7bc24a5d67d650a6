"""Generation with Hugging Face models whose key-value cache is sharded over ranks.

    with shard_generation(model, comm) as cache:
        tokens = model.generate(**inputs, past_key_values=cache)

Every rank runs this with the same inputs and holds the whole model. Each token's keys and values stay on the rank
that owns its position; at every attention layer each rank attends to its own part for all queries, and one planned
reduction merges the partial results. So the cache needs 1/P of the memory on each of P ranks, while the rest of the
model is computed P times over.

Three hooks of transformers carry this, without a patch: a `Cache` whose layers keep only what the rank owns, an
attention function that finds them, and a mask function that hands the padding mask through by position. The cache
travels in a context variable, so that ranks on threads share one model. A hook of torch notes the tokens of every
pass: when a rank is lost, `cache.recover(comm.shrink())` computes again from them what no other rank holds.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch.utils.hooks import RemovableHandle

from attention.allreduce import three_allreduce_decode
from attention.one_choice import OneChoice
from attention.ring import ring_decode
from attention.sharded_cache import ShardedCache
from attention.shards import ShardMap
from attention.spec import Spec
from attention.tree import tree_decode
from topocomm import Communicator, MissingExtraError

try:
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    from transformers.masking_utils import causal_mask_function
except ImportError as error:
    raise MissingExtraError("attention.huggingface", "transformers", "demo") from error

Method = Literal["tree", "ring", "allreduce"]
METHODS: dict[str, Callable[..., torch.Tensor]] = {
    "tree": tree_decode,
    "ring": ring_decode,
    "allreduce": three_allreduce_decode,
}
IMPLEMENTATION = "topocomm_sharded"
"""The name under which transformers knows the attention function."""

HARMLESS = frozenset({"position_ids", "use_cache", "logits_to_keep", "output_hidden_states", "return_dict"})
"""Keyword arguments that reach the attention function but do not change its result."""


RECORDED = ("input_ids", "position_ids", "attention_mask")
"""What a forward pass is given that a recovery needs."""


class _Active:
    """What the hooks need to know in the rank that calls them."""

    def __init__(self, cache: ShardedCache, method: str) -> None:
        self.cache = cache
        self.decode = METHODS[method]


@dataclass
class _Use:
    """A model that ranks of this process use: how it attends otherwise, and the hook that notes its tokens."""

    before: str
    hook: RemovableHandle
    ranks: int = 0


_ACTIVE: ContextVar[_Active | None] = ContextVar("topocomm_sharded_generation", default=None)


@contextmanager
def shard_generation(
    model: PreTrainedModel,
    comm: Communicator,
    *,
    method: Method = "tree",
    shards: ShardMap | None = None,
    replicas: int | None = None,
) -> Iterator[ShardedCache]:
    """A sharded cache, and a model that attends through it as long as the context lasts; collective.

    Give the cache to every `generate` (or forward) call inside, as `past_key_values`. Batches, left padding,
    greedy search, sampling, beams and several calls that continue one cache work as they do without ranks. Every
    rank takes the choices of rank 0: the results of `torch.argmax` and `torch.multinomial` inside the context are
    rank 0's, and only its random generator advances, so call both on all ranks or on none.

    Args:
        model: Any model whose attention follows transformers' attention interface and is plain causal attention
            (Llama and its likes). May be shared by ranks on threads.
        comm: The ranks; all of them enter the context and make the same calls with the same inputs.
        method: How partial results meet: "tree" (one planned reduction), "ring" (keys and values travel), or
            "allreduce" (three all-reduces).
        shards: Who owns which positions; None deals blocks of 16 tokens out round robin.
        replicas: How many ranks hold each token; None: as `shards` says, by default one. With two the loss of any
            one rank loses no token, for twice the memory.

    Yields:
        The empty cache.

    Raises:
        ValueError: The model or the method is not supported; later, inside `generate`: the mask does not fit the
            tokens, the sequence is longer than the model's positions, or a feature is not covered.
    """
    if method not in get_args(Method):
        raise ValueError(f"shard_generation: method must be one of {', '.join(get_args(Method))}, got {method!r}")
    cache = ShardedCache(model, comm, shards, replicas)
    with ExitStack() as stack:
        stack.enter_context(_implementation(model))
        token = _ACTIVE.set(_Active(cache, method))
        stack.callback(_ACTIVE.reset, token)
        if comm.size > 1:
            stack.enter_context(OneChoice(lambda: cache.comm))
        yield cache


def sharded_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls: all queries against this rank's shard, then the merge.

    Args:
        module: The attention layer.
        query: [batch, heads, q_len, d], the same on every rank.
        key: The owned keys [batch, kv_heads, n_local, d], as `ShardedLayer.update` returned them.
        value: The owned values.
        attention_mask: The padding mask [batch, length] of `sharded_mask`, or None.
        **options: `scaling`, and what else transformers passes; refused if it would change the result.

    Returns:
        The attention output [batch, q_len, heads, d], and None for the weights.
    """
    active = _active()
    layer = active.cache.sharded_layers[int(module.layer_idx)]  # type: ignore[arg-type]
    if layer.keys is not key:
        raise ValueError(
            "sharded attention got keys that are not those of the sharded cache; pass past_key_values=cache, the "
            "cache of shard_generation, to every call inside it (a model that alters cached keys is not covered)"
        )
    if attention_mask is not None and attention_mask.ndim != 2:
        raise ValueError(
            f"sharded attention takes a padding mask [batch, length], got one of shape {list(attention_mask.shape)}"
        )
    scaling = options.pop("scaling", None)
    _refuse_options(options)
    keys = layer.store.positions
    out = active.decode(
        query,
        key,
        value,
        active.cache.comm,
        spec=Spec(scale=scaling, causal=True),
        q_positions=layer.queries,
        kv_positions=keys,
        kv_mask=None if attention_mask is None else attention_mask[:, keys],
    )
    return out.transpose(1, 2).contiguous(), None


def sharded_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    config: Any = None,
    **_: Any,
) -> torch.Tensor | None:
    """The mask function that transformers calls once per forward pass: checks, and the padding mask as it is.

    Returns:
        Which positions hold tokens, bool [batch, kv_length], or None when all do.

    Raises:
        ValueError: The mask does not fit, the sequence is too long for the model, or the model wants another
            pattern than causal.
    """
    _active()
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and kv_length > limit:
        raise ValueError(f"the sequence has {kv_length} tokens, the model has {limit} positions; shorten the prompt")
    if mask_function is not causal_mask_function:
        raise ValueError("sharded attention covers the plain causal mask; this call adds another pattern to it")
    if attention_mask is None:
        return None
    if attention_mask.shape != (batch_size, kv_length):
        raise ValueError(
            f"attention_mask must be [batch, tokens so far] = {[batch_size, kv_length]}, "
            f"got {list(attention_mask.shape)}; it covers the cached tokens and the new ones"
        )
    present = attention_mask.bool()
    return None if bool(present.all()) else present


AttentionInterface.register(IMPLEMENTATION, sharded_attention)
AttentionMaskInterface.register(IMPLEMENTATION, sharded_mask)


def _active() -> _Active:
    active = _ACTIVE.get()
    if active is None:
        raise RuntimeError("this model is sharded over ranks; call it inside `with shard_generation(model, comm)`")
    return active


def _refuse_options(options: dict[str, Any]) -> None:
    """Refuse every keyword argument that may change attention and is not covered."""
    is_causal = options.pop("is_causal", None)
    if is_causal is False:
        raise ValueError("sharded attention is causal; this layer asks for is_causal=False")
    for name, value in options.items():
        if name not in HARMLESS and value is not None and value is not False and value != 0.0:
            raise ValueError(f"sharded attention does not support {name}={value!r}")


def _note_tokens(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before a forward pass: record its tokens, from which lost keys and values can be computed again."""
    active = _ACTIVE.get()
    given = inspect.signature(model.forward).bind_partial(*args).arguments | kwargs
    if active is None or given.get("past_key_values") is not active.cache:
        return
    cache = active.cache
    cache.record.add(cache.get_seq_length(), *(given.get(name) for name in RECORDED))


_IN_USE: dict[int, _Use] = {}
_IN_USE_LOCK = threading.Lock()


@contextmanager
def _implementation(model: PreTrainedModel) -> Iterator[None]:
    """Let the model call our attention; ranks on threads share the model, so the last one to leave restores it."""
    with _IN_USE_LOCK:
        if id(model) not in _IN_USE:
            before = model.config._attn_implementation
            model.set_attn_implementation(IMPLEMENTATION)
            if model.config._attn_implementation != IMPLEMENTATION:
                raise ValueError(
                    f"{type(model).__name__} does not use transformers' attention interface, so it cannot be sharded"
                )
            hook = model.register_forward_pre_hook(_note_tokens, with_kwargs=True)
            _IN_USE[id(model)] = _Use(before, hook)
        _IN_USE[id(model)].ranks += 1
    try:
        yield
    finally:
        with _IN_USE_LOCK:
            use = _IN_USE[id(model)]
            use.ranks -= 1
            if use.ranks == 0:
                del _IN_USE[id(model)]
                use.hook.remove()
                model.set_attn_implementation(use.before)
