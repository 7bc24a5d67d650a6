"""Ranks that run another prompt, mask, options or weights: an error on every rank that says so, and no wrong token."""

import copy

import pytest
import torch
from transformers import DynamicCache, GenerationConfig

from attention.huggingface import agreement_of_inputs
from attention.huggingface.generation import enable, shard_generation
from tests.attention.huggingface.test_hf_layers import build, generate, prompt, small
from topocomm import MismatchError, run_local

RANKS = 3
REMEDY = "call it with the same inputs and options on all ranks"


@pytest.fixture(scope="module")
def llama():
    return build("Llama")


def told(call):
    """What every rank is told."""

    def work(comm):
        with pytest.raises(MismatchError) as caught:
            call(comm)
        return str(caught.value)

    return run_local(work, ranks=RANKS)


def changed(tensor):
    """One bit of one item is another."""
    tensor = tensor.clone()
    tensor.flatten()[-1] ^= 1
    return tensor


@pytest.mark.parametrize(
    ("ranks", "name", "make"),
    [
        ([1], "input_ids", changed),
        ([1, 2], "input_ids", lambda x: x[:, 1:]),
        ([2], "attention_mask", changed),
        ([2], "attention_mask", lambda x: None),
    ],
)
def test_a_prompt_or_mask_of_its_own(llama, ranks, name, make):
    def call(comm):
        inputs = dict(prompt())
        if comm.rank in ranks:
            inputs[name] = make(inputs[name])
        with enable(llama, comm, shards=small(RANKS)):
            generate(llama, inputs)

    which = f"rank {ranks[0]}" if len(ranks) == 1 else "ranks 1, 2"
    assert told(call) == [
        f"rank {rank}: generate: {which} and rank 0 differ in {name}; {REMEDY}" for rank in range(RANKS)
    ]


@pytest.mark.parametrize(
    ("options", "other", "words"),
    [
        ({}, {"max_new_tokens": 4}, r"max_new_tokens (ranks 0, 2: 10; rank 1: 4)"),
        (
            {"eos_token_id": 6},
            {"num_beams": 2},
            "eos_token_id (ranks 0, 2: 6; rank 1: none), num_beams (ranks 0, 2: none; rank 1: 2)",
        ),
        (*({"generation_config": GenerationConfig(top_k=k)} for k in (5, 7)), "top_k (ranks 0, 2: 5; rank 1: 7)"),
    ],
)
def test_options_of_its_own(llama, options, other, words):
    def call(comm):
        with enable(llama, comm, shards=small(RANKS)):
            generate(llama, prompt(), **(other if comm.rank == 1 else options))

    assert {text.split(": ", 1)[1] for text in told(call)} == {
        f"generate: rank 1 and rank 0 differ in options: {words}; {REMEDY}"
    }


@pytest.mark.parametrize("function", [enable, shard_generation])
@pytest.mark.parametrize(
    ("weight", "dtype"),
    [
        ("model.layers.0.mlp.up_proj.weight", torch.float32),
        ("lm_head.weight", torch.float32),
        ("model.norm.weight", torch.bfloat16),
    ],
)
def test_weights_of_its_own(llama, function, weight, dtype):
    model = copy.deepcopy(llama).to(dtype)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.get_parameter(weight).flatten()[-1].mul_(1.01)

    def call(comm):
        with function(other if comm.rank == 2 else model, comm, shards=small(RANKS)):
            pass

    assert told(call) == [
        f"rank {rank}: {function.__name__}: rank 2 and rank 0 differ in {weight}; load the same weights on all ranks"
        for rank in range(RANKS)
    ]


def test_another_model(llama):
    def call(comm):
        with enable(build("Gemma2") if comm.rank else llama, comm, shards=small(RANKS)):
            pass

    assert all("ranks 1, 2 and rank 0 differ in the names, shapes or dtypes of weights" in text for text in told(call))


def test_weights_are_read_again_where_they_have_changed_only(llama, monkeypatch):
    reads, plain = [], agreement_of_inputs._sums_of_bits
    monkeypatch.setattr(agreement_of_inputs, "_sums_of_bits", lambda *args: reads.append(1) or plain(*args))
    model = copy.deepcopy(llama)

    def work(comm):
        with enable(model, comm, shards=small(2)):
            pass

    for _ in range(2):
        run_local(work, ranks=2)
    assert len(reads) == 1
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    run_local(work, ranks=2)
    assert len(reads) == 2


def test_weights_that_are_elsewhere_and_inputs_at_any_strides(llama):
    model = copy.deepcopy(llama)
    model.register_buffer("offloaded", torch.empty(3, device="meta"))
    model.register_buffer("whole", torch.tensor(3))
    ids = torch.arange(8)[None].T[:1]

    def work(comm):
        with enable(model, comm, shards=small(2)):
            return generate(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}).sequences.shape

    assert run_local(work, ranks=2) == [(1, 11)] * 2


def test_after_a_mismatch_the_same_empty_cache_may_come_again(llama):
    empty = DynamicCache(config=llama.config)

    def work(comm):
        with enable(llama, comm, shards=small(2)) as sharding:
            before = sharding.cache
            with pytest.raises(MismatchError):
                generate(llama, prompt(), past_key_values=empty, max_new_tokens=3 + comm.rank)
            assert sharding.cache is before
            comm.barrier()
            return generate(llama, prompt(), past_key_values=DynamicCache(config=llama.config)).sequences

    first, second = run_local(work, ranks=2)
    assert torch.equal(first, second)


def test_nothing_is_compared_where_nothing_is_checked(llama, monkeypatch):
    monkeypatch.setenv("TOPOCOMM_CHECK", "never")
    other = copy.deepcopy(llama)
    with torch.no_grad():
        other.lm_head.weight[0, 0] += 1

    def work(comm):
        with enable(other if comm.rank else llama, comm, shards=small(2)):
            return comm.rank

    assert run_local(work, ranks=2) == [0, 1]
