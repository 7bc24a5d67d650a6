"""Gradients over one shard against float64 autograd; their sum over shards is that of the whole."""

import pytest
import torch

from attention import Spec
from attention.arrays import check_inputs
from attention.local import blocks
from attention.ring.backward import backward_block
from attention.visibility import Masking
from tests.attention.cases import SHAPES, arrays
from tests.attention.gradients import SPECS, gradients64, spec_of
from tests.thinning import thinned

MORE_SHAPES = [*SHAPES, (2, 2, 3, 40, 33, 12, 20), (1, 2, 2, 3, 0, 8, 8), (2, 1, 2, 0, 7, 8, 4)]


def case(shape, seed=0):
    """(q, k, v), gradients that arrive, and positions: keys in any order, queries so that some see nothing."""
    tensors = [torch.from_numpy(x) for x in arrays(shape, seed=seed)]
    generator = torch.Generator().manual_seed(seed)
    batch, kv_heads, group, q_len, n, _, d_v = shape
    d_out = torch.randn(batch, kv_heads * group, q_len, d_v, generator=generator)
    d_lse = torch.randn(batch, kv_heads * group, q_len, generator=generator)
    queries = torch.randint(0, n + 2, (batch, q_len), generator=generator)
    keys = torch.stack([torch.randperm(n, generator=generator) + 1 for _ in range(batch)])
    return tensors, (d_out, d_lse), (queries, keys)


def inputs_of(tensors, spec, positions, part=slice(None), **masking):
    q, k, v = tensors
    masking = Masking(q_positions=positions[0], kv_positions=positions[1][:, part], **masking)
    return check_inputs("here", q, k[:, :, part], v[:, :, part], spec=spec, masking=masking)


def assert_gradients(found, exact, message=""):
    for name, got, wanted in zip("qkv", found, exact, strict=True):
        assert got.dtype == torch.float32
        limit = 1e-5 * max(1.0, float(wanted.abs().max()) if wanted.numel() else 1.0)
        torch.testing.assert_close(
            got.double(), wanted, rtol=0, atol=limit, msg=lambda m, n=name: f"{message} d{n}: {m}"
        )


@pytest.mark.parametrize("name", thinned(SPECS))
def test_against_autograd(name, monkeypatch):
    for seed, shape in enumerate(MORE_SHAPES):
        tensors, (d_out, d_lse), positions = case(shape, seed)
        spec = spec_of(name, shape[1] * shape[2])
        for of_lse in (d_lse, None):
            result, exact = gradients64(tensors, spec, positions, d_out, of_lse)
            for block_floats in (blocks.BLOCK_FLOATS, 2048):
                with monkeypatch.context() as patch:
                    patch.setattr(blocks, "BLOCK_FLOATS", block_floats)
                    found = backward_block(
                        inputs_of(tensors, spec, positions), result.out.float(), result.lse.float(), d_out, of_lse
                    )
                assert_gradients(found, exact, f"{shape}, blocks of {block_floats}")


def test_shards_sum_up_to_the_whole():
    tensors, (d_out, d_lse), positions = case((2, 2, 3, 20, 100, 16, 8))
    spec = spec_of("all", 6)
    result, exact = gradients64(tensors, spec, positions, d_out, d_lse)
    parts = [slice(0, 33), slice(33, 33), slice(33, 90), slice(90, 100)]
    found = [
        backward_block(inputs_of(tensors, spec, positions, part), *(x.float() for x in result), d_out, d_lse)
        for part in parts
    ]
    dq, dk, dv = zip(*found, strict=True)
    assert_gradients((sum(dq), torch.cat(dk, 2), torch.cat(dv, 2)), exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes_are_computed_in_float32(dtype):
    tensors, (d_out, d_lse), positions = case(MORE_SHAPES[5])
    tensors, d_out = [x.to(dtype) for x in tensors], d_out.to(dtype)
    spec = spec_of("softcap", 6)
    result, exact = gradients64(tensors, spec, positions, d_out, d_lse)
    found = backward_block(inputs_of(tensors, spec, positions), result.out, result.lse.float(), d_out, d_lse)
    assert_gradients(found, exact)


@pytest.mark.parametrize("name", ["plain", "all"])
def test_what_is_hidden_neither_gets_nor_spreads_anything(name):
    (q, k, v), (d_out, d_lse), (queries, keys) = case((2, 2, 3, 20, 30, 16, 8))
    spec = spec_of(name, 6)
    mask = torch.rand((2, 30), generator=torch.Generator().manual_seed(1)) < 0.6
    mask[1] = False  # the second entry has no key at all
    result, exact = gradients64((q, k, v), spec, (queries, keys), d_out, d_lse, kv_mask=mask)
    k, v = (x.masked_fill(~mask[:, None, :, None], torch.nan) for x in (k, v))
    empty = result.lse == -torch.inf
    assert empty.any() == (spec.sinks is None)
    q, d_out = (x.masked_fill(empty[..., None], torch.nan) for x in (q, d_out))
    inputs = inputs_of((q, k, v), spec, (queries, keys), kv_mask=mask)
    found = backward_block(inputs, *(x.float() for x in result), d_out, d_lse.masked_fill(empty, torch.inf))
    assert_gradients(found, exact)
    assert (found[0][empty] == 0).all()
    for gradient in found[1:]:
        assert (gradient.transpose(1, 2)[~mask] == 0).all()


def test_messages_move_between_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_FLOATS", 2048)
    tensors, (d_out, _), positions = case(SHAPES[3])
    result, _ = gradients64(tensors, Spec(), positions, d_out)
    calls = []
    inputs = inputs_of(tensors, Spec(), positions)
    backward_block(inputs, *(x.float() for x in result), d_out, between=lambda: calls.append(1))
    assert len(calls) > 10
