"""The memory of a cache: it grows by doubling, is used again, and is given back."""

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
        places.add(cache.k.data_ptr())
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


def test_dropping_moves_no_more_rows_than_are_dropped():
    cache = ShardedKVCache(ShardMap(1, block_size=4), 0, window=50)
    cache.append(*tokens(70))
    before = cache.positions.tolist()
    cache.evict()
    dropped = cache.first
    moved = sum(a != b for a, b in zip(cache.positions.tolist(), before, strict=False))
    assert 0 < moved <= dropped
