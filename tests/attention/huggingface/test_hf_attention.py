"""What the attention and the mask function refuse: whatever would give other results than one process."""

import pytest
import torch
import transformers

from attention.huggingface.generation import shard_generation
from tests.attention.huggingface.tiny_llama import build, generate, refused, small
from tests.attention.losing import leave
from tests.once import once
from topocomm import RankFailedError, run_local

BART = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}


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


# Decoders of models that may have an encoder.


@once
def bart():
    torch.manual_seed(1)
    sizes = {f"{part}_{name}": n for part in ("encoder", "decoder") for name, n in BART.items()}
    config = transformers.BartConfig(
        **sizes,
        d_model=32,
        vocab_size=199,
        max_position_embeddings=160,
        init_std=0.3,
        eos_token_id=None,
        forced_eos_token_id=None,
        pad_token_id=0,
        bos_token_id=None,
    )
    return transformers.BartForCausalLM(config).eval()


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("rows", [slice(1, 2), slice(0, 2)], ids=["a row", "a left-padded batch"])
def test_a_decoder_without_its_encoder(prompt, rows, ranks):
    inputs = {name: x[rows] for name, x in prompt.items()}

    def work(comm):
        with shard_generation(bart(), comm, shards=small(ranks)) as cache:
            return generate(bart(), inputs, past_key_values=cache).sequences

    for got in run_local(work, ranks=ranks):
        assert torch.equal(got, generate(bart(), inputs).sequences)


def test_an_encoder_is_refused(prompt):
    states = torch.zeros(3, 7, 32)
    message = refused(bart(), lambda cache: bart()(**prompt, encoder_hidden_states=states, past_key_values=cache))
    assert "layer 0 (BartAttention) attends to later tokens too, or to an encoder: give no encoder_hidden" in message


def test_a_model_that_takes_no_positions_is_given_its_tokens_in_order(prompt):
    """Bart counts positions from the tokens in the cache: so a prompt passes whole, and after a loss all tokens."""
    inputs = {name: x[1:2] for name, x in prompt.items()}

    def work(comm):
        with shard_generation(bart(), comm, shards=small(3)) as cache:
            cache.prefill(inputs["input_ids"])
            made = generate(bart(), inputs, past_key_values=cache, max_new_tokens=4).sequences
            if comm.rank == 1:
                return leave(comm)
            with pytest.raises(RankFailedError), torch.no_grad():
                bart()(made[:, -1:], past_key_values=cache)
            cache.recover(comm.shrink())
            mask = torch.ones_like(made)
            return generate(
                bart(), {"input_ids": made, "attention_mask": mask}, past_key_values=cache, max_new_tokens=6
            )

    expected = generate(bart(), inputs, max_new_tokens=10).sequences
    first, _, last = run_local(work, ranks=3)
    assert torch.equal(first.sequences, expected) and torch.equal(last.sequences, expected)
