"""What the mask function refuses: whatever would give other results than one process."""

import pytest
import torch

from attention.huggingface.generation import shard_generation
from attention.huggingface.hf_masks import MaskError, PositionMask, sharded_mask
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


def mask_of(rows):
    rows = torch.tensor(rows)
    return sharded_mask(len(rows), 1, rows.shape[1], attention_mask=rows)


def test_masks_of_like_steps_are_of_one_kind(llama):
    def work(comm):
        with shard_generation(llama, comm):
            assert mask_of([[1, 1], [1, 1]]).kind is mask_of([[1, 1, 1], [1, 1, 1]]).kind
            padded = mask_of([[0, 1, 1], [1, 1, 1]])
            assert padded.padding == (1, 0) and padded.kind is mask_of([[0, 1, 1, 1], [1, 1, 1, 1]]).kind
            assert padded.kind is not mask_of([[0, 0, 1, 1], [1, 1, 1, 1]]).kind
            for rows in ([[0, 1, 0, 1], [1, 1, 1, 1]], [[0, 0, 0], [1, 1, 1]], [[1, 1, 0], [1, 1, 1]]):
                assert mask_of(rows).padding is None and mask_of(rows).kind is not mask_of(rows).kind
            assert PositionMask(8, None).kind is not PositionMask(None, None).kind
            assert PositionMask(None, None, causal=False).kind is not PositionMask(None, None).kind

    run_local(work, ranks=1)
