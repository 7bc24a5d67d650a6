"""Which rows of a cache's memory a decode step sees, and which it may add by itself."""

import numpy as np
import pytest
import torch

from attention.cache.kv_cache import ShardedKVCache
from attention.cache.shards import ShardMap
from attention.cache.storage_run import StorageRun


def cache_of(tokens, rank=1, **options):
    cache = ShardedKVCache(ShardMap(2, block_size=4), rank, **options)
    cache.append(torch.zeros(2, 1, tokens, 3), torch.zeros(2, 1, tokens, 5))
    cache.append(torch.zeros(2, 1, 1, 3), torch.zeros(2, 1, 1, 5))  # memory doubles where this rank owns it
    return cache


def test_rows_of_the_whole_cache():
    run = StorageRun.of(cache_of(28))  # rank 1 owns 4 to 7, 12 to 15, 20 to 23, 28
    assert run == (0, 13, None, 3, True, 0, 29, 0, None)
    assert StorageRun.of(cache_of(28, rank=0)) == (0, 16, None, 3, False, 0, 29, 0, None)


@pytest.mark.parametrize("padding", [(0, 0), (5, 13), (30, 2)])
def test_the_first_row_of_each_entry_is_its_first_token(padding):
    cache = cache_of(28)
    run = StorageRun.of(cache, padding)
    for tokens, first in zip(padding, run.firsts, strict=True):
        assert first == int(np.count_nonzero(cache.known_positions < tokens))


def test_a_window_brings_the_positions_of_the_rows_to_come():
    cache = cache_of(28, window=6)
    run = StorageRun.of(cache)
    positions = np.from_dlpack(Capsule(run.positions))
    assert run.window == 6 and run.length == 29
    assert cache.known_positions[run.first - run.start] == 23  # of the last 6, 23 to 28, those that this rank owns
    rows = run.end - run.start
    assert positions[: rows + run.left].tolist() == [*cache.known_positions, *range(29, 29 + run.left)]


class Capsule:
    """What NumPy takes a capsule from."""

    def __init__(self, capsule):
        self._capsule = capsule

    def __dlpack__(self, **_):
        return self._capsule

    def __dlpack_device__(self):
        return 1, 0
