"""What the cache of each rank holds: tokens, runs of them, bytes."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from attention.huggingface.sharded_cache import ShardedCache
    from topocomm import Communicator

MOST_LINES = 8
"""Lines of the longest summary, each of one rank or of successive ones that hold the same."""


class RankCache(NamedTuple):
    """What one rank holds.

    Attributes:
        tokens: Of the layer that holds most: layers with a window hold fewer.
        runs: Of successive positions, in which these come: shares of prompts, and blocks of the tokens since.
        used_bytes: Keys and values of all layers, copies for other ranks among them.
        allocated_bytes: Their storage.
    """

    tokens: int
    runs: int
    used_bytes: int
    allocated_bytes: int

    @property
    def words(self) -> str:
        """The same in words."""
        runs = f"{self.runs:,} run{'s' * (self.runs != 1)}"
        return f"{self.tokens:,} tokens in {runs}, {self.used_bytes:,} of {self.allocated_bytes:,} bytes used"


def gather_caches(cache: ShardedCache, comm: Communicator) -> list[RankCache]:
    """Return what the cache of every rank holds, in rank order; collective."""
    store = max((layer.store for layer in cache.sharded_layers), key=lambda store: store.n_local)
    runs = np.count_nonzero(np.diff(store.known_positions, prepend=-2) != 1)
    own = np.array([store.n_local, runs, cache.used_bytes, cache.allocated_bytes], np.int64)
    return [RankCache(*part.view(np.int64).tolist()) for part in comm.allgather_bytes(own.view(np.uint8))]


def cache_lines(caches: list[RankCache]) -> list[str]:
    """Return a line for every rank, or for successive ranks that hold the same."""
    lines = []
    for held, own in groupby(enumerate(caches), key=lambda entry: entry[1]):
        ranks = [rank for rank, _ in own]
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"each of ranks {ranks[0]}-{ranks[-1]}"
        lines.append(f"cache of {who}: {held.words}")
    rest = len(lines) - MOST_LINES
    return lines if rest <= 0 else [*lines[:MOST_LINES], f"and {rest} more ranks or runs of ranks"]
