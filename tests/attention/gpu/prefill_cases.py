"""What the tests of the prefill kernel share: inputs of any dtype, and the comparison with the float64 formula."""

import numpy as np
import torch

import attention.gpu.prefill.prefill as prefill
from attention import reference_attention
from attention.gpu.prefill.prefill_table import Tile

# Of a weight that is rounded to the dtype of V. The interpreter cuts float32 off to bfloat16, a GPU rounds: half that.
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def use_tile(monkeypatch, rows, keys):
    """Programs of so many rows and keys per block."""
    monkeypatch.setattr(prefill, "_tile", lambda *_: Tile(rows, keys, 4, 1))


def tensors(batch, kv_heads, group, q_len, n, d, d_v=None, *, dtype=torch.float32, seed=0):
    """(q, k, v); scores vary enough for some weights to be much larger than others."""
    rng = np.random.default_rng(seed)
    shapes = (
        (batch, kv_heads * group, q_len, d),
        (batch, kv_heads, n, d),
        (batch, kv_heads, n, d if d_v is None else d_v),
    )
    return tuple(torch.from_numpy(rng.standard_normal(s, dtype=np.float32)).to(dtype) for s in shapes)


def spread(start, count):
    """Consecutive positions from an int, or what is given."""
    return np.arange(start, start + count) if isinstance(start, int) else start


def expected(q, k, v, *, spec=None, q_positions=None, kv_positions=None, kv_mask=None, kv_lengths=None):
    """The float64 formula, with starts and lengths written out as positions and masks."""
    q_len, n = q.shape[2], k.shape[2]
    if kv_lengths is not None:
        short = np.arange(n) < np.asarray(kv_lengths)[:, None]
        kv_mask = short if kv_mask is None else short & np.atleast_2d(kv_mask)
    if spec is not None and spec.needs_positions and q_positions is None:
        last = np.asarray([n] if kv_lengths is None else kv_lengths)[:, None]
        q_positions, kv_positions = np.arange(q_len) + last - q_len, np.arange(n)
    return reference_attention(
        *(x.double().numpy() for x in (q, k, v)),
        spec=spec,
        q_positions=None if q_positions is None else spread(q_positions, q_len),
        kv_positions=None if kv_positions is None else spread(kv_positions, n),
        kv_mask=kv_mask,
    )


def assert_partial(got, exact, v):
    """Equal to the formula as far as the dtype of V allows; exactly (0, -inf) in the same rows."""
    out, lse = got.out.double().numpy(), got.lse.double().numpy()
    assert got.out.dtype == got.lse.dtype == torch.float32
    assert out.shape == exact.out.shape and lse.shape == exact.lse.shape
    empty = exact.lse == -np.inf
    assert (np.isneginf(lse) == empty).all()
    assert (out[empty] == 0).all()
    largest = float(np.nan_to_num(v.double().abs().numpy(), posinf=0).max(initial=0))
    np.testing.assert_allclose(out, exact.out, rtol=0, atol=ROUNDING[v.dtype] * max(largest, 1), equal_nan=False)
    tops = np.abs(exact.lse[~empty]).max(initial=0)
    np.testing.assert_allclose(lse[~empty], exact.lse[~empty], rtol=0, atol=max(1e-5, 4e-7 * tops))


def check(q, k, v, **options):
    """prefill_partial against the formula."""
    got = prefill.prefill_partial(q, k, v, **options)
    assert_partial(got, expected(q, k, v, **options), v)
    return got
