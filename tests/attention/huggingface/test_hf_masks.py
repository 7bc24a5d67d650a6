"""What the mask function refuses: whatever would give other results than one process."""

import pytest
import torch

from attention.huggingface.hf_masks import MaskError, PositionMask
from tests.attention.huggingface.tiny_llama import build, generate, refused


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


def test_a_model_that_makes_a_mask_of_its_own(prompt):
    model = build("Doge")
    expected = (
        "doge makes a mask of its own from the attention mask and all keys or values (it reads dtype of the mask)"
    )
    for ranks in (1, 2):
        message = refused(model, lambda cache: generate(model, prompt, past_key_values=cache), ranks=ranks)
        assert expected in message
        assert "generate with this model on one rank, without attention.huggingface.generation" in message
    for use in (lambda mask: mask.dtype, lambda mask: mask[:, 0]):
        with pytest.raises(MaskError, match="doge makes a mask of its own"):
            use(PositionMask(None, None, "doge"))
