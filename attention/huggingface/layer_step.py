"""The shortest way through one layer in a decode step: a row into the cache, kernel, reduction.

What transformers asks of a layer twice for each token, `update` and attention, is compared with the step before, and
where nothing but the number of tokens has changed, the bound step of `attention.decode` runs. Everything else goes the
way that checks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from attention.cache.kv_cache import ShardedKVCache
from attention.decode.bound_step import BoundStep

HARMLESS = frozenset({"position_ids", "use_cache", "logits_to_keep", "output_hidden_states", "return_dict"})
"""Keyword arguments that reach the attention function but do not change its result."""

Shown = tuple[torch.Tensor, torch.Tensor]


class LayerStep:
    """Decode steps like one that was made, until the cache changes otherwise than by one token in each of them."""

    def __init__(
        self,
        store: ShardedKVCache,
        bound: BoundStep,
        shown: Shown,
        query: torch.Tensor,
        mask: Any,
        options: Mapping[str, Any],
        heads: slice | None,
    ) -> None:
        """Go on from a step of one query a batch entry.

        Args:
            store: The layer's, whose memory `bound` has.
            bound: How its rows are attended.
            shown: The keys and values that `update` gives, by which the attention function knows this step.
            query: As the step had it, [batch, heads, 1, d].
            mask: Likewise, the `PositionMask`, without padding.
            options: What the attention function was given besides.
            heads: Those that are given back; None: all.
        """
        keys, values = store.storage
        self.shown = shown
        self._store, self._bound, self._options = store, bound, dict(options)
        self._k_shape, self._v_shape = ((*x.shape[:2], 1, x.shape[3]) for x in (keys, values))
        self._kept, self._query = keys.dtype, (query.shape, query.dtype)
        self._mask = type(mask), mask.window
        self._heads = heads
        self._sinks = _version_of(options.get("s_aux"))
        self._out_shape = query.shape[0], query.shape[2], query.shape[1], values.shape[3]

    def add(self, k: torch.Tensor, v: torch.Tensor) -> bool:
        """Keep the next token, if it is like the others; False, and nothing done, elsewhere."""
        return (
            k.shape == self._k_shape
            and v.shape == self._v_shape
            and k.dtype is v.dtype is self._kept
            and k.is_cpu
            and v.is_cpu
            and not (k.requires_grad or v.requires_grad or torch.is_autocast_enabled("cpu"))
            and self._store.append_row(k, v)
        )

    def attend(self, query: torch.Tensor, mask: Any, options: Mapping[str, Any]) -> torch.Tensor | None:
        """Return attention [batch, 1, own heads, d_v]; None, and nothing done, where the call is not like the others.

        Collective in the first case, as the way that is taken in the other.
        """
        if (query.shape, query.dtype) != self._query or query.requires_grad or not query.is_cpu:
            return None
        if (type(mask), getattr(mask, "window", None)) != self._mask or mask.present is not None or not mask.causal:
            return None
        known = self._options
        if len(options) != len(known):
            return None
        for name, value in options.items():
            if value is not known.get(name, options) and (name not in HARMLESS or name not in known):
                return None
        if self._sinks is not None and _version_of(options.get("s_aux")) != self._sinks:
            return None
        out = self._bound.run(query, *self._store.seen_in_storage())
        if out is None:
            return None
        out = out.view(self._out_shape)
        return out if self._heads is None else out[:, :, self._heads].contiguous()


def _version_of(sinks: torch.Tensor | None) -> tuple[int, int] | None:
    return None if sinks is None else (sinks.data_ptr(), 0 if sinks.is_inference() else sinks._version)
