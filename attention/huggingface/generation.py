"""Generation with Hugging Face models whose key-value cache is sharded over ranks (docs/guide/attention.md).

    with enable(model, comm):
        tokens = model.generate(**inputs)

Three hooks of transformers carry this: a `Cache` whose layers keep only what the rank owns, an attention function that
finds them, and a mask function that hands the padding mask through by position. Layers that keep latents in the cache
have their `expand_kv` set too (`latents`). The cache travels in a context variable, so that ranks on threads share one
model. A hook of torch notes the tokens of every pass: when a rank is lost, `cache.recover(comm.shrink())` computes
from them what no other rank holds. `enable` also sets the model's own `generate`, which gives each call its cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch.utils.hooks import RemovableHandle

from attention.cache.shards import ShardMap, canonical_shards
from attention.huggingface.active import ACTIVE, Active
from attention.huggingface.agreement_of_inputs import agree_on_inputs, agree_on_weights
from attention.huggingface.broadcast_choices import BroadcastChoices
from attention.huggingface.call_arguments import (
    CACHE,
    NAMES,
    Method,
    Order,
    Weights,
    check_arguments,
    check_choices,
    given_cache,
    refuse_empty,
    uncompiled,
)
from attention.huggingface.forward_passes import after_decoder, after_pass, before_decoder, before_pass, end_passes
from attention.huggingface.hf_attention import IMPLEMENTATION, METHODS
from attention.huggingface.hf_layers import WITHOUT
from attention.huggingface.latents import keep_latents, latent_modules
from attention.huggingface.sharded_cache import ShardedCache
from attention.huggingface.weights.sharded_weights import cut_weights
from topocomm import Communicator, MissingExtraError, OperatorError

try:
    from transformers import PreTrainedModel, QuantizedCache
    from transformers.cache_utils import Cache
except ImportError as error:
    raise MissingExtraError("attention.huggingface.generation", "transformers", "demo") from error

UNSHARDABLE = frozenset({"quantized", "paged"})
"""Values of `cache_implementation` that change results or how text is generated; others are replaced."""


class Sharding(AbstractContextManager["Sharding"]):
    """A model that generates from a sharded cache, until `disable`; `enable` makes it.

    A context too: `with enable(model, comm) as sharding`.
    """

    def __init__(self, state: Active, stack: ExitStack) -> None:
        self._state = state
        self._stack = stack

    @property
    def cache(self) -> ShardedCache:
        """The cache of the running or the last `generate`; before the first one, of the last plain forward pass.

        Give it as `past_key_values` (or `cache`, as the installed transformers calls it) to go on from it, as long as
        the model is sharded: it holds this rank's positions only.
        """
        return self._state.cache

    def disable(self) -> None:
        """Let the model attend as before; more calls change nothing."""
        self._stack.close()

    def __exit__(self, *_: object) -> None:
        self.disable()


def enable(
    model: PreTrainedModel,
    comm: Communicator,
    *,
    method: Method = "tree",
    order: Order = "any",
    shards: ShardMap | None = None,
    replicas: int | None = None,
    weights: Weights = "replicated",
) -> Sharding:
    """Let plain `model.generate(...)` keep its cache sharded over the ranks; collective.

    In this thread, and in threads of its own (`Thread(target=model.generate, ...)` beside a streamer) of a process that
    is one rank, as under mpirun; not of `run_local`, whose ranks are threads of one process. Every rank generates, and
    may have a streamer; one ends when `generate` raises.

    Every `generate` begins with a fresh sharded cache, or goes on from the one given as `past_key_values`. It takes the
    place of a static, dynamic or offloaded cache, asked for by `cache_implementation` or given empty. Batches, left
    padding, greedy search, sampling, beams, assisted generation and guidance work as without ranks; every rank takes
    rank 0's choices. A plain forward pass begins a cache, or goes on from the one given, as `out.past_key_values`.

    Args:
        model: Any model whose attention follows transformers' attention interface, causal over all tokens or over
            a sliding window, with soft-capped scores, sinks or latents where it has them (Llama, Qwen, Mistral,
            Gemma 2, gpt-oss, DeepSeek V3 and their likes). May be shared by ranks on threads.
        comm: The ranks; all of them call this, and make the same calls with the same inputs.
        method: How partial results meet: "tree" (one planned reduction), "ring" (keys and values travel), or
            "allreduce" (three all-reduces).
        order: "canonical": by "tree", in an order that the number of ranks does not change, see `tree_decode`. Then
            logits are the same bits on any number of ranks, if each has as many torch threads.
        shards: Who owns which positions; None deals blocks of 16 tokens out in turn.
        replicas: How many ranks hold each token; None: as `shards` says, by default one. With two the loss of any
            one rank loses no token, for twice the memory.
        weights: "sharded": each rank keeps 1/P of the weights, cut by transformers' own plan for tensor parallelism,
            and computes with them for all ranks; for good, and for inference only. Ranks on threads need a model
            each. A model of `attention.huggingface.load_sharded` is so already.

    Returns:
        What ends it (`disable`, or the end of a `with`) and has the `cache`.

    Raises:
        OperatorError: The model or the method is not supported, or another model is sharded in this thread; later,
            inside `generate`: the mask does not fit the tokens, the sequence is longer than the model's positions, or
            a feature of a layer is not covered. Every rank raises the same, before anything is sent.
        MismatchError: Ranks have other weights; later, inside `generate`: another prompt, mask or option. On every
            rank, naming the ranks. TOPOCOMM_CHECK=never leaves this out.
    """
    if ACTIVE.get() is not None:
        raise OperatorError(
            "enable: a model is sharded in this thread already; leave its `with`, or call disable() on what enable "
            "returned"
        )
    check_arguments("enable", model, comm)
    check_choices("enable", method, order, weights)
    model = uncompiled(model)
    cut = cut_weights("enable", model, comm, order, weights)
    state = Active(_cache(model, comm, shards, replicas, order), METHODS[method], order, model)
    with ExitStack() as stack:
        _activate(stack, model, state)
        agree_on_weights("enable", comm, model, cut)
        return Sharding(state, stack.pop_all())


@contextmanager
def shard_generation(
    model: PreTrainedModel,
    comm: Communicator,
    *,
    method: Method = "tree",
    order: Order = "any",
    shards: ShardMap | None = None,
    replicas: int | None = None,
    weights: Weights = "replicated",
) -> Iterator[ShardedCache]:
    """`enable` with one cache, which the caller gives to every call, and for all of torch; collective.

    Give the cache to every `generate` (or forward) call inside, as `past_key_values`; several calls continue it. Every
    rank takes the choices of rank 0: the results of `torch.argmax` and `torch.multinomial` inside the context are
    rank 0's, and only its random generator advances, so call both on all ranks or on none.

    Arguments and errors are those of `enable`.

    Yields:
        The empty cache.
    """
    check_arguments("shard_generation", model, comm)
    check_choices("shard_generation", method, order, weights)
    model = uncompiled(model)
    cut = cut_weights("shard_generation", model, comm, order, weights)
    state = Active(_cache(model, comm, shards, replicas, order), METHODS[method], order)
    with ExitStack() as stack:
        _activate(stack, model, state)
        agree_on_weights("shard_generation", comm, model, cut)
        if comm.size > 1:
            stack.enter_context(BroadcastChoices(lambda: state.cache.comm))
        yield state.cache


def _cache(
    model: PreTrainedModel, comm: Communicator, shards: ShardMap | None, replicas: int | None, order: str
) -> ShardedCache:
    if shards is None and order == "canonical":
        shards = canonical_shards(comm.size)
    cache = ShardedCache(model, comm, shards, replicas)
    cache.splits = order == "any"  # products of other shapes may have other bits
    return cache


def _activate(stack: ExitStack, model: PreTrainedModel, state: Active) -> None:
    """Until the stack closes, let the model attend by this state in this thread."""
    stack.enter_context(_implementation(model, state))
    stack.callback(ACTIVE.set, ACTIVE.get())
    stack.callback(end_passes, state, 0)
    stack.callback(_end_caches, state)
    ACTIVE.set(state)


def _end_caches(state: Active) -> None:
    for cache in state.caches:
        cache.ended = True


def _ending_the_stream(generate: Callable[..., Any]) -> Callable[..., Any]:
    """End the stream where `generate` raises: a program that reads it in another thread would wait for ever."""

    def call(*args: Any, **options: Any) -> Any:
        try:
            return generate(*args, **options)
        except BaseException:
            if (streamer := options.get("streamer")) is not None:
                streamer.end()
            raise

    return call


@_ending_the_stream
def _generate(
    model: PreTrainedModel,
    plain: Callable[..., Any],
    inputs: Any = None,
    generation_config: Any = None,
    *more: Any,
    **options: Any,
) -> Any:
    """`model.generate` while the model is enabled: that of transformers, with a sharded cache."""
    state = ACTIVE.get() or _state_elsewhere(model)

    def setting(name: str) -> Any:
        sources = [options.get(name)] + [getattr(x, name, None) for x in (generation_config, model.generation_config)]
        return next((value for value in sources if value is not None), None)

    early_exit = setting("assistant_early_exit") is not None
    if early_exit and state is not None and state.model is None:
        raise OperatorError(
            "generate: drafts of assistant_early_exit need a cache of their own, which shard_generation does not give "
            "them; use enable(model, comm)"
        )
    if state is None or state.model is not model:
        return plain(inputs, generation_config, *more, **options)
    if setting("use_cache") is False:
        raise OperatorError("generate: use_cache=False leaves nothing to shard; leave it out, or call disable() first")
    kind = setting("cache_implementation")
    if kind in UNSHARDABLE:
        raise OperatorError(
            f"generate: cache_implementation={kind!r} cannot be sharded; leave it out (the cache is then sharded over "
            "the ranks), or call disable() first"
        )
    if kind is not None:
        options["cache_implementation"] = None
    comm = state.cache.comm
    with _in_this_thread(state) as nested:
        if nested:  # the model drafts tokens for itself
            if given_cache(options) is None:
                options[CACHE] = state.cache.fresh(drafts=True)
            return plain(inputs, generation_config, *more, **options)
        settings = {} if generation_config is None else generation_config.to_dict()
        agree_on_inputs(comm, {"input_ids": inputs, **settings, **options})
        refuse_empty(options.get("input_ids", inputs), options.get("inputs_embeds"))
        _take_place(state, given_cache(options))
        state.generated = True
        options = {name: value for name, value in options.items() if name not in NAMES} | {CACHE: state.cache}
        if early_exit:
            plain = _of_own_depth(model)
        with BroadcastChoices(lambda: state.cache.comm) if comm.size > 1 else nullcontext():
            return plain(inputs, generation_config, *more, **options)


def _of_own_depth(model: PreTrainedModel) -> Callable[..., Any]:
    """`generate` of the model with a configuration of its own, where transformers sets the depth of drafts.

    Modules and weights are the same: ranks on threads share them, and come to other depths at other times.
    """
    twin: Any = copy(model)
    base = copy(model.base_model)
    base.config = copy(base.config)
    vars(twin)["_modules"] = {**model._modules, model.base_model_prefix: base}
    generate = partial(type(twin).generate, twin)
    vars(twin)["generate"] = partial(_generate, model, generate)
    return generate


@contextmanager
def _in_this_thread(state: Active) -> Iterator[bool]:
    """Let the model attend by this state in this thread alone; gives whether it generates already."""
    if not state.generating.acquire(blocking=False):
        raise OperatorError("generate: another thread generates on this rank; wait for its end")
    before, nested, passes = ACTIVE.set(state), state.generates, len(state.passes)
    state.generates = True
    try:
        yield nested
    finally:
        end_passes(state, passes)
        state.generates = nested
        ACTIVE.reset(before)
        state.generating.release()


def _state_elsewhere(model: PreTrainedModel) -> Active | None:
    """The state for a thread that has none, such as one that runs `generate` beside a streamer; None: none is known."""
    with _IN_USE_LOCK:
        use = _IN_USE.get(id(model))
        states = [state for state in use.states if state.model is model] if use else []
    if len(states) > 1:
        raise OperatorError(
            f"generate: {len(states)} ranks of this process share this model, and this thread is none of theirs; run "
            "it in the context of its rank: Thread(target=contextvars.copy_context().run, args=(model.generate, ...))"
        )
    return states[0] if states else None


def _take_place(state: Active, cache: Any) -> None:
    """Put into `state.cache` the cache of a `generate` that was given this one."""
    instead = "give no past_key_values to begin afresh, or the .cache of what enable returned to go on from it"
    if isinstance(cache, ShardedCache):
        if cache.comm is not state.cache.comm:
            raise OperatorError(f"generate: past_key_values is a ShardedCache of another communicator; {instead}")
        state.cache = cache
        return
    if isinstance(cache, Cache):
        kind = type(cache).__name__
        if isinstance(cache, QuantizedCache):
            raise OperatorError(f"generate: a {kind} cannot be sharded; {instead}")
        if tokens := int(cache.get_seq_length()):
            raise OperatorError(
                f"generate: past_key_values is a {kind} of {tokens} tokens, all on this rank; {instead}"
            )
        if cache in state.replaced:
            raise OperatorError(
                f"generate: this {kind} was replaced by a sharded cache in an earlier call and is empty; {instead}"
            )
        state.replaced.add(cache)
    state.cache = state.cache.fresh()


@dataclass
class _Use:
    """A model that ranks of this process use: how it attends otherwise, and the hooks before and after its passes."""

    before: str
    hooks: tuple[RemovableHandle, ...]
    generate: Any
    """The `generate` that was set on this very model, or None."""
    states: list[Active] = field(default_factory=list)
    """Of the ranks that use it."""


_IN_USE: dict[int, _Use] = {}
_IN_USE_LOCK = threading.Lock()


@contextmanager
def _implementation(model: PreTrainedModel, state: Active) -> Iterator[None]:
    """Let the model call our attention; ranks on threads share the model, so the last one to leave restores it."""
    with _IN_USE_LOCK:
        if id(model) not in _IN_USE:
            before = model.config._attn_implementation
            model.set_attn_implementation(IMPLEMENTATION)
            if model.config._attn_implementation != IMPLEMENTATION:
                raise OperatorError(
                    f"{type(model).__name__} does not use transformers' attention interface, so it cannot be sharded; "
                    f"{WITHOUT}"
                )
            hooks = (
                model.register_forward_pre_hook(before_pass, with_kwargs=True),
                model.register_forward_hook(after_pass, always_call=True),
                model.base_model.register_forward_pre_hook(before_decoder, with_kwargs=True),
                model.base_model.register_forward_hook(after_decoder, with_kwargs=True, always_call=True),
            )
            _IN_USE[id(model)] = _Use(before, hooks, vars(model).get("generate"))
            for module in latent_modules(model).values():
                vars(module)["expand_kv"] = keep_latents
            plain: Any = model.generate
            vars(model)["generate"] = partial(_generate, model, plain)
        _IN_USE[id(model)].states.append(state)
    try:
        yield
    finally:
        with _IN_USE_LOCK:
            use = _IN_USE[id(model)]
            use.states.remove(state)
            if not use.states:
                del _IN_USE[id(model)], vars(model)["generate"]
                for hook in use.hooks:
                    hook.remove()
                if use.generate is not None:
                    vars(model)["generate"] = use.generate
                for module in latent_modules(model).values():
                    vars(module).pop("expand_kv", None)
                model.set_attn_implementation(use.before)
