"""One decode step of attention over keys and values that lie on several ranks, beside the whole at once."""

import numpy as np
from mpi4py import MPI

from attention import Spec, reference_attention, tree_decode

world = MPI.COMM_WORLD
heads, kv_heads, keys, dim = 8, 2, 1000, 64
rng = np.random.default_rng(0)  # the same data on every rank, of which each keeps its part
q = rng.standard_normal((1, heads, 1, dim), dtype=np.float32)
k, v = (rng.standard_normal((1, kv_heads, keys, dim), dtype=np.float32) for _ in range(2))

mine = np.array_split(np.arange(keys), world.size)[world.rank]  # positions of this rank's keys; may be empty
out = tree_decode(
    q, k[:, :, mine], v[:, :, mine], world, spec=Spec(causal=True), q_positions=np.array([keys - 1]), kv_positions=mine
)

exact = reference_attention(q, k, v)
print(f"rank {world.rank}: {len(mine)} keys, error {abs(out - exact.out).max():.1e}")
