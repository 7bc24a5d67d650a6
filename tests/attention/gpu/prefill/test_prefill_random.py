"""Features together, drawn at random from fixed seeds."""

import random

import numpy as np
import pytest
import torch

from attention import Spec, merge_states
from attention.gpu.prefill.prefill import prefill_partial
from tests.attention.gpu.prefill_cases import check, tensors, use_tile


def drawn(seed):
    """(sizes of `tensors`, dtype, options of prefill_partial, tile)."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    batch, kv_heads, group = rng.choice([1, 2]), rng.choice([1, 2]), rng.choice([1, 2, 3])
    q_len, n = rng.choice([1, 17, 33, 130]), rng.choice([0, 1, 63, 65, 200])
    if q_len * n > 33 * 65:
        batch = kv_heads = group = 1
    d = rng.choice([8, 16, 24, 64, 80, 96, 192])
    tile = rng.choice([(16, 16), (32, 64), (64, 32)] if q_len * n < 33 * 65 else [(64, 64), (128, 32)])
    spec = Spec(
        scale=rng.choice([None, None, 0.3, -0.2]),
        causal=rng.random() < 0.6,
        window=rng.choice([None, None, 1, 13, 150]),
        softcap=rng.choice([None, None, 4.0]),
        alibi_slopes=rng.choice([None, None, tuple(numbers.random(kv_heads * group) * 0.3)]),
    )
    options = {"spec": spec}
    placed = rng.choice(["last", "starts", "any order", "per entry", "zigzag"])
    if placed == "starts":
        options |= {"q_positions": rng.randint(-20, n + 20), "kv_positions": rng.randint(-10, 10)}
    elif placed == "zigzag":
        options |= {
            "q_positions": np.r_[: q_len // 2, 100 : 100 + q_len - q_len // 2],
            "kv_positions": rng.randint(0, 60),
        }
    elif placed != "last":
        lead = (batch,) if placed == "per entry" else ()
        at = np.broadcast_to(np.arange(n) + 3, (*lead, n))
        options |= {
            "q_positions": torch.from_numpy(numbers.integers(-2, n + 9, (*lead, q_len))),
            "kv_positions": torch.from_numpy(numbers.permuted(at, axis=-1)),
        }
    if rng.random() < 0.3:
        options["kv_mask"] = torch.from_numpy(numbers.random((rng.choice([1, batch]), n)) < 0.6)
    if rng.random() < 0.3:
        options["kv_lengths"] = torch.from_numpy(numbers.integers(0, n + 1, batch))
    dtype = rng.choice([torch.float32, torch.bfloat16, torch.float16])
    return (batch, kv_heads, group, q_len, n, d, rng.choice([d, d, 24])), dtype, options, tile


def run(seed, monkeypatch):
    sizes, dtype, options, tile = drawn(seed)
    use_tile(monkeypatch, *tile)
    q, k, v = tensors(*sizes, dtype=dtype, seed=seed)
    got = check(q, k, v, **options)
    other = prefill_partial(q, k, v, spec=Spec(scale=0.1))
    both = merge_states([other.out, got.out], [other.lse, got.lse])
    merged = prefill_partial(q, k, v, **options, merge_into=other)
    torch.testing.assert_close(merged.out, both.out, rtol=1e-6, atol=2e-6)
    torch.testing.assert_close(merged.lse, both.lse, rtol=4e-7, atol=2e-6)


@pytest.mark.parametrize("seed", range(8))
def test_features_together(seed, monkeypatch):
    run(seed, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1150))
def test_more_features_together(seed, monkeypatch):
    run(seed, monkeypatch)
