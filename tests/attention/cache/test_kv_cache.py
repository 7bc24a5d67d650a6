"""Which rank owns what, and what a rank's cache holds after any history of calls."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention.cache.kv_cache import ShardedKVCache
from attention.cache.shards import ShardMap

MAPS = st.builds(
    ShardMap,
    ranks=st.integers(1, 9),
    virtual_shards=st.integers(9, 70),
    block_size=st.integers(1, 20),
    capacity=st.none() | st.integers(300, 700),
)


def tokens(count, *, start=0, batch=2, heads=3, d=4):
    """Keys whose every number tells row, head, position and column; values are their negatives, one wider."""
    rows, head, position, column = torch.meshgrid(
        torch.arange(batch), torch.arange(heads), torch.arange(start, start + count), torch.arange(d + 1), indexing="ij"
    )
    k = (((rows * 10 + head) * 10_000 + position) * 10 + column).float()
    return k[..., :d], -k


def test_unknown_rank_is_refused():
    with pytest.raises(ValueError, match=r"rank must be 0 to 2, got 3"):
        ShardedKVCache(ShardMap(3), 3)


@given(MAPS, st.lists(st.integers(0, 60), max_size=5), st.integers(0, 300))
def test_cache_holds_the_owned_tokens_after_any_appends_and_a_cut(shards, steps, cut):
    caches = [ShardedKVCache(shards, rank) for rank in range(shards.ranks)]
    total = 0
    for count in [5, *steps]:
        k, v = tokens(count, start=total)
        for cache in caches:
            cache.append(k, v)
        total += count
    total = min(cut, total)
    k, v = tokens(total)
    for rank, cache in enumerate(caches):
        cache.truncate(total)
        mine = torch.tensor(shards.owned(rank, 0, total))
        assert cache.length == total
        assert torch.equal(cache.positions, mine)
        assert cache.positions.dtype == torch.int64
        assert torch.equal(cache.k, k[:, :, mine])
        assert torch.equal(cache.v, v[:, :, mine])


def test_append_after_a_cut_overwrites():
    cache = ShardedKVCache(ShardMap(2, virtual_shards=2, block_size=2), 0)
    cache.append(*tokens(9))
    cache.truncate(4)
    k, v = tokens(5, start=1004)
    cache.append(k, v)
    assert cache.positions.tolist() == [0, 1, 4, 5, 8]
    assert torch.equal(cache.k[:, :, 2:], k[:, :, [0, 1, 4]])


def test_extend_takes_what_the_rank_owns():
    shards = ShardMap(3, block_size=4)
    whole, own = ShardedKVCache(shards, 1), ShardedKVCache(shards, 1)
    k, v = tokens(500)
    whole.append(k, v)
    mine = torch.tensor(shards.owned(1, 0, 500))
    own.extend(k[:, :, mine], v[:, :, mine], 500)
    assert torch.equal(own.k, whole.k)
    assert own.length == 500
    with pytest.raises(ValueError, match=r"rank 1 owns \d+ of the tokens 500 to 509, but k and v hold 10"):
        own.extend(*tokens(10), 10)


def test_empty_shard_has_shape_and_no_rows():
    cache = ShardedKVCache(ShardMap(4), 3)
    cache.append(*tokens(7))
    assert cache.k.shape == (2, 3, 0, 4)
    assert cache.v.shape == (2, 3, 0, 5)
    assert cache.positions.tolist() == []
    assert (cache.n_local, cache.length, cache.used_bytes) == (0, 7, 0)


def test_rows_of_the_batch_are_selected_without_touching_positions():
    cache = ShardedKVCache(ShardMap(2), 1)
    k, v = tokens(100)
    cache.append(k, v)
    before = cache.positions.clone()
    cache.select_batch(torch.tensor([1, 1, 0]))
    mine = before
    assert torch.equal(cache.k, k[[1, 1, 0]][:, :, mine])
    assert torch.equal(cache.positions, before)
    cache.append(*(t[[1, 1, 0]] for t in tokens(20, start=100)))
    assert cache.k.shape[0] == 3


def test_reset_forgets_the_shape():
    cache = ShardedKVCache(ShardMap(2), 0)
    cache.append(*tokens(10))
    cache.reset()
    assert (cache.length, cache.allocated_bytes) == (0, 0)
    cache.append(*tokens(10, batch=1, d=8))
    assert cache.k.shape == (1, 3, 10, 8)


@pytest.mark.parametrize(
    ("k", "v", "parts"),
    [
        (torch.zeros(2, 3, 4), torch.zeros(2, 3, 4), ["[batch, kv_heads, tokens, d]", "[2, 3, 4]"]),
        (torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 3, 5), ["[2, 3, 4, 5]", "[2, 3, 3, 5]"]),
        (torch.zeros(2, 3, 4, 4, requires_grad=True), torch.zeros(2, 3, 4, 5), ["require gradients", "torch.no_grad"]),
        (torch.zeros(1, 3, 4, 4), torch.zeros(1, 3, 4, 5), ["k must continue", "[2, 3, 4, torch.float32", "[1, 3, 4"]),
        (torch.zeros(2, 3, 4, 4).double(), torch.zeros(2, 3, 4, 5).double(), ["k must continue", "torch.float64"]),
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 4, 6), ["v must continue", "[2, 3, 6"]),
    ],
)
def test_tokens_that_do_not_fit_are_refused_and_change_nothing(k, v, parts):
    cache = ShardedKVCache(ShardMap(1), 0)
    cache.append(*tokens(3))
    with pytest.raises(ValueError, match="ShardedKVCache") as caught:
        cache.append(k, v)
    assert all(part in str(caught.value) for part in parts)
    assert (cache.length, cache.n_local) == (3, 3)


def test_views_before_the_first_token_and_bad_cuts_are_refused():
    cache = ShardedKVCache(ShardMap(1), 0)
    with pytest.raises(ValueError, match=r"ShardedKVCache\.k: the cache is empty"):
        cache.k  # noqa: B018
    with pytest.raises(ValueError, match=r"length must be 0 to 0, got 1"):
        cache.truncate(1)


@given(MAPS, st.integers(1, 9), st.lists(st.integers(0, 60), max_size=5), st.integers(0, 300))
def test_copies_are_kept_in_step_and_apart_from_what_is_owned(shards, replicas, steps, cut):
    shards = replace(shards, replicas=min(replicas, shards.ranks))
    caches = [ShardedKVCache(shards, rank) for rank in range(shards.ranks)]
    total = 0
    for turn, count in enumerate([5, *steps]):
        k, v = tokens(count, start=total)
        for rank, cache in enumerate(caches):
            if turn % 2:
                held = np.union1d(*(of(rank, total, total + count) for of in (shards.owned, shards.copied))) - total
                cache.extend(k[:, :, held], v[:, :, held], count)
            else:
                cache.append(k, v)
        total += count
    total = min(cut, total)
    k, v = tokens(total)
    held = np.zeros(total, int)
    for rank, cache in enumerate(caches):
        cache.truncate(total)
        assert cache.positions.tolist() == shards.owned(rank, 0, total).tolist()
        for part, mine in cache._parts(0, total):
            assert part.positions.tolist() == mine.tolist()
            assert torch.equal(part.k.view(), k[:, :, mine.tolist()])
            assert torch.equal(part.v.view(), v[:, :, mine.tolist()])
            held[mine] += 1
    assert (held == shards.replicas).all()


def test_replicas_can_be_given_to_the_cache():
    cache = ShardedKVCache(ShardMap(3), 0, replicas=2)
    cache.append(*tokens(3 * 64 * 16))
    assert cache.shards.replicas == 2
    held = sum(len(of(0, 0, cache.length)) for of in (cache.shards.owned, cache.shards.copied))
    assert cache.token_bytes == 2 * 3 * (4 + 5) * 4
    assert cache.used_bytes == held * cache.token_bytes
    cache.select_batch(torch.tensor([1]))
    assert all(part.k.view().shape[0] == 1 for part, _ in cache._parts(0, cache.length))
    with pytest.raises(ValueError, match="replicas=2 needs 2 ranks, there are 1"):
        ShardedKVCache(ShardMap(1), 0, replicas=2)


@pytest.mark.parametrize(("first", "second"), [(9, 5), (5, 9), (1, 7)])
@pytest.mark.parametrize("replicas", [1, 2])
def test_rows_of_another_cache_join(first, second, replicas):
    """Positions stay what they are; behind the shorter one's end there are zeros, and both go on together."""
    for rank in range(2):
        caches = [ShardedKVCache(ShardMap(2, block_size=2, replicas=replicas), rank) for _ in range(2)]
        for cache, count, batch in zip(caches, (first, second), (2, 1), strict=True):
            cache.append(*tokens(count, batch=batch))
        caches[0].join(caches[1])
        length = max(first, second)
        caches[0].append(*tokens(3, start=length, batch=3))
        whole = torch.cat([part(count, length + 3) for part, count in ((rows_of(2), first), (rows_of(1), second))])
        whole[:, :, length:] = tokens(3, start=length, batch=3)[0]
        mine = torch.tensor(caches[0].shards.owned(rank, 0, length + 3))
        assert torch.equal(caches[0].positions, mine)
        assert torch.equal(caches[0].k, whole[:, :, mine])
        assert torch.equal(caches[0].v[..., :4], -whole[:, :, mine])


