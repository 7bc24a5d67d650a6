"""All methods over mpi4py's own communicator, against float64; prints one line on rank 0."""

import numpy as np
import torch
from mpi4py import MPI

from attention import Spec, reference_attention, ring_decode, three_allreduce_decode, tree_decode
from attention.decode.communicators import as_communicator
from attention.decode.sharded import ShardedCall

torch.set_num_threads(1)
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
rng = np.random.default_rng(0)
worst = 0.0
for n in (0, size - 1, 40 * size + 1):
    q = rng.standard_normal((2, 6, 3, 16), dtype=np.float32)
    k = rng.standard_normal((2, 2, n, 16), dtype=np.float32)
    v = rng.standard_normal((2, 2, n, 8), dtype=np.float32)
    positions = np.arange(n)
    mine = positions[rank::size]
    options = {"spec": Spec(causal=True), "q_positions": np.arange(n - 3, n)}
    exact = reference_attention(q, k, v, kv_positions=positions, **options)
    for method in (tree_decode, ring_decode, three_allreduce_decode):
        for _ in range(2):
            out = method(q, k[:, :, mine], v[:, :, mine], world, kv_positions=mine, **options)
        bits = world.allgather(out.tobytes())
        assert bits == bits[:1] * size, f"{method.__name__}: bits differ between ranks"
        worst = max(worst, float(np.abs(out - exact.out).max()))

q, rows = rng.standard_normal((2, 20, 1, 24), dtype=np.float32), rng.standard_normal((2, 1, n, 24), dtype=np.float32)
latents = rows[:, :, mine]
exact_latents = reference_attention(q, rows, rows[..., :20])
for method in (tree_decode, ring_decode, three_allreduce_decode):
    out = method(q, latents, latents[..., :20], world)
    worst = max(worst, float(np.abs(out - exact_latents.out).max()))

q = rng.standard_normal((2, 6, 3, 16), dtype=np.float32)
exact = reference_attention(q, k, v, kv_positions=positions, **options)
general, begin = [], ShardedCall.begin
ShardedCall.begin = lambda *given: general.append(given) or begin(*given)
tensors = [torch.from_numpy(x) for x in (q, k[:, :, mine], v[:, :, mine])]
for _ in range(4):
    out = tree_decode(*tensors, world, kv_positions=torch.from_numpy(mine), **options)
ShardedCall.begin = begin
assert len(general) == 1, "a step is prepared once for an mpi4py communicator, and then takes the shortest way"
worst = max(worst, float(np.abs(out.numpy() - exact.out).max()))

assert as_communicator("here", world) is as_communicator("here", MPI.COMM_WORLD)
duplicate = world.Dup()
assert as_communicator("here", duplicate) is not as_communicator("here", world)
duplicate.Free()
if rank == 0:
    print("worst error below 1e-5:", worst < 1e-5)
