"""What readers did with a sharded model: caches out of place, one streamer, another attention."""

import pytest
import torch
from transformers.generation.streamers import BaseStreamer

from attention.huggingface.generation import enable, shard_generation
from tests.attention.huggingface.test_enable import LIMIT, on_ranks, refused
from tests.attention.huggingface.test_hf_layers import build, generate, prompt
from topocomm import run_local


@pytest.fixture(scope="module")
def llama():
    return build("Llama")


def test_a_plain_forward_pass_begins_the_cache_that_the_next_one_goes_on_from(llama):
    ids = prompt()["input_ids"][:1]

    def call(sharding):
        with torch.no_grad():
            made = llama(input_ids=ids[:, :-1])
            assert sharding.cache is made.past_key_values and sharding.cache.get_seq_length() == ids.shape[1] - 1
            made = llama(input_ids=ids[:, -1:], past_key_values=sharding.cache).logits[:, -1]
            generate(llama, prompt())
            kept = sharding.cache
            llama(input_ids=ids)
            assert sharding.cache is kept
            return made

    with torch.no_grad():
        expected = llama(input_ids=ids).logits[:, -1]
    for got in on_ranks(llama, call):
        assert float((got - expected).abs().max()) <= LIMIT


def test_a_pass_without_a_cache_begins_none(llama):
    def call(sharding):
        before = sharding.cache
        with torch.no_grad():
            llama(**prompt(), use_cache=False)
        return sharding.cache is before

    assert on_ranks(llama, call, ranks=2) == [True, True]


@pytest.mark.parametrize("context", [enable, shard_generation])
def test_a_cache_is_of_no_use_after_the_end_and_of_use_again(llama, context):
    """Plain attention would take a rank's positions for all."""

    def work(comm):
        with context(llama, comm) as sharding:
            cache = sharding if context is shard_generation else sharding.cache
            made = generate(llama, prompt(), past_key_values=cache)
            cache = made.past_key_values
        comm.barrier()
        with pytest.raises(ValueError, match="the sharding of its model has ended: go on inside the `with`"):
            generate(llama, {"input_ids": made.sequences}, past_key_values=cache)
        comm.barrier()
        with enable(llama, comm):
            return generate(llama, {"input_ids": made.sequences}, past_key_values=cache).sequences

    first, second = run_local(work, ranks=2)
    assert torch.equal(first, second)


class Counter(BaseStreamer):
    count = 0

    def put(self, value):
        self.count += 1

    def end(self):
        pass


def test_one_rank_may_have_a_streamer_and_another_none(llama):
    def work(comm):
        streamer = Counter() if comm.rank == 1 else None
        with enable(llama, comm):
            generate(llama, {"input_ids": prompt()["input_ids"][:1]}, streamer=streamer, max_new_tokens=4)
        return streamer and streamer.count

    assert run_local(work, ranks=2) == [None, 5]


def test_another_attention_inside(llama):
    def call(_):
        llama.set_attn_implementation("eager")
        generate(llama, prompt())

    message = refused(llama, call, ranks=1)
    assert "attends by 'eager' now: call set_attn_implementation before enable, or after its end" in message
