"""One decode step of attention over keys and values that lie on several ranks, beside the whole at once.

mpirun -n 4 python docs/examples/tree.py, or without mpirun for one rank. decode.py goes on, step by step.
"""

import numpy as np
from mpi4py import MPI

from attention import Spec, reference_attention, tree_decode

HEADS, KV_HEADS, KEYS, DIM = 8, 2, 1000, 64


def main():
    world = MPI.COMM_WORLD
    rng = np.random.default_rng(0)  # the same data on every rank, of which each keeps its part
    q = rng.standard_normal((1, HEADS, 1, DIM), dtype=np.float32)
    k, v = (rng.standard_normal((1, KV_HEADS, KEYS, DIM), dtype=np.float32) for _ in range(2))

    mine = np.array_split(np.arange(KEYS), world.size)[world.rank]  # positions of this rank's keys; may be empty
    positions = {"q_positions": np.array([KEYS - 1]), "kv_positions": mine}
    out = tree_decode(q, k[:, :, mine], v[:, :, mine], world, spec=Spec(causal=True), **positions)

    exact = reference_attention(q, k, v)
    print(f"rank {world.rank}: {len(mine)} keys, error {abs(out - exact.out).max():.1e}")


if __name__ == "__main__":
    main()
