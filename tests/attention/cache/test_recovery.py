"""Caches of one layer move onto the ranks that are left; the dead rank's memory holds NaN."""

import numpy as np
import pytest
import torch

import attention.cache.recovery
from attention import Spec, reference_attention, tree_decode
from attention.cache.kv_cache import ShardedKVCache
from attention.cache.shards import ShardMap
from tests.attention.cache.test_kv_cache import tokens
from tests.attention.losing import leave
from topocomm import SUM, RankFailedError, run_local

LENGTH = 131


def small(ranks, replicas=1):
    return ShardMap(ranks, virtual_shards=19, block_size=3, replicas=replicas)


def again(positions):
    """Keys and values as they were, by the position."""
    k, v = tokens(LENGTH)
    return k[:, :, positions], v[:, :, positions]


def fail_together(comm, cache, gone):
    """The next communicator; None on ranks that are to go, whose memory is poisoned."""
    if comm.rank in gone:
        cache.k.fill_(torch.nan)
        cache.v.fill_(torch.nan)
        leave(comm)
        return None
    with pytest.raises(RankFailedError):
        _reduce_for_ever(comm)
    return comm.shrink()


def _reduce_for_ever(comm):
    while True:
        comm.allreduce(np.ones(3), SUM)


def lose(ranks, gone, *, replicas, dtype=torch.float32, recompute=again, length=LENGTH):
    """(cache, loss) of every rank that is left."""

    def work(comm):
        cache = ShardedKVCache(small(ranks, replicas), comm.rank)
        cache.append(*(x.to(dtype) for x in tokens(length)))
        left = fail_together(comm, cache, gone)
        if left is None:
            return None
        return cache, cache.recover(left, recompute=recompute)

    return [outcome for outcome in run_local(work, ranks=ranks) if outcome is not None]


def check_holds_all(caches, replicas, length=LENGTH):
    """Every token is owned once, has its copies, and is what it was, bit for bit."""
    k, v = tokens(length)
    owned = np.sort(np.concatenate([cache.positions.numpy() for cache in caches]))
    assert owned.tolist() == list(range(length))
    holders = np.zeros(length, int)
    for rank, cache in enumerate(caches):
        assert (cache.rank, cache.shards.ranks, cache.length) == (rank, len(caches), length)
        assert not len(cache.missing)
        for part, mine in cache._parts(0, length):
            assert part.positions.tolist() == mine.tolist()
            assert torch.equal(part.k.view(), k[:, :, mine.tolist()].to(cache.k.dtype))
            assert torch.equal(part.v.view(), v[:, :, mine.tolist()].to(cache.v.dtype))
            holders[mine] += 1
    assert (holders == replicas).all()


@pytest.mark.parametrize(
    ("ranks", "gone", "replicas"),
    [
        (2, {1}, 1),
        (3, {0}, 1),
        (3, {0}, 2),
        (3, {1}, 3),
        (4, {1, 2}, 2),
        (5, {0, 4}, 3),
        (5, {2}, 2),
        (4, {0, 1, 3}, 2),
    ],
)
def test_all_tokens_are_there_again(ranks, gone, replicas):
    outcomes = lose(ranks, gone, replicas=replicas)
    check_holds_all([cache for cache, _ in outcomes], min(replicas, ranks - len(gone)))
    for _, loss in outcomes:
        assert sorted(loss.owned) == sorted(gone)
        assert bool(loss.lost) == (len(gone) >= replicas)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_move_in_their_own_dtype(dtype):
    caches = [cache for cache, _ in lose(4, {2}, replicas=2, dtype=dtype, recompute=None)]
    rounded = [x.to(dtype) for x in tokens(LENGTH)]
    for cache in caches:
        assert cache.k.dtype == dtype
        assert torch.equal(cache.k, rounded[0][:, :, cache.positions])
        assert torch.equal(cache._copies.v.view(), rounded[1][:, :, cache._copies.positions])


def test_rows_move_in_pieces(monkeypatch):
    monkeypatch.setattr(attention.cache.recovery, "PIECE_BYTES", 5 * 216 + 1)
    check_holds_all([cache for cache, _ in lose(4, {1}, replicas=2, recompute=None)], 2)


@pytest.mark.parametrize("length", [1, 4])
def test_sequences_of_few_tokens(length):
    outcomes = lose(3, {0}, replicas=2, length=length, recompute=None)
    check_holds_all([cache for cache, _ in outcomes], 2, length)


def test_a_cache_without_tokens():
    for cache, loss in lose(3, {0}, replicas=2, length=0):
        assert (cache.length, cache.shards.ranks, loss.lost) == (0, 2, ())
        cache.append(*tokens(9))
        assert cache.length == 9


