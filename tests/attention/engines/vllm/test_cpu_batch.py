"""Which tokens of a step are decoded, which are prompts, and what each rank keeps."""

import torch

from attention.engines.vllm.cpu_slots import Share
from tests.attention.engines.vllm.steps import BLOCK, batch_on, new_slots, requests_of

SHARE = Share(2, 1, 1)


def test_a_step_of_decodes_is_taken_as_it_lies():
    batch = batch_on(requests_of((5, 1), (30, 1), (0, 1)), SHARE)
    assert (batch.tokens, batch.n_shared, batch.n_decodes) == (3, 3, 3)
    assert batch.shared is batch.decodes is None
    assert batch.prompts == ()
    (group,) = batch.groups
    assert (group.rows, group.batch, group.q_len) == (slice(0, 3), 3, 1)
    assert group.pages.shape == (3, 2)  # 15 of 31 tokens are on rank 1, and no request has more
    hidden = group.visibility.keys == torch.iinfo(torch.int64).max
    assert (~hidden).sum(1).tolist() == [3, 15, 0]


def test_prompts_share_only_what_has_context():
    """A prompt, the next part of one, a decode: the first stays on its rank, the decode comes first in messages."""
    batch = batch_on(requests_of((0, 4), (10, 3), (7, 1)), SHARE)
    assert batch.shared.tolist() == [7, 4, 5, 6]
    assert batch.decodes.tolist() == [7]
    assert [(x.tokens, x.context) for x in batch.prompts] == [(slice(0, 4), None), (slice(4, 7), slice(1, 4))]
    assert [(x.rows, x.batch, x.q_len) for x in batch.groups] == [(slice(0, 1), 1, 1), (slice(1, 4), 1, 3)]
    assert batch.groups[1].visibility.keys.eq(0).sum() == 5  # of the 10 before, not of the new ones


def test_all_tokens_in_another_order_are_not_taken_as_they_lie():
    batch = batch_on(requests_of((10, 2), (7, 1)), SHARE)
    assert batch.shared.tolist() == [2, 0, 1]
    assert batch.decodes.tolist() == [2]


def test_prompts_without_context_share_nothing():
    batch = batch_on(requests_of((0, 9), (0, 2)), SHARE)
    assert batch.n_shared == 0
    assert batch.groups == ()


def test_ranks_keep_each_new_token_once():
    requests = requests_of((0, 9), (13, 4), (2, 1))
    shares = [Share(3, rank, 2) for rank in range(3)]
    batches = [batch_on(requests, share) for share in shares]
    assert sorted(torch.cat([x.own for x in batches]).tolist()) == list(range(14))
    for share, batch in zip(shares, batches, strict=True):
        assert torch.equal(batch.blocks * BLOCK + batch.offsets, new_slots(requests, share)[batch.own])
