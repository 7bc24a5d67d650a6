"""Runs of tokens that a decode step may add to a cache by itself: which rows it sees, and where the next ones go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from attention.cache.kv_cache import ShardedKVCache


class StorageRun(NamedTuple):
    """What `BoundStep.begin` is given; rows are those of `ShardedKVCache.storage`.

    Attributes:
        first: The first row that the last token sees.
        end: One past the last.
        firsts: For each entry of the batch the first row that is no padding; None: there is none.
        left: How many of the next tokens may be added.
        own: Whether they get rows here.
        start: The row of the first of `positions`.
        length: Tokens of the sequence so far.
        window: Keys that a query sees, itself among them; 0: all before it.
        positions: Of the rows from `start` on, a DLPack capsule of int64; None where there is no window.
    """

    first: int
    end: int
    firsts: tuple[int, ...] | None = None
    left: int = 0
    own: bool = False
    start: int = 0
    length: int = 0
    window: int = 0
    positions: Any = None

    @classmethod
    def of(cls, store: ShardedKVCache, padding: Sequence[int] | None = None) -> StorageRun:
        """Return the next run of a cache; with `left` 0 where `append` has more to do.

        `padding`: of each entry of the batch, how many tokens at the beginning are none.
        """
        left, own = store.next_run()
        first, end = store.seen_in_storage()
        start = end - store.n_local
        known, window = store.known_positions, store.window
        firsts = None
        if padding is not None:
            firsts = tuple([start + int(known.searchsorted(tokens)) for tokens in padding])
        positions = None if window is None else store.prepared_positions.__dlpack__()
        return cls(first, end, firsts, left, own, start, store.length, window or 0, positions)
