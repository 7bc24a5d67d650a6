"""Sizes of models: weights that add up to the published number of parameters."""

import pytest

from topocomm import PlanError
from topocomm.simulation.decode.model_shapes import MODELS, ModelShape, model_shape


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-3.1-8b", 8.03), ("llama-3.1-70b", 70.6), ("llama-3.1-405b", 405.9), ("qwen2.5-7b", 7.62)],
)
def test_weights_are_those_of_the_model(name, billions):
    """The embedding is counted beside the head; norms and biases are left out."""
    shape = model_shape(name)
    layer = shape.qkv_weights + shape.output_weights + shape.mlp_weights
    assert (shape.layers * layer + 2 * shape.head_weights) / 1e9 == pytest.approx(billions, rel=2e-3)


def test_a_token_of_llama_8b_takes_128_kib():
    assert model_shape("llama-3.1-8b").kv_token_bytes * 32 == 128 << 10


def test_every_model_has_a_source():
    assert all(each.source for each in MODELS.values())


def test_what_is_refused():
    with pytest.raises(PlanError, match=r"model 'llama-4': expected one of llama-3\.1-8b"):
        model_shape("llama-4")
    with pytest.raises(PlanError, match="heads as a multiple of kv_heads"):
        ModelShape("odd", 1, 0, 10, 3, 128)
    with pytest.raises(PlanError, match="expected positive sizes"):
        ModelShape("none", 0, 0, 8, 8, 128)
