"""What a cache with a window holds, lets go of and gives back after any history of calls; ranks of uneven share."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention import Spec, reference_attention, tree_decode
from attention.cache.kv_cache import ShardedKVCache
from attention.cache.shards import ShardMap
from tests.attention.cache.test_kv_cache import tokens
from tests.thinning import alternating
from topocomm import run_local

MAPS = st.builds(
    ShardMap,
    ranks=st.integers(1, 5),
    virtual_shards=st.integers(5, 20),
    block_size=st.integers(1, 9),
    replicas=st.just(1),
)
LENGTH = 131


def held(caches):
    """The positions that all ranks own together, sorted; each must have its own keys and values."""
    k, v = tokens(caches[0].length)
    for rank, cache in enumerate(caches):
        assert torch.equal(cache.k, k[:, :, cache.positions])
        assert torch.equal(cache.v, v[:, :, cache.positions])
        assert (cache.shards.owner_of(cache.positions.numpy()) == rank).all()
    return sorted(torch.cat([cache.positions for cache in caches]).tolist())


@given(MAPS, st.integers(1, 40), st.lists(st.integers(0, 60), min_size=1, max_size=9))
def test_what_later_queries_see_is_held_and_little_more(shards, window, steps):
    caches = [ShardedKVCache(shards, rank, window=window) for rank in range(shards.ranks)]
    total = 0
    for count in steps:
        for cache in caches:
            cache.append(*tokens(count, start=total))
        total += count
        first = caches[0].first
        assert held(caches) == list(range(first, total))
        assert first <= max(0, total - count - window + 1), "the queries of this append see tokens that are gone"
        for cache in caches:
            cache.evict()
        first = caches[0].first
        assert held(caches) == list(range(first, total))
        assert total - first < window + 2 * shards.block_size
        assert first <= max(0, total - window + 1 - shards.block_size)


@given(MAPS, st.integers(1, 30), st.lists(st.integers(1, 25), min_size=1, max_size=9))
def test_all_appends_without_eviction_can_be_undone(shards, window, steps):
    caches = [ShardedKVCache(shards, rank, window=window) for rank in range(shards.ranks)]
    for cache in caches:
        cache.append(*tokens(40))
        cache.evict()
        first = cache.first
        for count in steps:
            cache.append(*tokens(count, start=cache.length), evict=False)
        assert cache.first == first
        cache.truncate(40)
    assert held(caches) == list(range(first, 40))


@given(MAPS, st.integers(1, 30), st.lists(st.tuples(st.integers(1, 25), st.integers(0, 30)), min_size=1, max_size=9))
def test_tokens_are_undone_exactly_or_not_at_all(shards, window, steps):
    """Back to block_size tokens before the furthest append can always be; where more cannot, nothing changes."""
    furthest = 0
    caches = [ShardedKVCache(shards, rank, window=window) for rank in range(shards.ranks)]
    for count, undone in steps:
        before = caches[0].length
        furthest = max(before, furthest)
        for cache in caches:
            cache.append(*tokens(count, start=before))
        length = max(0, before + count - undone)
        if length and caches[0].first > max(0, length - window + 1):
            assert length < furthest - shards.block_size
            with pytest.raises(ValueError, match="were dropped"):
                caches[0].truncate(length)
            length = before + count
        else:
            for cache in caches:
                cache.truncate(length)
        assert {cache.length for cache in caches} == {length}
        assert held(caches) == list(range(caches[0].first, length))
        assert caches[0].first <= max(0, length - window + 1)


def test_copies_are_let_go_of_too():
    caches = [ShardedKVCache(ShardMap(3, block_size=2), rank, replicas=2, window=10) for rank in range(3)]
    for start in range(0, 60, 3):
        for cache in caches:
            cache.append(*tokens(3, start=start))
    held_bytes = sum(cache.used_bytes for cache in caches)
    tokens_held = held(caches)
    assert held_bytes == 2 * len(tokens_held) * caches[0].token_bytes
    assert len(tokens_held) < 10 + 2 * 2 + 3


@pytest.mark.parametrize(("window", "q_len"), alternating([None, 7], [1, 2, 5, 8]))
def test_verifying_several_drafts_sees_exactly_what_it_may(window, q_len):
    """q_len queries at once over any number of ranks, empty ones among them; rejected tokens are undone."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, heads, 40, 4, generator=generator) for heads in (6, 3, 3))
    spec = Spec(causal=True, window=window)

    def work(comm):
        cache = ShardedKVCache(ShardMap(comm.size, virtual_shards=8, block_size=1), comm.rank, window=window)
        worst, kept = 0.0, 0
        while kept + q_len <= 40:
            at = slice(kept, kept + q_len)
            cache.append(k[:, :, at], v[:, :, at])
            queries = torch.arange(kept, kept + q_len)
            options = {"q_positions": queries, "kv_positions": cache.positions}
            got = tree_decode(q[:, :, at], cache.k, cache.v, comm, spec=spec, **options)
            alone = {"q_positions": queries.numpy(), "kv_positions": np.arange(kept + q_len)}
            x, y, z = q[:, :, at].numpy(), k[:, :, : at.stop].numpy(), v[:, :, : at.stop].numpy()
            worst = max(worst, float(np.abs(got.numpy() - reference_attention(x, y, z, spec=spec, **alone).out).max()))
            kept += 1 + q_len // 2
            cache.truncate(kept)
        return worst

    for ranks in (1, 3, 8):
        assert max(run_local(work, ranks=ranks)) <= 1e-5


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_of_no_keys_is_refused(window):
    with pytest.raises(ValueError, match=rf"window must be at least 1, got {window}; None: no window"):
        ShardedKVCache(ShardMap(1), 0, window=window)


# Ranks of uneven share.
