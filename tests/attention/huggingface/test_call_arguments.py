"""Wrong arguments (choices and empty prompts are tried in test_enable.py), and the cache under both its names."""

import pytest
from transformers import DynamicCache

from attention.huggingface.call_arguments import CACHE, NAMES, given_cache, name_among
from attention.huggingface.generation import enable, shard_generation
from attention.huggingface.sharded_cache import ShardedCache
from tests.attention.huggingface.test_enable import assert_same, on_ranks
from tests.attention.huggingface.test_hf_layers import build, generate, prompt
from topocomm import run_local


def test_the_newer_name_wins():
    assert name_among(["x", "past_key_values", "cache"]) == "cache" and name_among(["past_key_values"]) == NAMES[1]
    assert name_among(["kwargs"]) == CACHE in NAMES
    assert given_cache({"past_key_values": 1, "cache": 2}) == 2 and given_cache({"past_key_values": 1}) == 1
    assert given_cache({"past_key_values": 1, "cache": None}) == 1 and given_cache({}) is None


@pytest.mark.parametrize("name", NAMES)
def test_both_names_are_taken(name):
    llama = build("Llama")

    def call(sharding):
        made = generate(llama, {**prompt(), name: DynamicCache()})
        assert (
            isinstance(sharding.cache, ShardedCache) and sharding.cache.get_seq_length() == made.sequences.shape[1] - 1
        )
        again = generate(llama, {"input_ids": made.sequences, name: sharding.cache})
        assert sharding.cache.get_seq_length() == again.sequences.shape[1] - 1
        return made

    assert_same(on_ranks(llama, call, ranks=2), generate(llama, prompt()))


@pytest.mark.parametrize("function", [enable, shard_generation])
def test_arguments_in_another_order(function):
    llama = build("Llama")

    def work(comm):
        for given in ((comm, llama), ("model", comm), (llama, None)):
            with function(*given):
                pass

    with pytest.raises(
        ValueError, match=rf"{function.__name__}\(model, comm\), a model and a Communicator, got \(Comm"
    ):
        run_local(work, ranks=1)
    for given, words in (((llama, None), "LlamaForCausalLM, None"), (("model", None), "str, None")):
        with pytest.raises(ValueError, match=rf"got \({words}\)"), function(*given):
            pass
