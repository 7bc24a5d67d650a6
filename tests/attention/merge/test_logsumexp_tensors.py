"""LOGSUMEXP on tensors: as on arrays, empty partials exact, and nothing from what nobody sees."""

import numpy as np
import pytest
import torch

from attention import LOGSUMEXP

COMBINE = LOGSUMEXP.combine


def partial(seed, rows=9, dim=5):
    draw = torch.Generator().manual_seed(seed)
    lse = torch.randn(rows, generator=draw) * 30
    out = torch.randn((rows, dim), generator=draw)
    lse[seed % 3 :: 4] = -torch.inf
    out[seed % 3 :: 4] = torch.nan  # nobody sees it
    return {"out": out, "lse": lse}


def as_numpy(value):
    return {name: tensor.numpy() for name, tensor in value.items()}


@pytest.mark.parametrize("seeds", [(0, 1), (1, 2), (3, 6)])
def test_tensors_merge_as_arrays_do(seeds):
    left, right = map(partial, seeds)
    found, expected = COMBINE(left, right), COMBINE(as_numpy(left), as_numpy(right))
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32
        np.testing.assert_allclose(tensor.numpy(), expected[name], rtol=3e-7, atol=1e-7)
    empty = torch.isinf(left["lse"]) & torch.isinf(right["lse"])
    assert not found["out"][empty].any()
    assert not torch.isnan(found["out"]).any()


def test_a_lse_that_is_no_number_stays_visible():
    wrong, right = ({"out": torch.ones(1, 2), "lse": torch.tensor([lse])} for lse in (torch.inf, 3.0))
    for found in (COMBINE(wrong, right), COMBINE(right, wrong)):
        assert found["out"].isnan().all() and found["lse"].isnan().all()


def test_an_empty_partial_leaves_the_other_bit_for_bit():
    some = {"out": torch.randn(4, 3), "lse": torch.randn(4)}
    nothing = {"out": torch.full((4, 3), torch.nan), "lse": torch.full((4,), -torch.inf)}
    for found in (COMBINE(some, nothing), COMBINE(nothing, some)):
        assert torch.equal(found["out"], some["out"])
        assert torch.equal(found["lse"], some["lse"])
