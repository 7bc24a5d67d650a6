"""Which rank owns which positions, and shares by weight."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention.cache.loss import ABSENT, OWN, deal
from attention.cache.shards import ShardMap, canonical_shards

MAPS = st.builds(
    ShardMap,
    ranks=st.integers(1, 9),
    virtual_shards=st.integers(9, 70),
    block_size=st.integers(1, 20),
    capacity=st.none() | st.integers(300, 700),
)


def plain_owner(shards, position):
    """The rule of the interfaces, spelled out."""
    block = position // shards.block_size
    v = shards.virtual_shards
    if shards.capacity is None:
        shard = shards.dealt.tolist()[block % v]
    else:
        total = -(-shards.capacity // shards.block_size)
        shard = next(s for s in range(v) if s * total // v <= block < (s + 1) * total // v)
    return next(r for r in range(shards.ranks) if r * v // shards.ranks <= shard < (r + 1) * v // shards.ranks)


@given(MAPS)
def test_owner_is_the_rule_spelled_out(shards):
    positions = np.arange(300)
    assert shards.owner_of(positions).tolist() == [plain_owner(shards, p) for p in range(300)]


@given(MAPS, st.integers(0, 300), st.integers(0, 300))
def test_every_position_has_one_owner(shards, a, b):
    start, stop = sorted((a, b))
    parts = [shards.owned(rank, start, stop) for rank in range(shards.ranks)]
    assert all((np.diff(part) > 0).all() and part.dtype == np.int64 for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(start, stop))


@given(MAPS)
def test_virtual_ranges_follow_each_other(shards):
    ranges = [shards.virtual_range(rank) for rank in range(shards.ranks)]
    assert [first for first, _ in ranges] == [0] + [stop for _, stop in ranges[:-1]]
    assert ranges[-1][1] == shards.virtual_shards
    assert all(first < stop for first, stop in ranges)


def test_the_positions_are_the_callers_to_change():
    shards = ShardMap(2, block_size=4, replicas=2)
    for held in (shards.owned, shards.copied):
        first = held(0, 0, 30)
        kept = first.copy()
        first += 1
        assert held(0, 0, 30).tolist() == kept.tolist()


def test_contiguous_ranges_are_contiguous():
    shards = ShardMap(3, virtual_shards=5, block_size=4, capacity=37)
    assert [shards.owned(rank, 0, 37).tolist() for rank in range(3)] == [
        list(range(8)),
        list(range(8, 24)),
        list(range(24, 37)),
    ]


@pytest.mark.parametrize("ranks", [*range(1, 18), 24, 63, 64, 65, 100])
def test_shares_differ_by_one_block_at_most_at_any_length(ranks):
    shards = ShardMap(ranks, block_size=3)
    owners = shards.owner_of(np.arange(0, 3 * 700, 3))
    counts = (owners[:, None] == np.arange(ranks)).cumsum(0)
    assert (np.ptp(counts, axis=1) <= 1).all()
    for length in (0, 1, 40, 512, 1500, 2000):
        sizes = [len(shards.owned(rank, 0, length)) for rank in range(ranks)]
        assert max(sizes) - min(sizes) <= 3


@given(st.integers(1, 96))
def test_shares_of_canonical_order_are_as_near_as_whole_shards_allow(ranks):
    """Of V = 96 shards, one or none more; within a row of 96 blocks no rank is 3 blocks from its share."""
    shards = canonical_shards(ranks)
    assert shards.virtual_shards == 96
    owners = shards.owner_of(np.arange(0, 16 * 96, 16))
    counts = (owners[:, None] == np.arange(ranks)).cumsum(0)
    assert (np.abs(counts - np.arange(1, 97)[:, None] / ranks) < 3).all()


@pytest.mark.parametrize("virtual_shards", [1, 2, 3, 6, 12, 64, 96, 192, 768])
def test_one_dealing_is_even_for_every_number_of_ranks_that_divides_it(virtual_shards):
    shards = ShardMap(1, virtual_shards)
    for ranks in range(1, virtual_shards + 1):
        if virtual_shards % ranks == 0:
            owners = (shards.dealt * ranks // virtual_shards).reshape(-1, ranks)
            assert (np.sort(owners, 1) == np.arange(ranks)).all()


@given(st.integers(1, 500))
def test_every_virtual_shard_gets_one_block_of_a_row(virtual_shards):
    assert sorted(ShardMap(1, virtual_shards).dealt.tolist()) == list(range(virtual_shards))


def test_a_map_says_its_virtual_shards():
    assert [ShardMap(ranks).virtual_shards for ranks in (1, 2, 3, 5, 12, 17, 64, 97)] == [
        96,
        96,
        96,
        80,
        96,
        68,
        64,
        97,
    ]
    assert ShardMap(3, weights=(2, 1, 1)).virtual_shards == 96
    assert ShardMap(3, weights=(3, 1, 1)).virtual_shards == 80
    assert ShardMap(2, weights=(1, 10**9)).virtual_shards == 96
    assert replace(ShardMap(5), ranks=4).virtual_shards == 80  # a map of survivors deals as before


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_copies_of_a_short_sequence_are_spread_too(ranks):
    shards = ShardMap(ranks, block_size=1, replicas=2)
    copies = [len(shards.copied(rank, 0, 4 * ranks)) for rank in range(ranks)]
    assert max(copies) - min(copies) <= 2 * (ranks > 2)


def test_owner_does_not_depend_on_rank_count_within_a_virtual_shard():
    positions = np.arange(5000)
    virtual = canonical_shards(1).virtual_shard_of(positions)
    for ranks in (2, 3, 8, 64):
        shards = canonical_shards(ranks)
        assert (shards.virtual_shard_of(positions) == virtual).all()
        for rank in range(ranks):
            first, stop = shards.virtual_range(rank)
            assert (shards.owner_of(positions)[(virtual >= first) & (virtual < stop)] == rank).all()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"ranks": 0}, ["ranks must be at least 1", "got 0"]),
        ({"ranks": 2, "block_size": 0}, ["block_size must be at least 1"]),
        ({"ranks": 65, "virtual_shards": 64}, ["65 ranks", "64 virtual shards", "virtual_shards=65"]),
        ({"ranks": 2, "virtual_shards": -1}, ["virtual_shards must be at least 1", "got -1"]),
    ],
)
def test_bad_maps_are_refused(arguments, parts):
    with pytest.raises(ValueError, match="ShardMap") as caught:
        ShardMap(**arguments)
    assert all(part in str(caught.value) for part in parts)


def test_positions_beyond_the_capacity_are_refused():
    with pytest.raises(ValueError, match=r"position 16 lies beyond the capacity of 16 tokens"):
        ShardMap(2, capacity=16).owned(0, 0, 17)


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


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8, 17])
@pytest.mark.parametrize("tokens", [1, 7, 200, 1037])
def test_a_prompt_is_dealt_in_two_runs_a_rank(ranks, tokens):
    shards = ShardMap(ranks).with_prompt(40, 40 + tokens)
    parts = [shards.owned(rank, 40, 40 + tokens) for rank in range(ranks)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(40, 40 + tokens))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 2
    assert all((np.diff(part) > 1).sum() <= 1 for part in parts)
    if tokens > 1000:  # keys that causal queries see, on each rank
        seen = [int((part - 39).sum()) for part in parts]
        assert max(seen) < 1.02 * min(seen) + tokens


def test_tokens_around_a_prompt_are_dealt_as_before():
    plain, prompted = ShardMap(3), ShardMap(3).with_prompt(100, 300).with_prompt(340, 700)
    outside = np.r_[0:100, 300:340, 700:2000]
    assert (prompted.owner_of(outside) == plain.owner_of(outside)).all()
    again = prompted.with_prompt(200, 400)  # after a crop
    assert [prompt[:2] for prompt in again.prompts] == [(100, 300), (200, 400)]
    assert (again.owner_of(np.arange(100, 200)) == prompted.owner_of(np.arange(100, 200))).all()
    survivors = deal(
        prompted, np.array([[OWN] * 32 + [ABSENT] * 64, [ABSENT] * 32 + [OWN] * 32 + [ABSENT] * 32], np.uint8)
    )
    kept = prompted.owner_of(np.arange(2000)) < 2
    assert (survivors.owner_of(np.arange(2000))[kept] == prompted.owner_of(np.arange(2000))[kept]).all()
    with pytest.raises(ValueError, match="dealt out"):
        survivors.with_prompt(700, 800)
    with pytest.raises(ValueError, match="capacity"):
        ShardMap(2, capacity=100).with_prompt(0, 50)
