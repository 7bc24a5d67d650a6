"""Ulysses attention, its rings and gradients over mpi4py, against float64; prints one line on rank 0."""

import sys
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from attention import Spec
from attention.ring.ring_layout import sequence_slices
from attention.ulysses.ulysses_attention import ulysses_attention
from tests.attention.gradients import gradients64, spec_of

torch.set_num_threads(1)
world = MPI.COMM_WORLD
rank, size = world.rank, world.size

for ring in [r for r in range(1, size + 1) if size % r == 0]:
    for n, layout, spec, heads, kv_heads in (
        (0, "zigzag", Spec(), 4, 2),
        (size - 1, "zigzag", Spec(causal=True), 4, 2),
        (20 * size + 3, "zigzag", spec_of("all", 6), 6, 2),
        (20 * size + 3, "contiguous", Spec(causal=True, window=50), 5, 5),
        (21 * size + 1, "contiguous", spec_of("softcap", 4), 4, 1),
    ):
        generator = torch.Generator().manual_seed(n)
        q, k, v, d_out = (
            torch.randn(2, count, n, d, generator=generator)
            for count, d in ((heads, 8), (kv_heads, 8), (kv_heads, 12), (heads, 12))
        )
        d_lse = torch.randn(2, heads, n, generator=generator)
        mine = torch.from_numpy(np.r_[*sequence_slices(layout, n, size, rank)])
        bits = set()
        for _ in range(2):
            own = [x[:, :, mine].requires_grad_() for x in (q, k, v)]
            result = ulysses_attention(*own, world, ring=ring, spec=spec, layout=layout, return_lse=True)
            found = [*result, *torch.autograd.grad(result, own, (d_out[:, :, mine], d_lse[:, :, mine]))]
            bits.add(b"".join(x.detach().numpy().tobytes() for x in found))
        assert len(bits) == 1, "the same call gave other bits"
        at = torch.arange(n)
        exact, gradients = gradients64((q, k, v), spec, (at, at), d_out, d_lse)
        for got, wanted in zip(found, (*exact, *gradients), strict=True):
            limit = 1e-5 * max(1.0, float(wanted.abs().max()) if n else 1.0)
            torch.testing.assert_close(got.detach().double(), wanted[:, :, mine], rtol=0, atol=limit)

world.Barrier()
if rank == 0:
    print(f"{size} ranks: results and gradients of all rings exact, the same bits again")
