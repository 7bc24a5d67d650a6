"""A prompt where the weights are sharded: each rank attends with its own heads, and keeps its own tokens."""

import pytest
import torch

from attention.huggingface.weights import head_split
from tests.attention.huggingface.test_hf_layers import build
from tests.attention.huggingface.weights.test_sharded_weights import LIMIT, inputs_of, on_ranks


@pytest.mark.parametrize("ranks", [2, 3])
def test_heads_are_shared_out_and_tokens_kept_by_their_owners(monkeypatch, ranks):
    model, asked = build("Llama"), []
    attend = head_split.local_attention

    def noted(q, *more, **options):
        asked.append(tuple(q.shape[1:3]))
        return attend(q, *more, **options)

    monkeypatch.setattr(head_split, "local_attention", noted)
    with torch.no_grad():
        want = model(**inputs_of(1)).logits

    def call(own, sharding):
        out = own(**inputs_of(1), past_key_values=sharding.cache).logits
        return out, [layer.store.n_local for layer in sharding.cache.sharded_layers]

    results = on_ranks(model, ranks, call)
    for logits, _ in results:
        assert float((logits - want).abs().max()) <= LIMIT
    assert sum(heads for heads, _ in asked) == 4 * model.config.num_hidden_layers
    assert {tokens for _, tokens in asked} == {40}
    assert all(sum(kept) == 40 for kept in zip(*(kept for _, kept in results), strict=True))


def test_few_tokens_and_more_ranks_than_heads_go_the_other_way(monkeypatch):
    monkeypatch.setattr(head_split, "local_attention", None)
    model = build("Llama")
    for tokens, ranks in ((15, 2), (40, 5)):
        on_ranks(
            model, ranks, lambda own, _, n=tokens: own.generate(**inputs_of(1, n), max_new_tokens=2, pad_token_id=0)
        )
