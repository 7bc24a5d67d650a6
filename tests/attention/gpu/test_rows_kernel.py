"""Soft caps keep the digits of small scores, in both kernels; float16 holds 8-bit numbers."""

import numpy as np
import pytest
import torch

from attention import Spec
from attention.gpu.decode.decode import decode_partial
from attention.gpu.prefill.prefill import prefill_partial

CAP = 50.0


@pytest.mark.parametrize("partial", [decode_partial, prefill_partial])
@pytest.mark.parametrize("scores", [[1e-30, 1e-3, 0.07, 1.0, 7.0], [31.2, 31.3, 90.0, 600.0], [torch.inf, torch.nan]])
def test_relative_to_the_score(partial, scores):
    """With one key lse is its capped score."""
    q = torch.tensor([*scores, *(-score for score in scores)]).view(1, 1, -1, 1)
    one = torch.ones(1, 1, 1, 1)
    found = partial(q, one, one, spec=Spec(scale=1.0, softcap=CAP)).lse.numpy().ravel()
    exact = CAP * np.tanh(q.double().numpy().ravel() / CAP)
    assert np.allclose(found, exact, rtol=5e-7, atol=0, equal_nan=True), found / exact - 1


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.float8_e4m3fn])
def test_float16_holds_the_least_8_bit_numbers(dtype):
    """With one key out is its value: subnormal numbers, of which the interpreter's own way from e5m2 loses some."""
    v = torch.tensor([*range(8), *range(128, 136)], dtype=torch.uint8).view(dtype).view(1, 1, 1, 16)
    q = torch.ones(1, 1, 1, 16, dtype=torch.bfloat16)
    found = decode_partial(q, v, v, spec=Spec(), k_scales=torch.ones(1), v_scales=torch.ones(1))
    assert torch.equal(found.out, v.float())
