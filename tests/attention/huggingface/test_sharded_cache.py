"""Prompts taken by the ring, each rank with its own tokens, and logits that no number of ranks changes."""

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from attention import ShardMap
from attention.huggingface import ring_or_gather
from attention.huggingface.generation import enable, shard_generation
from tests.thinning import alternating, covering
from topocomm import run_local

SMALL = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "vocab_size": 97,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": 12}),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, {"sliding_window": 12, "head_dim": 8}),
}
OPTIONS = {"max_new_tokens": 12, "do_sample": False}


@pytest.fixture(scope="module", params=FAMILIES)
def model(request):
    torch.manual_seed(1)
    config, kind, more = FAMILIES[request.param]
    return kind(config(**SMALL, **more)).eval()


def prompt(tokens, batch=2):
    ids = torch.randint(1, 97, (batch, tokens), generator=torch.Generator().manual_seed(tokens))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def shards(ranks):
    return ShardMap(ranks, virtual_shards=8, block_size=2)


@pytest.mark.parametrize(
    ("model", "ranks", "ring"), covering(FAMILIES, [1, 2, 3, 5], [False, True]), indirect=["model"]
)
def test_generation_after_a_prefill(model, ranks, ring, monkeypatch):
    inputs = prompt(45)
    if ring:
        monkeypatch.setattr(ring_or_gather, "GATHERED_BYTES", 0)
    alone = model.generate(**inputs, **OPTIONS)

    def work(comm):
        passed = []
        hook = model.base_model.register_forward_hook(lambda module, given, out: passed.append(out[0].shape[1]))
        with enable(model, comm, shards=shards(comm.size)) as sharding:
            sharding.cache.prefill(inputs["input_ids"])
            hook.remove()
            tokens = model.generate(**inputs, past_key_values=sharding.cache, **OPTIONS)
        return tokens, passed, sharding.cache.get_seq_length()

    found = run_local(work, ranks=ranks)
    for tokens, _, length in found:
        assert torch.equal(tokens, alone) and length == 45 + 11
    if ranks > 1:  # the hook of every thread sees the passes of all, each with that rank's tokens
        counts = {len(shards(ranks).owned(rank, 0, 44)) for rank in range(ranks)}
        assert set(found[0][1]) <= counts and max(counts) < 44


@pytest.mark.parametrize(("model", "tokens"), alternating(FAMILIES, [1, 2, 5]), indirect=["model"])
def test_a_prompt_that_is_too_short_to_be_sharded(model, tokens):
    inputs = prompt(tokens)
    alone = model.generate(**inputs, **OPTIONS)

    def work(comm):
        with shard_generation(model, comm, shards=shards(comm.size)) as cache:
            cache.prefill(inputs["input_ids"])
            return model.generate(**inputs, past_key_values=cache, **OPTIONS)

    assert all(torch.equal(one, alone) for one in run_local(work, ranks=4))


def test_what_a_prefill_cannot_take(model):
    ids = prompt(30)["input_ids"]

    def work(comm):
        with shard_generation(model, comm) as cache:
            cache.prefill(ids)
            with pytest.raises(ValueError, match=r"has 29 tokens already; reset\(\)"):
                cache.prefill(ids)
            cache.reset()
            cache.prefill(ids)

    run_local(work, ranks=2)


def logits(model, inputs, ranks, order):
    options = OPTIONS | {"max_new_tokens": 6, "output_logits": True, "return_dict_in_generate": True}

    def work(comm):
        with enable(model, comm, order=order, shards=shards(comm.size)):
            found = model.generate(**inputs, **options)
        return torch.stack(found.logits)

    before = torch.get_num_threads()
    torch.set_num_threads(1)  # products of torch may round by their number
    try:
        return run_local(work, ranks=ranks)
    finally:
        torch.set_num_threads(before)


def test_canonical_logits_are_the_same_bits_on_any_number_of_ranks(model):
    inputs = prompt(37)
    inputs["attention_mask"][0, :5] = 0
    found = [one for ranks in (1, 2, 3, 4, 8) for one in logits(model, inputs, ranks, "canonical")]
    assert all(torch.equal(one, found[0]) for one in found)
    plain = logits(model, inputs, 3, "any")[0]
    assert torch.allclose(plain, found[0], atol=1e-4) and not torch.equal(plain, found[0])


def test_orders_that_do_not_exist_are_named(model):
    def work(comm):
        with pytest.raises(ValueError, match="enable: order must be one of any, canonical, got 'sorted'"):
            enable(model, comm, order="sorted")
        with pytest.raises(ValueError, match='order="canonical" goes with method="tree"'):
            enable(model, comm, order="canonical", method="ring")

    run_local(work, ranks=1)
