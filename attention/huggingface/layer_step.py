"""The shortest way through one layer in a decode step: a row into the cache, kernel, reduction.

What transformers asks of a layer twice for each token, `update` and attention, is compared with the step before, and
where nothing but the number of tokens has changed, the bound step of `attention.decode` runs. Everything else goes the
way that checks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_, itemgetter
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
            options: What the attention function was given besides, two arguments at least.
            heads: Those that are given back; None: all.
        """
        self.shown = shown
        self._store, self._bound, self._heads = store, bound, heads
        self._append, self._first_row = bound.append, None if store.window else store.seen_in_storage()[0]
        self._end, self._left, self._own = store.seen_in_storage()[1], 0, False
        self._mask_type, self._window = type(mask), mask.window
        alike = [name for name in options if name not in HARMLESS]
        self._values_of = itemgetter(*alike, *HARMLESS.intersection(options))
        self._values = [options[name] for name in alike]
        self._count = len(options)
        self._sinks = _version_of(options.get("s_aux"))
        self._out_shape = query.shape[0], query.shape[2], query.shape[1], shown[1].shape[3]

    def add(self, k: torch.Tensor, v: torch.Tensor) -> bool:
        """Keep the next token, if it is like the others; False, and nothing done, elsewhere."""
        if not self._left:
            self._left, self._own = self._store.next_run()
            first, end = self._store.seen_in_storage()
            if end - first + self._left > self._bound.most_keys():
                self._left = 0
            if not self._left:
                return False
        own = self._own
        if not self._append(k, v, self._end if own else -1):
            return False
        self._left -= 1
        self._end += own
        self._store.grow(own=own)
        return True

    def attend(self, query: torch.Tensor, mask: Any, options: Mapping[str, Any]) -> torch.Tensor | None:
        """Return attention [batch, 1, own heads, d_v]; None, and nothing done, where the call is not like the others.

        Collective in the first case, as the way that is taken in the other.
        """
        if type(mask) is not self._mask_type or mask.window != self._window or mask.present is not None:
            return None
        if not mask.causal or len(options) != self._count:
            return None
        try:
            values = self._values_of(options)
        except KeyError:
            return None
        if not all(map(is_, self._values, values)):
            return None
        if self._sinks is not None and _version_of(options.get("s_aux")) != self._sinks:
            return None
        first = self._first_row
        out = self._bound.run(query, self._store.seen_in_storage()[0] if first is None else first, self._end)
        if out is None:
            return None
        out = out.view(self._out_shape)
        return out if self._heads is None else out[:, :, self._heads].contiguous()


def _version_of(sinks: torch.Tensor | None) -> tuple[int, int] | None:
    return None if sinks is None else (sinks.data_ptr(), 0 if sinks.is_inference() else sinks._version)
