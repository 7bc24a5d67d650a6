"""Generation with a sharded cache gives what transformers gives alone: same tokens, close logits, clear refusals.

Models are random, two layers deep, and large in their weights, so that the attention matters: a wrong mask or a
lost key changes the tokens.
"""

import pytest
import torch
import transformers

from attention import PreparedDecode
from attention.cache.shards import ShardMap
from attention.decode import prepared
from attention.huggingface.generation import ShardedCache, shard_generation
from tests.attention.faults import plant_lse_fault
from tests.attention.huggingface.tiny_llama import NEW, build, generate, refused, small
from tests.thinning import alternating
from topocomm import Communicator, run_local

LIMIT = 1e-3
METHODS = ["tree", "ring", "allreduce"]
CASES = [
    *alternating([1, 2, 3], METHODS),
    *(pytest.param(4, method, marks=pytest.mark.soak) for method in METHODS),
    *(pytest.param(8, method, marks=pytest.mark.long) for method in METHODS),
]


def sharded(model, inputs, *, ranks, method="tree", shards=None, **options):
    """What every rank generates."""

    def work(comm):
        with shard_generation(model, comm, method=method, shards=shards or small(ranks)) as cache:
            return generate(model, inputs, past_key_values=cache, **options)

    return run_local(work, ranks=ranks)


def difference(got, expected):
    return float((torch.stack(got.logits) - torch.stack(expected.logits)).abs().max())


def assert_same(outputs, expected):
    for rank, got in enumerate(outputs):
        assert torch.equal(got.sequences, expected.sequences), f"rank {rank}"
        assert difference(got, expected) <= LIMIT, f"rank {rank}"


@pytest.mark.parametrize(("ranks", "method"), CASES)
def test_greedy_tokens_of_a_left_padded_batch(llama, prompt, ranks, method):
    outputs = sharded(llama, prompt, ranks=ranks, method=method)
    assert_same(outputs, generate(llama, prompt))
    assert all(torch.equal(got.sequences, outputs[0].sequences) for got in outputs)


@pytest.mark.parametrize("method", ["tree", "allreduce"])
def test_logits_are_the_same_bits_on_every_rank(llama, prompt, method):
    outputs = sharded(llama, prompt, ranks=3, method=method)
    for got in outputs[1:]:
        assert torch.equal(torch.stack(got.logits), torch.stack(outputs[0].logits))


def test_beam_search(llama, prompt):
    expected = generate(llama, prompt, num_beams=3, max_new_tokens=20)
    for got in sharded(llama, prompt, ranks=3, num_beams=3, max_new_tokens=20):
        assert torch.equal(got.sequences, expected.sequences)


def test_several_calls_continue_one_cache(llama, prompt):
    """A second turn: more than one query at once after a cache, and a mask that has grown."""
    extra = torch.randint(3, 199, (3, 21), generator=torch.Generator().manual_seed(3))

    def talk(cache):
        first = generate(llama, prompt, past_key_values=cache, max_new_tokens=9)
        ids = torch.cat([first.sequences, extra], dim=1)
        mask = torch.cat([prompt["attention_mask"], torch.ones(3, 9 + 21, dtype=torch.int64)], dim=1)
        return generate(llama, {"input_ids": ids, "attention_mask": mask}, past_key_values=cache, max_new_tokens=9)

    def work(comm):
        with shard_generation(llama, comm, shards=small(3)) as cache:
            return talk(cache)

    assert_same(run_local(work, ranks=3), talk(transformers.DynamicCache(config=llama.config)))


def test_padding_matters(llama, prompt):
    """The tests above would not notice a lost mask if the mask changed nothing."""
    unmasked = {"input_ids": prompt["input_ids"], "attention_mask": torch.ones_like(prompt["attention_mask"])}
    assert not torch.equal(generate(llama, unmasked).sequences, generate(llama, prompt).sequences)


def test_contiguous_shards_and_ranks_without_tokens(llama, prompt):
    shards = ShardMap(5, block_size=4, capacity=640)  # ranks from the second on own nothing of 90 tokens
    assert_same(sharded(llama, prompt, ranks=5, shards=shards), generate(llama, prompt))


def test_assisted_generation_crops_the_cache(llama):
    pattern = torch.randint(3, 199, (1, 6), generator=torch.Generator().manual_seed(4)).repeat(1, 8)
    inputs = {"input_ids": pattern, "attention_mask": torch.ones_like(pattern)}
    expected = generate(llama, inputs, max_new_tokens=20)
    for got in sharded(llama, inputs, ranks=2, max_new_tokens=20, prompt_lookup_num_tokens=4):
        assert torch.equal(got.sequences, expected.sequences)