def rows_of(batch):
    """Keys of some rows up to a length, and zeros from there on."""

    def part(count, length):
        return torch.cat([tokens(count, batch=batch)[0], torch.zeros(batch, 3, length - count, 4)], 2)

    return part


def test_what_cannot_join():
    def filled(shards, **options):
        cache = ShardedKVCache(shards, 0, **options)
        cache.append(*tokens(3))
        return cache

    plain = ShardMap(2)
    for one, other in (
        (filled(plain), filled(ShardMap(2, block_size=2))),
        (filled(plain), ShardedKVCache(plain, 0)),
        (filled(plain, window=2), filled(plain, window=2)),
    ):
        with pytest.raises(ValueError, match=r"join: both caches must have tokens, one map"):
            one.join(other)


def count(cache, own):
    """Count a token as a bound step does."""
    whole, *rows = (torch.from_dlpack(counter) for counter in cache.counters)
    whole += 1
    for part in rows:
        part += own


@given(MAPS, st.integers(0, 8), st.integers(1, 40), st.none() | st.integers(1, 60), st.integers(1, 120))
def test_runs_of_single_tokens_hold_what_appends_do(shards, rank, prompt, window, single):
    cache, wanted = (ShardedKVCache(shards, rank % shards.ranks, window=window) for _ in range(2))
    for each in (cache, wanted):
        each.append(*tokens(prompt))
    keys, values = tokens(single, start=prompt)
    left, own = 0, False
    for at in range(single):
        k, v = (x[:, :, at : at + 1] for x in (keys, values))
        wanted.append(k, v)
        if not left:
            left, own = cache.next_run()
        if left:
            if own:
                row = cache.seen_in_storage()[1]
                for memory, x in zip(cache.storage, (k, v), strict=True):
                    memory[:, :, row : row + 1] = x
            count(cache, own)
            left -= 1
        else:
            cache.append(k, v)
        assert cache.length == wanted.length and cache.first == wanted.first
    assert torch.equal(cache.k, wanted.k) and torch.equal(cache.v, wanted.v)
    assert torch.equal(cache.positions, wanted.positions)


def test_most_tokens_come_in_runs():
    for rank in range(2):
        cache, appended = ShardedKVCache(ShardMap(2, block_size=4), rank), 0
        cache.append(*tokens(6))
        while cache.length < 200:
            left, own = cache.next_run()
            for _ in range(left):
                count(cache, own)
            if not left:
                cache.append(*tokens(1, start=cache.length))
                appended += 1
        assert appended <= 16  # where memory has to grow


def test_no_run_where_an_append_does_more():
    cache = ShardedKVCache(ShardMap(3, replicas=2), 0)
    cache.append(*tokens(7))
    assert cache.next_run()[0] == 0  # copies for others
    cache = ShardedKVCache(ShardMap(1), 0)
    assert cache.next_run()[0] == 0  # no memory yet
    cache = ShardedKVCache(ShardMap(2, capacity=40), 0)
    cache.append(*tokens(40))
    assert cache.next_run()[0] == 0  # where `append` refuses
