"""What a cache with a window holds, lets go of and gives back after any history of calls; ranks of uneven share."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention import Spec, reference_attention, tree_decode
from attention.cache.kv_cache import ShardedKVCache
from attention.cache.shards import ShardMap
from tests.attention.cache.test_kv_cache import tokens
from tests.attention.losing import leave
from topocomm import SUM, RankFailedError, run_local

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


def test_copies_are_let_go_of_too():
    caches = [ShardedKVCache(ShardMap(3, block_size=2), rank, replicas=2, window=10) for rank in range(3)]
    for start in range(0, 60, 3):
        for cache in caches:
            cache.append(*tokens(3, start=start))
    held_bytes = sum(cache.used_bytes for cache in caches)
    tokens_held = held(caches)
    assert held_bytes == 2 * len(tokens_held) * caches[0].token_bytes
    assert len(tokens_held) < 10 + 2 * 2 + 3


@pytest.mark.parametrize("q_len", [1, 2, 5, 8])
@pytest.mark.parametrize("window", [None, 7])
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


def _reduce_for_ever(comm):
    while True:
        comm.allreduce(np.ones(3), SUM)


def again(positions):
    """Keys and values as they were, by the position."""
    k, v = tokens(LENGTH)
    return k[:, :, positions], v[:, :, positions]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_window_goes_on_over_the_ranks_that_are_left(replicas):
    def work(comm):
        shards = ShardMap(comm.size, virtual_shards=19, block_size=3, replicas=replicas)
        cache = ShardedKVCache(shards, comm.rank, window=40)
        for start in range(LENGTH):
            cache.append(*tokens(1, start=start))
        if comm.rank == 1:
            leave(comm)
            return None
        with pytest.raises(RankFailedError):
            _reduce_for_ever(comm)
        left = comm.shrink()
        told = str(cache.lost(left.parent_ranks))
        loss = cache.recover(left, recompute=again)
        assert str(loss) == told
        assert bool(loss.lost) == (replicas == 1)
        assert loss.lost == () or loss.lost[0][0] >= cache.first
        return cache

    caches = [cache for cache in run_local(work, ranks=4) if cache is not None]
    first = caches[0].first
    assert LENGTH - 40 - 2 * 3 < first <= LENGTH - 40
    assert held(caches) == list(range(first, LENGTH))
    for cache in caches:
        cache.truncate(LENGTH - 1)
        cache.append(*tokens(1, start=LENGTH - 1))
    assert held(caches) == list(range(caches[0].first, LENGTH))


def test_a_rank_that_is_ahead_has_dropped_what_the_others_need():
    """All cut back to what all have; what one has dropped is lost, and computed again."""

    def work(comm):
        cache = ShardedKVCache(ShardMap(comm.size, virtual_shards=19, block_size=3), comm.rank, window=40)
        cache.append(*tokens(90))
        if comm.rank == 2:
            leave(comm)
            return None
        with pytest.raises(RankFailedError):
            _reduce_for_ever(comm)
        if comm.rank == 0:
            cache.append(*tokens(LENGTH - 90, start=90))
            cache.evict()
            assert cache.first > 90 - 40
        cache.recover(comm.shrink(), recompute=again)
        return cache

    caches = [cache for cache in run_local(work, ranks=3) if cache is not None]
    assert caches[0].length == 90
    assert held(caches) == list(range(caches[0].first, 90))
    assert caches[0].first <= 90 - 40


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_of_no_keys_is_refused(window):
    with pytest.raises(ValueError, match=rf"window must be at least 1, got {window}; None: no window"):
        ShardedKVCache(ShardMap(1), 0, window=window)


# Ranks of uneven share.

WEIGHTS = st.lists(st.integers(0, 9), min_size=1, max_size=9).filter(any).map(tuple)


@given(WEIGHTS, st.integers(9, 70), st.none() | st.integers(300, 700))
def test_shares_follow_the_weights_in_whole_virtual_shards(weights, virtual_shards, capacity):
    ranks = len(weights)
    shards = ShardMap(ranks, virtual_shards, block_size=3, capacity=capacity, weights=weights)
    ranges = [shards.virtual_range(rank) for rank in range(ranks)]
    assert [first for first, _ in ranges] == [0] + [stop for _, stop in ranges[:-1]]
    assert ranges[-1][1] == virtual_shards
    for weight, (first, stop) in zip(weights, ranges, strict=True):
        assert abs((stop - first) - weight * virtual_shards / sum(weights)) < 1
        assert weight or first == stop
    positions = np.arange(300)
    owners = shards.owner_of(positions)
    virtual = shards.virtual_shard_of(positions)
    for rank, (first, stop) in enumerate(ranges):
        assert ((owners == rank) == ((virtual >= first) & (virtual < stop))).all()
        assert shards.owned(rank, 0, 300).tolist() == positions[owners == rank].tolist()


@given(WEIGHTS, st.integers(1, 9))
def test_copies_of_uneven_shares_are_on_other_ranks(weights, replicas):
    shards = ShardMap(len(weights), weights=weights, replicas=min(replicas, len(weights)))
    assert all(len({*holders}) == shards.replicas for holders in shards.table.tolist())


@given(st.integers(1, 12))
def test_equal_weights_are_no_weights(ranks):
    assert (ShardMap(ranks, weights=(3,) * ranks).table == ShardMap(ranks).table).all()


@pytest.mark.parametrize("weights", [(1, 2), (0, 0, 0), (1, -1, 1), (1, 1.5, 1), [1, 1, 1]])
def test_bad_weights_are_refused(weights):
    with pytest.raises(ValueError, match=r"weights must be a tuple of 3 integers, one per rank, .* got"):
        ShardMap(3, weights=weights)


def test_a_map_of_those_who_are_left_has_no_weights():
    from attention.cache.loss import COPY, OWN, deal

    shards = ShardMap(3, virtual_shards=6, weights=(3, 2, 1), replicas=2)
    left = np.array([[OWN if row[0] == r else COPY * (r in row) for row in shards.table.tolist()] for r in (0, 2)])
    after = deal(shards, left.astype(np.uint8))
    assert after.weights is None
    assert after == replace(after, weights=None)
