"""What every forward pass of a sharded model begins and ends with: hooks of torch."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from attention.huggingface.hf_attention import ACTIVE, Active
from attention.huggingface.sharded_cache import ShardedCache
from topocomm.extend import skipped_by_dynamo

RECORDED = ("input_ids", "position_ids", "attention_mask")
"""Arguments of a forward pass that a recovery needs."""


@skipped_by_dynamo
def before_pass(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give a forward pass that has no cache a sharded one, and record the tokens of each, to recover a lost rank's."""
    state = ACTIVE.get()
    if state is None:
        return None
    arguments = inspect.signature(model.forward).bind_partial(*args).arguments | kwargs
    cache = arguments.get("past_key_values")
    if cache is None:
        cache = kwargs["past_key_values"] = state.cache.fresh()
    if isinstance(cache, ShardedCache):
        cache.record.add(cache.get_seq_length(), *(arguments.get(name) for name in RECORDED))
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
