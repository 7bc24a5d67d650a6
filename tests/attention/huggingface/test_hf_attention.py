"""What the attention and the mask function refuse: whatever would give other results than one process."""

import pytest
import torch

import attention.huggingface.hf_attention as hf
from attention.huggingface.generation import shard_generation
from tests.attention.huggingface.tiny_llama import build, generate, refused
from topocomm import run_local


@pytest.mark.parametrize("shape", [(3, 49), (3, 51), (1, 50)])
def test_mask_of_the_wrong_length(llama, prompt, shape):
    mask = torch.ones(shape, dtype=torch.int64)
    mask[:, 0] = 0
    inputs = {**prompt, "attention_mask": mask}
    message = refused(llama, lambda cache: generate(llama, inputs, past_key_values=cache))
    assert "attention_mask must be [batch, tokens so far] = [3, 50]" in message
    assert f"got {list(shape)}" in message


def test_mask_of_four_dimensions(llama, prompt):
    message = refused(
        llama,
        lambda cache: llama(prompt["input_ids"], attention_mask=torch.zeros(3, 1, 50, 50), past_key_values=cache),
    )
    assert "takes a padding mask [batch, length], got one of shape [3, 1, 50, 50]" in message


def test_context_longer_than_the_model(llama):
    ids = torch.full((1, 161), 7)
    message = refused(llama, lambda cache: llama(ids, past_key_values=cache))
    assert "the sequence has 161 tokens, the model has 160 positions" in message


def test_forgotten_cache(llama, prompt):
    message = refused(llama, lambda cache: generate(llama, prompt))
    assert "pass past_key_values=cache" in message


def test_attention_weights_cannot_be_had(llama, prompt):
    message = refused(llama, lambda cache: generate(llama, prompt, past_key_values=cache, output_attentions=True))
    assert "does not support output_attentions=True" in message


def test_dropout(prompt):
    model = build(attention_dropout=0.1).train()
    message = refused(model, lambda cache: model(**prompt, past_key_values=cache))
    assert "does not support dropout=0.1" in message


def test_gradients(llama, prompt):
    def call(cache):
        with torch.enable_grad():
            llama(**prompt, past_key_values=cache)

    assert "require gradients" in refused(llama, call)


def test_outside_the_context(llama, prompt):
    def work(comm):
        with shard_generation(llama, comm) as cache:
            if comm.rank == 0:
                outside(cache)

    def outside(cache):
        token = hf.ACTIVE.set(None)
        try:
            with pytest.raises(hf.NotShardedError, match="call it inside `with shard_generation"):
                generate(llama, prompt, past_key_values=cache)
        finally:
            hf.ACTIVE.reset(token)

    run_local(work, ranks=1)
