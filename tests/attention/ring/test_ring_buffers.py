"""The memory of a ring: the caller's own where that will do, else buffers that are used again; merges in rank order."""

from types import SimpleNamespace

import pytest
import torch

from attention import Spec
from attention.arrays import check_inputs
from attention.merge.merge_states import merge_states
from attention.ring.ring_buffers import ShardBuffers, partials_like
from attention.visibility import Masking


def inputs_of(n, *, d=16):
    q, k = torch.zeros(1, 2, 1, d), torch.randn(1, 2, n, d)
    return check_inputs("test", q, k, torch.randn(1, 2, n, d), spec=Spec(), masking=Masking())


def test_aligned_memory_is_sent_as_it_is_and_other_is_copied():
    inputs = inputs_of(6)
    buffers = ShardBuffers(SimpleNamespace(rank=0))
    (own,) = buffers.in_turn(inputs, None, [6])
    assert own.k.data_ptr() == inputs.k.data_ptr() and own.keys is None
    whole = torch.randn(1, 2, 7, 16)
    strided = check_inputs("test", inputs.q, whole[:, :, 1:], whole[:, :, 1:], spec=Spec(), masking=Masking())
    (own,) = buffers.in_turn(strided, None, [6])
    assert own.k.data_ptr() != whole.data_ptr() and own.k.is_contiguous() and torch.equal(own.k, whole[:, :, 1:])


@pytest.mark.parametrize("on_gpu", [False, True])
def test_shards_arrive_in_two_buffers_in_turn_which_are_used_again(monkeypatch, on_gpu):
    monkeypatch.setattr("attention.gpu.placement._held", lambda x: on_gpu)
    comm = SimpleNamespace(rank=0, attributes={})
    buffers, inputs, keys = ShardBuffers(comm), inputs_of(3), torch.arange(3)[None]
    shards = buffers.in_turn(inputs, keys, [3, 4, 2, 5])
    assert (shards[0].k.data_ptr() == inputs.k.data_ptr()) is not on_gpu
    assert [shard.k.shape[2] for shard in shards] == [3, 5, 2, 4]
    assert [shard.v.shape[2] for shard in shards] == [3, 5, 2, 4]
    assert torch.equal(shards[0].k, inputs.k) and torch.equal(shards[0].keys, keys)
    places = [shard.k.data_ptr() for shard in shards]
    storages = {part.untyped_storage().data_ptr() for s in shards for part in (s.k, s.v, s.keys)}
    assert len(storages) == 1 or not on_gpu  # else no shift moves them in place
    assert places[1] == places[3] != places[2]
    shards[1].k.fill_(1.0)
    shards[2].k.fill_(2.0)
    assert (shards[1].k == 1.0).all() and torch.equal(shards[0].v, inputs.v)
    again = buffers.in_turn(inputs_of(3), keys, [3, 4, 4, 4])
    assert [shard.k.data_ptr() for shard in again[1:]] == places[1:]


def test_shards_come_in_the_order_of_the_ring():
    comm = SimpleNamespace(rank=1)
    shards = ShardBuffers(comm).in_turn(inputs_of(7), None, [4, 7, 9, 2])
    assert [shard.k.shape[2] for shard in shards] == [7, 4, 2, 9]
    assert sum(buffer.nbytes for buffer in shards[1].buffers) == 2 * 4 * 2 * 16 * 4


def test_partials_merge_in_rank_order_and_are_kept_while_they_fit():
    inputs, random = inputs_of(4, d=8), torch.Generator().manual_seed(0)
    partials = partials_like(inputs, 3, None)
    outs, lses = torch.randn(3, 1, 2, 1, 8, generator=random), torch.randn(3, 1, 2, 1, generator=random)
    for rank in range(3):
        partials.of(rank).out.copy_(outs[rank])
        partials.of(rank).lse.copy_(lses[rank])
    merged, wanted = inputs.empty_partial(), merge_states(outs, lses)
    partials.fold(merged)
    assert torch.equal(merged.out, wanted.out) and torch.equal(merged.lse, wanted.lse)
    assert partials_like(inputs, 3, partials) is partials
    assert partials_like(inputs_of(4, d=16), 3, partials) is not partials