def test_decoding_goes_on_over_what_is_left():
    """Attention after the recovery is that before, and tokens added later are found."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 6, 2, 8), dtype=np.float32)
    k, v = (torch.from_numpy(rng.standard_normal((2, 3, 90, d), dtype=np.float32)) for d in (8, 5))

    def attend(cache, comm):
        options = {"spec": Spec(causal=True), "q_positions": np.arange(cache.length - 2, cache.length)}
        return tree_decode(torch.from_numpy(q), cache.k, cache.v, comm, kv_positions=cache.positions, **options)

    def work(comm):
        cache = ShardedKVCache(small(4), comm.rank, replicas=2)
        cache.append(k[:, :, :70], v[:, :, :70])
        before = attend(cache, comm)
        left = fail_together(comm, cache, {3})
        if left is None:
            return None
        cache.recover(left)
        after = attend(cache, left)
        cache.append(k[:, :, 70:], v[:, :, 70:])
        return before, after, attend(cache, left)

    for outcome in run_local(work, ranks=4)[:3]:
        for got, length in zip(outcome, (70, 70, 90), strict=True):
            exact = reference_attention(
                q,
                k[:, :, :length],
                v[:, :, :length],
                spec=Spec(causal=True),
                q_positions=np.arange(length - 2, length),
                kv_positions=np.arange(length),
            )
            np.testing.assert_allclose(got, exact.out, rtol=0, atol=2e-5)


def test_two_losses_one_after_the_other():
    def work(comm):
        cache = ShardedKVCache(small(5, 2), comm.rank)
        cache.append(*tokens(100))
        left = fail_together(comm, cache, {1})
        if left is None:
            return None
        cache.recover(left)
        cache.append(*tokens(LENGTH - 100, start=100))
        left = fail_together(left, cache, {3})
        if left is None:
            return None
        return cache, str(cache.recover(left))

    outcomes = [outcome for outcome in run_local(work, ranks=5) if outcome is not None]
    check_holds_all([cache for cache, _ in outcomes], 2)
    assert all(told.startswith("rank 3 held positions ") and "copies of all" in told for _, told in outcomes)


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("moment", ["before rows move", "in the middle", "after the rows"])
def test_a_loss_in_the_middle_of_a_recovery(monkeypatch, moment, replicas):
    """The next attempt begins from what is there, although ranks and layers stand at different points."""

    def work(comm):
        cache = ShardedKVCache(small(5, replicas), comm.rank)
        cache.append(*tokens(LENGTH))
        first = fail_together(comm, cache, {1})
        if first is None:
            return None
        try:
            first.barrier()  # all have come out of shrink()
            if first.rank == 0 and moment != "after the rows":
                if moment == "in the middle":
                    attention.cache.recovery.Recovery([cache], first)
                leave(first)
                return None
            cache.recover(first, recompute=again)
            second = fail_together(first, cache, {0})
        except RankFailedError:
            second = first.shrink()
        if second is None:
            return None
        return cache, cache.recover(second, recompute=again)

    outcomes = [outcome for outcome in run_local(work, ranks=5) if outcome is not None]
    assert len(outcomes) == 3
    check_holds_all([cache for cache, _ in outcomes], replicas)


def test_ranks_that_stand_at_different_tokens_cut_back():
    def work(comm):
        cache = ShardedKVCache(small(3), comm.rank)
        cache.append(*tokens(100 + comm.rank))
        left = fail_together(comm, cache, {1})
        if left is None:
            return None
        cache.recover(left, recompute=again)
        return cache

    check_holds_all([cache for cache in run_local(work, ranks=3) if cache is not None], 1, 100)


def test_lost_without_a_way_to_compute_is_refused_and_changes_nothing():
    def work(comm):
        cache = ShardedKVCache(small(3), comm.rank)
        cache.append(*tokens(40))
        left = fail_together(comm, cache, {1})
        if left is None:
            return None
        with pytest.raises(ValueError, match=r"recover: rank 1 held positions 18..35") as caught:
            cache.recover(left)
        assert "no copy is left of positions 18..35" in str(caught.value)
        assert "give recompute=" in str(caught.value)
        assert cache.shards.ranks == 3
        return cache, cache.recover(left, recompute=again)

    outcomes = [outcome for outcome in run_local(work, ranks=3) if outcome is not None]
    check_holds_all([cache for cache, _ in outcomes], 1, 40)


def test_tokens_are_not_added_behind_a_hole():
    def work(comm):
        cache = ShardedKVCache(small(3), comm.rank)
        cache.append(*tokens(40))
        left = fail_together(comm, cache, {1})
        if left is None:
            return
        with pytest.raises(KeyError, match="planned"):
            cache.recover(left, recompute=lambda positions: {}["planned"])
        assert cache.missing.tolist() == list(range(18, 36))
        with pytest.raises(ValueError, match=r"positions 18..35 were lost and are not restored yet"):
            cache.append(*tokens(1))
        with pytest.raises(ValueError, match=r"18 positions, but k and v hold 1 tokens"):
            cache.restore(*tokens(1), cache.missing)
        cache.truncate(20)
        cache.restore(*again(np.array([18, 19])), cache.missing)
        cache.append(*tokens(1, start=20))

    run_local(work, ranks=3)


LENGTH = 131


def held(caches):
    """The positions that all ranks own together, sorted; each must have its own keys and values."""
    k, v = tokens(caches[0].length)
    for rank, cache in enumerate(caches):
        assert torch.equal(cache.k, k[:, :, cache.positions])
        assert torch.equal(cache.v, v[:, :, cache.positions])
        assert (cache.shards.owner_of(cache.positions.numpy()) == rank).all()
    return sorted(torch.cat([cache.positions for cache in caches]).tolist())


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
