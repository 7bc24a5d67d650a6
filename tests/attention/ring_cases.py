"""Inputs for tests of ring attention, and the parts that ranks hold."""

import numpy as np
import torch

from attention.ring_layout import sequence_slices


def case(n, *, batch=2, kv_heads=2, group=3, d=8, d_v=12, dtype=torch.float32, seed=0):
    """(q, k, v) and the gradients that arrive at out and lse."""
    generator = torch.Generator().manual_seed(seed)
    heads = kv_heads * group
    shapes = [(batch, heads, n, d), (batch, kv_heads, n, d), (batch, kv_heads, n, d_v), (batch, heads, n, d_v)]
    q, k, v, d_out = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return (q, k, v), (d_out, torch.randn(batch, heads, n, generator=generator))


def held(layout, n, ranks):
    """The positions that each rank holds."""
    return [np.r_[*sequence_slices(layout, n, ranks, rank)] for rank in range(ranks)]


def dealt(n, ranks, seed=0):
    """Positions dealt at random, in any order; some ranks may get none."""
    rng = np.random.default_rng(seed)
    whole, edges = rng.permutation(n), np.sort(rng.integers(0, n + 1, ranks - 1))
    return np.split(whole, edges)