@pytest.mark.parametrize("name", ["Qwen2", "GPTNeoX", "Granite"])
def test_other_models_with_plain_causal_attention(name, prompt):
    model = build(name, initializer_range=0.2)
    expected = generate(model, prompt, max_new_tokens=10)
    assert_same(sharded(model, prompt, ranks=2, max_new_tokens=10), expected)


def test_each_rank_holds_its_part(llama, prompt):
    def work(comm):
        with shard_generation(llama, comm, shards=small(4)) as cache:
            generate(llama, prompt, past_key_values=cache)
            return cache.used_bytes, cache.allocated_bytes, cache.get_seq_length()

    facts = run_local(work, ranks=4)
    tokens = 50 + NEW - 1
    token_bytes = 2 * 2 * 3 * 2 * 16 * 4  # keys and values, layers, batch, KV heads, dim, float32
    assert sum(used for used, _, _ in facts) == tokens * token_bytes
    assert [used for used, _, _ in facts] == [len(small(4).owned(r, 0, tokens)) * token_bytes for r in range(4)]
    assert all(used <= allocated <= 2 * used for used, allocated, _ in facts)
    assert all(length == tokens for _, _, length in facts)


def test_a_wrong_partial_on_one_rank_changes_the_tokens(llama, prompt, monkeypatch):
    """The fault that mixed bases of the logarithm make: lse off by ln 2 on rank 1."""
    expected = generate(llama, prompt)
    plant_lse_fault(monkeypatch)
    outputs = sharded(llama, prompt, ranks=2)
    assert not torch.equal(outputs[0].sequences, expected.sequences)
    assert float((outputs[0].logits[1] - expected.logits[1]).abs().max()) > 100 * LIMIT  # the prompt needs no partials


def test_the_model_is_as_before_afterwards(llama, prompt):
    before = llama.config._attn_implementation
    sharded(llama, prompt, ranks=3)
    assert llama.config._attn_implementation == before

    def fail(comm):
        with shard_generation(llama, comm):
            raise KeyError("planned")

    with pytest.raises(KeyError, match="planned"):
        run_local(fail, ranks=2)
    assert llama.config._attn_implementation == before
    generate(llama, prompt, max_new_tokens=2)


# What is refused.


def test_models_without_the_attention_interface():
    config = transformers.BloomConfig(hidden_size=64, n_head=4, n_layer=2, vocab_size=199)
    model = transformers.BloomForCausalLM(config)
    assert "does not use transformers' attention interface" in refused(model, lambda cache: None)
    assert model.config._attn_implementation == "eager"


def test_unknown_method_and_too_many_ranks(llama):
    with pytest.raises(ValueError, match=r"method must be one of tree, ring, allreduce, got 'star'"):
        sharded(llama, {}, ranks=1, method="star")
    with pytest.raises(ValueError, match=r"map is for 3 ranks, the communicator has 1"):
        run_local(lambda comm: ShardedCache(llama, comm, ShardMap(3)), ranks=1)


@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_steps_of_a_generation_are_prepared_once(monkeypatch, prompt, name):
    changes = {"head_dim": 16, "sliding_window": 24} if name == "Gemma2" else {}
    model = build(name, num_hidden_layers=4, **changes)
    mask = prompt["attention_mask"].clone()
    mask[1, 10] = 0  # not at the left, so that no step is bound
    prompt = {**prompt, "attention_mask": mask}
    made, plans, told, quick = [], [], [], []
    patches = ((PreparedDecode, "__init__", made), (Communicator, "prepare", plans), (prepared, "agree_once", told))
    for owner, method, calls in patches:
        monkeypatch.setattr(owner, method, counting(getattr(owner, method), calls))
    step = PreparedDecode._fast_path

    def counted(self, *given):
        merged = step(self, *given)
        quick.append(merged is not None)
        return merged

    monkeypatch.setattr(PreparedDecode, "_fast_path", counted)

    def on_rank(comm):
        counts = []
        with shard_generation(model, comm) as cache:
            for tokens in (1, NEW):
                comm.barrier()
                counts.append((len(made), len(told), len(plans)))
                comm.barrier()
                generate(model, prompt, past_key_values=cache, max_new_tokens=tokens)
                cache.reset()
            comm.barrier()
            return *counts, (len(made), len(told), len(plans))

    for _, before, after in run_local(on_rank, ranks=2):
        assert before == (0, 0, 0)  # keys and values of the prompt are gathered
        assert after == (2, 2, 2)  # of one token at a time, with a window or without
    assert len(quick) == quick.count(True) == 2 * 4 * (NEW - 1)


def counting(call, calls):
    def counted(*given, **more):
        calls.append(given)
        return call(*given, **more)

    return counted
