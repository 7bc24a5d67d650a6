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
from attention.cache.storage_run import StorageRun
from attention.decode.bound_step import Alike, Attend, BoundStep
from attention.decode.prepared import PreparedDecode

HARMLESS = frozenset({"position_ids", "use_cache", "logits_to_keep", "output_hidden_states", "return_dict"})
"""Keyword arguments that reach the attention function but do not change its result."""

Shown = tuple[torch.Tensor, torch.Tensor]


class LayerStep:
    """Decode steps like one that was made, until the cache changes otherwise than by one token in each of them.

    Attributes:
        add: Keeps the next token's k [batch, kv_heads, 1, d] and v, if it is like the others and one of the run that
            `next_run` began; False, and nothing done, elsewhere.
        shown: The keys and values that `update` gives, by which the attention function knows this step.
    """

    __slots__ = ("_bound", "_padding", "_store", "add", "shown")

    def __init__(self, store: ShardedKVCache, bound: BoundStep, shown: Shown, padding: tuple[int, ...] | None) -> None:
        """Go on from a step of one query a batch entry; `bound` has the memory and the counters of `store`."""
        self.add, self.shown = bound.append, shown
        self._store, self._bound, self._padding = store, bound, padding

    def next_run(self) -> bool:
        """Let `add` keep the next tokens; whether there are any that it may."""
        run = StorageRun.of(self._store, self._padding)
        if not run.left or run.end - run.first + run.left > self._bound.most_keys():
            return False
        self._bound.begin(*run)
        return True


def bind_layer(
    store: ShardedKVCache,
    prepared: PreparedDecode,
    query: torch.Tensor,
    mask: Any,
    options: Mapping[str, Any],
    heads: slice | None,
) -> tuple[BoundStep, Attend] | None:
    """Return a step like one that was made, and its attention function: of query, mask and options, once after `add`.

    It gives attention [batch, 1, own heads, d_v], collective, or None, and nothing done, where the call is not like
    the others. It holds none of the tensors that the layer shows, so their memory is given back with the last of them,
    not by the collector.

    Args:
        store: The layer's.
        prepared: What attends its rows.
        query: As the step had it, [batch, heads, 1, d].
        mask: Likewise, the `PositionMask`, with padding at the left or none.
        options: What the attention function was given besides.
        heads: Those that are given back; None: all.
    """
    alike = {name: value for name, value in options.items() if name not in HARMLESS}
    k, v = store.storage
    bound = prepared.bind(
        k,
        v,
        shape=(query.shape[0], 1, query.shape[1], v.shape[3]),
        alike=Alike(mask.kind, alike, tuple(HARMLESS.intersection(options)), len(options)),
        counters=store.counters,
    )
    if bound is None:
        return None
    whole, version = bound.attend, _version_of(options.get("s_aux"))
    if heads is None and version is None:
        return bound, whole

    def attend(query: torch.Tensor, mask: Any, options: Mapping[str, Any]) -> torch.Tensor | None:
        if version is not None and _version_of(options.get("s_aux")) != version:
            return None
        out = whole(query, mask, options)
        return out if out is None or heads is None else out[:, :, heads].contiguous()

    return bound, attend


def _version_of(sinks: torch.Tensor | None) -> tuple[int, int] | None:
    return None if sinks is None else (sinks.data_ptr(), 0 if sinks.is_inference() else sinks._version)
