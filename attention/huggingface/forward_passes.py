"""What every forward pass of a sharded model begins and ends with: hooks of torch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from attention.cache.growable_storage import on_device
from attention.huggingface.active import ACTIVE, Active
from attention.huggingface.call_arguments import given_cache, name_among
from attention.huggingface.hf_attention import IMPLEMENTATION
from attention.huggingface.sharded_cache import ShardedCache
from attention.huggingface.split_pass import Split, split_of
from attention.huggingface.weights.head_split import head_split_of
from topocomm import OperatorError
from topocomm.extend import skipped_by_dynamo

RECORDED = ("input_ids", "position_ids", "attention_mask")
"""Arguments of a forward pass that a recovery needs."""


@skipped_by_dynamo
def before_pass(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give a forward pass that has no cache a sharded one, and record the tokens of each, to recover a lost rank's."""
    state = ACTIVE.get()
    if state is None:
        return None
    with torch._C.DisableTorchFunction():  # a mode would be asked even for a shape
        arguments = {**dict(zip(_parameters(model), args, strict=False)), **kwargs} if args else kwargs
        attends: Any = model.config
        if attends._attn_implementation != IMPLEMENTATION:
            raise OperatorError(
                f"this model is sharded over ranks, and attends by {attends._attn_implementation!r} now: call "
                "set_attn_implementation before enable, or after its end"
            )
        cache = given_cache(arguments)
        if cache is None:
            cache = kwargs[name_among(_parameters(model))] = state.cache.fresh()
            if state.model is not None and not state.generated and arguments.get("use_cache") is not False:
                state.cache = cache
        if isinstance(cache, ShardedCache):
            state.caches.add(cache)
            cache.ended = False
            cache.record.add(cache.get_seq_length(), *map(arguments.get, RECORDED))
            kept = arguments.get("logits_to_keep")
            cache.kept = kept if isinstance(kept, int) else 0
    state.passes.append(torch._C.DisableTorchFunction())
    state.passes[-1].__enter__()
    return args, kwargs


@skipped_by_dynamo
def after_pass(*_: Any) -> None:
    """End what `before_pass` began, also where the pass failed."""
    state = ACTIVE.get()
    if state is not None and state.passes:
        end_passes(state, len(state.passes) - 1)


def end_passes(state: Active, count: int) -> None:
    """Let torch's modes in again, but for the first passes; torch calls no hook after a KeyboardInterrupt."""
    while len(state.passes) > count:
        state.passes.pop().__exit__(None, None, None)


@skipped_by_dynamo
def before_decoder(decoder: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Leave a rank its own tokens of a pass through the decoder, where that pays: a hook of torch before `forward`."""
    parameters = _parameters(decoder)
    if len(args) > len(parameters) or "position_ids" not in parameters:
        return None
    given = {**dict(zip(parameters, args, strict=False)), **kwargs}
    cache = given_cache(given)
    if not hasattr(cache, "sharded_layers"):
        return None
    kept = cache.take_kept()
    whole_weights = cache.weights is None
    split = split_of(decoder, cache, given, kept) if whole_weights else head_split_of(cache, given)
    cache.begin(split)  # also where there is none: an interrupted pass may have left one
    if not isinstance(split, Split):
        return None
    for name in ("input_ids", "inputs_embeds"):
        if given.get(name) is not None:
            own = on_device(split.own - split.start, given[name].device)
            given[name] = given[name][:, own]
            places = torch.arange(split.start, split.stop, device=own.device).expand(len(given[name]), -1)
    given["position_ids"] = (places if given.get("position_ids") is None else given["position_ids"])[..., own]
    return (), given


def _parameters(module: torch.nn.Module) -> tuple[str, ...]:
    """The parameters of `forward`, in order, of which a hook is given positional arguments."""
    forward: Any = module.forward
    names = _parameters_of(getattr(forward, "__func__", forward))
    return names if not hasattr(forward, "__func__") else names[1:]


@lru_cache(maxsize=64)
def _parameters_of(function: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


@skipped_by_dynamo
def after_decoder(_: torch.nn.Module, __: Any, given: Mapping[str, Any], output: Any) -> Any:
    """Give all ranks the hidden states that are wanted of such a pass: a hook of torch after `forward`."""
    cache = given_cache(given)
    split = cache.end() if hasattr(cache, "sharded_layers") else None
    if split is not None and output is not None:
        output.last_hidden_state = split.states(output.last_hidden_state)
    return output
