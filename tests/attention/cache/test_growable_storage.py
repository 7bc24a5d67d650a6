"""The memory of a cache: it grows by doubling, is used again, and is given back."""

import torch

from attention.cache.growable_storage import GrowableTensor
from attention.cache.kv_cache import ShardedKVCache
from attention.cache.shards import ShardMap
from tests.attention.cache.test_kv_cache import tokens


def test_storage_doubles_and_is_told():
    cache = ShardedKVCache(ShardMap(1), 0)
    grown = []
    for position in range(1000):
        cache.append(*tokens(1, start=position))
        if not grown or cache.allocated_bytes != grown[-1]:
            grown.append(cache.allocated_bytes)
        assert cache.used_bytes <= cache.allocated_bytes <= 2 * cache.used_bytes
    row_bytes = 2 * 3 * (4 + 5) * 4
    assert grown == [row_bytes * 2**i for i in range(11)]


def test_memory_is_used_again():
    """A thousand tokens pass through a window of 50 in the memory of less than 4 times what it holds."""
    cache = ShardedKVCache(ShardMap(1, block_size=4), 0, window=50)
    places = set()
    for position in range(1000):
        cache.append(*tokens(1, start=position))
        places.add(cache.storage[0].data_ptr())
        assert cache.n_local < 50 + 2 * 4 + 1
        assert cache.allocated_bytes <= 4 * cache.used_bytes
    assert len(places) < 12, "the storage grows to its size once, and then stays"


def test_a_prompt_much_longer_than_the_window_leaves_no_storage_behind():
    cache = ShardedKVCache(ShardMap(1, block_size=4), 0, window=50)
    cache.append(*tokens(1000))
    assert cache.n_local == 1000
    cache.evict()
    assert cache.n_local == 53
    assert cache.allocated_bytes == cache.used_bytes


def test_what_is_left_is_in_order():
    cache = ShardedKVCache(ShardMap(1, block_size=4), 0, window=50)
    for start in (0, 70, 90, 91):
        cache.append(*tokens(70 if start == 0 else 20 if start == 70 else 1, start=start))
        cache.evict()
        k, v = tokens(cache.length - cache.first, start=cache.first)
        assert cache.positions.tolist() == list(range(cache.first, cache.length))
        assert torch.equal(cache.k, k) and torch.equal(cache.v, v)


def test_rows_move_once_for_each_that_is_dropped_at_most():
    rows = GrowableTensor("k")
    moved = dropped = 0
    for step in range(2000):
        before, storage = rows.begin, rows.storage
        rows.append(torch.full((1, 1, 1, 2), float(step)))
        if storage is not None and (rows.begin != before or rows.storage is not storage):
            moved += rows.rows - 1
        if rows.rows == 60:
            rows.keep(8, 60)
            dropped += 8
    assert moved <= dropped + 2 * 60
    assert rows.view()[0, 0, :, 0].tolist() == list(range(2000 - rows.rows, 2000))
