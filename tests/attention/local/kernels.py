"""Adapters of kernels against the formula, and kernels made up after the conventions of families not installed here."""

import math

import numpy as np
import torch

from attention import Partial, Spec, reference_attention
from tests.attention.cases import arrays, assert_close

CAUSAL = Spec(causal=True)

# batch, kv_heads, query heads per key head, q_len, n, d, d_v: all sizes of a call differ and are more than 1, so that
# swapped axes cannot pass; d_v below, above and at d; more queries than keys; one query.
SHAPES = [
    (2, 3, 2, 5, 7, 16, 24),
    (3, 2, 4, 5, 37, 24, 10),
    (2, 3, 3, 7, 4, 8, 8),
    (4, 3, 2, 1, 33, 20, 16),
]
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Of out, relative to the largest value: kernels round it to q's dtype, and weights for their product with v."""


def tensors(shape, dtype=torch.float32, **options):
    return [torch.from_numpy(x).to(dtype) for x in arrays(shape, **options)]


def check(adapter, q, k, v, *, lse_atol=None, **options):
    """The adapter against the formula on the same rounded inputs."""
    positions = {name: options[name] for name in ("q_positions", "kv_positions") if name in options}
    if options.get("spec", Spec()).causal and not positions:
        positions = last(q, k)
    exact = reference_attention(*(x.double().numpy() for x in (q, k, v)), spec=options.get("spec"), **positions)
    got = adapter(q, k, v, **options)
    assert isinstance(got, Partial)
    assert got.out.dtype == got.lse.dtype == torch.float32
    empty = exact.lse == -math.inf
    assert np.array_equal(got.lse.numpy() == -math.inf, empty)
    assert not got.out.numpy()[empty].any()
    assert_close(got.out, exact.out, atol=3 * ROUNDING[q.dtype] * max(float(v.abs().max()), 1))
    # In 16 bits lse of torch's CPU kernel is off by up to 3e-5.
    assert_close(got.lse, exact.lse, atol=lse_atol or (5e-6 if q.dtype == torch.float32 else 1e-4))
    return got


def on_cuda(adapter):
    """The adapter with its arrays taken to the GPU and its result back."""

    def there_and_back(q, k, v, **options):
        got = adapter(q.cuda(), k.cuda(), v.cuda(), **options)
        return Partial(got.out.cpu(), got.lse.cpu())

    return there_and_back


def last(q, k):
    """Positions with the queries at the end of the keys."""
    n = k.shape[2]
    return {"q_positions": np.arange(n - q.shape[2], n), "kv_positions": np.arange(n)}


def formula(q, k, v, *, scale, causal):
    """(out, lse) of [batch, heads, q_len, d] in float64, natural logarithm; causal aligned to the bottom right.

    NaN among the scores gives NaN, as in every kernel.
    """
    spec = Spec(scale=scale, causal=causal)
    with np.errstate(invalid="ignore"):
        return reference_attention(*(x.double().numpy() for x in (q, k, v)), spec=spec, **last(q, k))
