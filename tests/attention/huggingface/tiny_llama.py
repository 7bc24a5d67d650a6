"""A tiny random model, large in its weights so that the attention matters, and what tests do with it."""

import pytest
import torch
import transformers

from attention.cache.shards import ShardMap
from attention.huggingface.generation import shard_generation
from topocomm import run_local

SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 199,
    "max_position_embeddings": 160,
    "initializer_range": 0.25,
    "eos_token_id": None,
}


NEW = 12


def build(name="Llama", **changes):
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **changes})
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def generate(model, inputs, **options):
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, **options}
    return model.generate(**inputs, **options, return_dict_in_generate=True, output_logits=True)


def small(ranks):
    """Short blocks, so that short texts have several a rank; prompts are dealt by them too."""
    return ShardMap(ranks, virtual_shards=16, block_size=2)


def refused(model, call, *, ranks=2):
    def work(comm):
        with shard_generation(model, comm) as cache, torch.no_grad():
            call(cache)

    with pytest.raises(ValueError) as caught:  # noqa: PT011 - each test looks at the message
        run_local(work, ranks=ranks)
    return str(caught.value)
