"""Inputs for tests of ring and Ulysses attention, and the parts that ranks hold."""

import numpy as np
import torch

from attention import Partial
from attention.ring.ring_layout import sequence_slices
from attention.ring.ring_prefill import ring_attention
from tests.attention.gradients import gradients64
from topocomm import run_local


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


def on_threads(body, ranks):
    return run_local(body, ranks=ranks)


def run(tensors, parts, *, arriving=None, runner=on_threads, attend=ring_attention, **options):
    """[out, lse, dq, dk, dv] of all ranks, whole again in the order of the sequence; gradients only on request."""

    def on_rank(comm):
        mine = torch.from_numpy(parts[comm.rank])
        own = [x[:, :, mine].requires_grad_(arriving is not None) for x in tensors]
        given = {name: x(comm.rank) if callable(x) else x for name, x in options.items()}
        result = attend(*own, comm, return_lse=True, **given)
        assert isinstance(result, Partial)
        found = () if arriving is None else torch.autograd.grad(result, own, [x[:, :, mine] for x in arriving])
        return [x.detach() for x in (*result, *found)]

    order = torch.from_numpy(np.argsort(np.concatenate(parts)))
    return [torch.cat(x, 2)[:, :, order] for x in zip(*runner(on_rank, len(parts)), strict=True)]


def check(found, exact, *, unit=0.0):
    """Within 1e-5 of the largest, and within the unit of rounding of the dtype."""
    for name, got, wanted in zip(("out", "lse", "dq", "dk", "dv"), found, exact, strict=False):
        largest = float(wanted[wanted.isfinite()].abs().max()) if wanted.isfinite().any() else 1.0
        limit = (1e-5 + (0.0 if name == "lse" else unit)) * max(1.0, largest)
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=limit, msg=lambda m, n=name: f"{n}: {m}")


def exact_of(tensors, spec, arriving):
    at = torch.arange(tensors[0].shape[2])
    result, gradients = gradients64(tensors, spec, (at, at), *arriving)
    return [*result, *gradients]
