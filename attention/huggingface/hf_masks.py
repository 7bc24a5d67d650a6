"""What transformers calls in place of its own masks, for a rank that holds a part of the keys.

A mask is not made here but handed through: which positions hold tokens, and the window. Every layer gets one, so a
layer without has made a mask of its own, or none, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import FunctionType
from typing import Any, NoReturn

import numpy as np
import torch

from attention.gpu.placement import on_gpu
from attention.huggingface.active import active
from attention.huggingface.hf_layers import WITHOUT, ShardedLayer
from topocomm import MissingExtraError, OperatorError
from topocomm.extend import skipped_by_dynamo

try:
    from transformers.masking_utils import (
        bidirectional_mask_function,
        causal_mask_function,
        sliding_window_causal_mask_function,
    )
except ImportError as error:
    raise MissingExtraError("attention.huggingface.generation", "transformers", "demo") from error

GIVE_CACHE = (
    "pass past_key_values=cache, the cache of shard_generation or enable, to every call but a generate after enable"
)
"""The remedy where a call has another cache."""


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
        padding: Of each entry of the batch, how many tokens at the beginning are none, where no others are padding and
            each entry has a token; else None.
    """

    window: int | None
    present: torch.Tensor | None
    model: str = ""
    causal: bool = True
    padding: tuple[int, ...] | None = None

    @cached_property
    def kind(self) -> object:
        """One object for all masks of which decode steps are alike; another one each time where they may not be."""
        if not self.causal or (self.present is not None and self.padding is None):
            return object()
        return _kind_of(self.window, self.padding)

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
    if bool(present.all()):
        return PositionMask(window, None, model)
    return PositionMask(window, present, model, padding=_padding_of(present) if q_length == 1 else None)


def _padding_of(present: torch.Tensor) -> tuple[int, ...] | None:
    """How many tokens at the beginning of each entry are padding; None where others are, or a whole entry."""
    if on_gpu(present):  # steps there are not bound, and reading waits
        return None
    tokens = present.numpy()
    first = tokens.argmax(1)
    if not tokens[:, -1].all() or (np.count_nonzero(tokens, 1) != tokens.shape[1] - first).any():
        return None
    return tuple(first.tolist())


@lru_cache(maxsize=256)
def _kind_of(window: int | None, padding: tuple[int, ...] | None) -> object:
    return object()


def checked_mask(mask: Any, layer: ShardedLayer, name: str, sliding_window: int | None) -> PositionMask:
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


def _same(a: Any, b: Any) -> bool:
    """Whether two functions have the same code over the same values."""
    if isinstance(a, FunctionType) and isinstance(b, FunctionType):
        cells = [[cell.cell_contents for cell in f.__closure__ or ()] for f in (a, b)]
        return a.__code__ is b.__code__ and _same(tuple(cells[0]), tuple(cells[1]))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and isinstance(a, (int, str)) and a == b
