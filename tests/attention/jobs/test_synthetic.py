"""Synthetic keys and values: the same for every number of ranks, and exact attention over them."""

import numpy as np
import pytest
import torch

from attention.cache.shards import ShardMap
from attention.jobs.synthetic import Sizes, block, exact, queries, shard
from attention.reference import reference_attention

SIZES = Sizes(context=301, batch=2, heads=6, kv_heads=2, head_dim=8)


def whole(sizes):
    return torch.cat([block(sizes, number) for number in range(-(-sizes.context // 16))], dim=3)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64])
def test_data_do_not_depend_on_the_ranks(ranks):
    k, v = whole(SIZES)
    assert k.shape == (2, 2, 301, 8)
    shards = ShardMap(ranks)
    for rank in range(ranks):
        mine = torch.tensor(shards.owned(rank, 0, SIZES.context))
        mine_k, mine_v = shard(SIZES, shards, rank)
        assert torch.equal(mine_k, k[:, :, mine])
        assert torch.equal(mine_v, v[:, :, mine])


def test_blocks_differ_and_are_normal():
    k, v = whole(Sizes(context=4000, batch=1, heads=1, kv_heads=1, head_dim=16))
    first_rows = torch.cat([k, v])[..., 0]
    assert len(torch.unique(first_rows)) > 0.999 * first_rows.numel()
    assert abs(float(k.mean())) < 0.02
    assert abs(float(k.std()) - 1) < 0.02


def test_exact_is_the_reference():
    k, v = whole(SIZES)
    expected = reference_attention(queries(SIZES), k, v).out[:, [0, 2, 5]]
    np.testing.assert_allclose(exact(SIZES, [0, 2, 5]).numpy(), expected, rtol=0, atol=1e-12)
