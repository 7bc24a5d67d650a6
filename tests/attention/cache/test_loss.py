"""Who holds copies, what is lost with which ranks, and who takes it over."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention.cache.loss import ABSENT, COPY, OWN, Loss, deal, describe, ranges_of
from attention.cache.shards import ShardMap

LENGTH = 300


@st.composite
def maps(draw, least=1, replicas=None):
    ranks = draw(st.integers(least, 17))
    return ShardMap(
        ranks,
        virtual_shards=draw(st.integers(17, 70)),
        block_size=draw(st.integers(1, 9)),
        capacity=draw(st.none() | st.integers(LENGTH, 500)),
        replicas=draw(st.integers(1, ranks)) if replicas is None else replicas,
    )


def standing_after(shards, survivors):
    """What the survivors have, by the definition: a row for each."""
    state = np.full((len(survivors), shards.virtual_shards), ABSENT, np.uint8)
    for row, rank in enumerate(survivors):
        for shard, holders in enumerate(shards.table.tolist()):
            if rank in holders:
                state[row, shard] = OWN if holders[0] == rank else COPY
    return state


@given(maps())
def test_every_block_has_as_many_holders_as_asked_for(shards):
    for holders in shards.table.tolist():
        assert len(holders) == len(set(holders)) == shards.replicas
        assert all(0 <= rank < shards.ranks for rank in holders)
    once = ShardMap(shards.ranks, shards.virtual_shards, shards.block_size, shards.capacity)
    assert (shards.table[:, 0] == once.table[:, 0]).all()  # copies change no owner


@pytest.mark.parametrize("ranks", range(2, 18))
def test_the_copies_of_a_rank_are_spread_over_all_others(ranks):
    shards = ShardMap(ranks, virtual_shards=ranks * (ranks - 1) * 2, replicas=2)
    for rank in range(ranks):
        copies = shards.table[shards.table[:, 0] == rank, 1]
        assert np.bincount(copies, minlength=ranks).tolist() == [0 if other == rank else 2 for other in range(ranks)]


@given(maps())
def test_owned_and_copied_positions_are_those_of_the_table(shards):
    positions = np.arange(LENGTH)
    holders = shards.table[shards.virtual_shard_of(positions)]
    for rank in range(shards.ranks):
        assert shards.owned(rank, 0, LENGTH).tolist() == positions[holders[:, 0] == rank].tolist()
        assert shards.copied(rank, 7, LENGTH).tolist() == [p for p in range(7, LENGTH) if rank in holders[p, 1:]]


@given(maps(least=2, replicas=2))
def test_one_loss_loses_nothing_with_two_replicas(shards):
    for lost in range(shards.ranks):
        loss = Loss.of(shards, set(range(shards.ranks)) - {lost}, LENGTH)
        assert loss.lost == ()
        assert loss.owned == {lost: ranges_of(shards.owned(lost, 0, LENGTH))}


@given(maps(least=3), st.data())
def test_two_losses_lose_exactly_what_both_held(shards, data):
    for gone in data.draw(st.lists(st.sampled_from(list(combinations(range(shards.ranks), 2))), max_size=5)):
        loss = Loss.of(shards, set(range(shards.ranks)) - set(gone), LENGTH)
        of_shard = [set(holders) <= set(gone) for holders in shards.table.tolist()]
        wanted = [p for p in range(LENGTH) if of_shard[int(shards.virtual_shard_of(np.array(p)))]]
        assert loss.positions.tolist() == wanted


@given(maps(least=2), st.data())
def test_what_was_lost_is_dealt_out_evenly_and_nobody_gives_up_anything(shards, data):
    gone = data.draw(st.sets(st.integers(0, shards.ranks - 1), min_size=1, max_size=shards.ranks - 1))
    survivors = [rank for rank in range(shards.ranks) if rank not in gone]
    standing = standing_after(shards, survivors)
    after = deal(shards, standing)
    assert after.ranks == len(survivors)
    assert after.replicas == min(shards.replicas, len(survivors))
    owned_before = np.bincount(np.argmax(standing, 0)[standing.max(0) == OWN], minlength=len(survivors))
    for shard, holders in enumerate(after.table.tolist()):
        assert len(set(holders)) == after.replicas
        assert {r for r in range(len(survivors)) if standing[r, shard] != ABSENT} <= set(holders)
        if standing[:, shard].max() == OWN:
            assert standing[holders[0], shard] == OWN
        elif standing[:, shard].max() == COPY:
            assert standing[holders[0], shard] == COPY
    if shards.replicas == 1:
        owned = np.bincount(after.table[:, 0], minlength=len(survivors))
        assert owned.max() - owned.min() <= max(1, owned_before.max() - owned_before.min())


def test_the_first_blocks_are_dealt_out_evenly_too():
    """Of a short sequence only the first virtual shards have tokens; they must not all go to one rank."""
    shards = ShardMap(3)
    after = deal(shards, standing_after(shards, [1, 2]))
    lost = np.flatnonzero(shards.owner_of(np.arange(18 * 16)) == 0)
    assert np.bincount(after.owner_of(lost)).tolist() == [48, 48]


def test_two_losses_after_each_other():
    shards = ShardMap(5, replicas=2)
    for _ in range(3):
        survivors = list(range(1, shards.ranks))
        standing = standing_after(shards, survivors)
        assert (standing.max(0) != ABSENT).all()
        shards = deal(shards, standing)
        held = np.bincount(shards.table.ravel(), minlength=shards.ranks)
        assert held.max() - held.min() <= 4
    assert (shards.ranks, shards.replicas) == (2, 2)
    assert deal(shards, standing_after(shards, [0])).replicas == 1


def test_what_a_person_reads():
    shards = ShardMap(4, virtual_shards=4, block_size=128)
    assert str(Loss.of(shards, [0, 1, 3], 700)) == (
        "rank 2 held positions 128..255 and 640..699; no copy is left of positions 128..255 and 640..699"
    )
    assert str(Loss.of(shards, [0, 2], 512)) == (
        "rank 1 held positions 256..383; rank 3 held positions 384..511; no copy is left of positions 256..511"
    )
    with_copies = ShardMap(4, virtual_shards=4, block_size=128, replicas=2)
    assert str(Loss.of(with_copies, [0, 1, 3], 600)) == "rank 2 held positions 128..255; copies of all are left"
    assert str(Loss.of(with_copies, [0, 2, 3], 0)) == "rank 1 held no positions; nothing is lost"
    assert describe(ranges_of(np.arange(0, 40, 2))) == ("positions 0, 2, 4, 6, 8, 10, 12, 14 and 12 more ranges")
    assert describe(ranges_of(np.array([3, 4, 9]))) == "positions 3..4 and 9"


@pytest.mark.parametrize("survivors", [[], [0, 4], [-1]])
def test_survivors_that_are_no_ranks_are_refused(survivors):
    with pytest.raises(ValueError, match=r"survivors must be ranks from 0 to 3, got \["):
        Loss.of(ShardMap(4), survivors, 10)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"ranks": 1, "replicas": 2}, ["replicas=2 needs 2 ranks, there are 1", "lost with the first"]),
        ({"ranks": 3, "replicas": 0}, ["replicas must be at least 1, got 0"]),
        ({"ranks": 2, "virtual_shards": 2, "holders": ((0,),)}, ["must name 2 virtual shards, got 1"]),
        (
            {"ranks": 2, "virtual_shards": 2, "replicas": 2, "holders": ((0, 1), (1, 1))},
            ["virtual shard 1 must have 2 different holders from 0 to 1, got [1, 1]"],
        ),
        ({"ranks": 2, "virtual_shards": 1, "holders": ((2,),)}, ["virtual shard 0 must have 1 different", "got [2]"]),
    ],
)
def test_maps_that_cannot_be_are_refused(arguments, parts):
    with pytest.raises(ValueError, match="ShardMap") as caught:
        ShardMap(**arguments)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_shards_dealt_out_are_no_range():
    after = deal(ShardMap(3), standing_after(ShardMap(3), [0, 2]))
    with pytest.raises(ValueError, match="a rank's are no range"):
        after.virtual_range(0)


def test_a_map_of_those_who_are_left_has_no_weights():
    from attention.cache.loss import COPY, OWN, deal

    shards = ShardMap(3, virtual_shards=6, weights=(3, 2, 1), replicas=2)
    left = np.array([[OWN if row[0] == r else COPY * (r in row) for row in shards.table.tolist()] for r in (0, 2)])
    after = deal(shards, left.astype(np.uint8))
    assert after.weights is None
    assert after == replace(after, weights=None)
