"""Every way of `tree_decode` under MPI: heads, 16 bits, verification, and in canonical order the bits of one rank."""

import numpy as np
import torch
from mpi4py import MPI

from attention import ShardMap, Spec, prepare_decode, reference_attention, tree_decode
from attention.cache.storage_run import StorageRun
from attention.decode.communicators import as_communicator
from attention.decode.sharded import part_of

torch.set_num_threads(1)
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
rng = np.random.default_rng(0)
n = 777
q = rng.standard_normal((2, 6, 3, 16), dtype=np.float32)
k = rng.standard_normal((2, 2, n, 16), dtype=np.float32)
v = rng.standard_normal((2, 2, n, 8), dtype=np.float32)
mine = ShardMap(size).owned(rank, 0, n).copy()
spec = Spec(causal=True, window=700, softcap=9.0, alibi_slopes=[0.001] * 6, sinks=[0.5] * 6)
queries = np.arange(n - 3, n)
exact = reference_attention(q, k, v, spec=spec, q_positions=queries, kv_positions=np.arange(n))


def decode(comm=world, positions=mine, **options):
    given = {"spec": spec, "q_positions": queries, "kv_positions": positions, "return_lse": True, "verify": 1}
    return tree_decode(q, k[:, :, positions], v[:, :, positions], comm, **given, **options)


for options, limit in (({}, 1e-5), ({"wire": "bfloat16"}, 2**-7), ({"order": "canonical"}, 1e-5)):
    for result in ("all", "heads"):
        for _ in range(2):
            found = decode(result=result, **options)
        heads = slice(None) if result == "all" else part_of(6, size, rank)
        error = np.abs(found.out - exact.out[:, heads]).max(initial=0)
        assert error < limit and np.abs(found.lse - exact.lse[:, heads]).max(initial=0) < 1e-5, (options, result, error)
        if result == "all":
            bits = world.allgather(found.out.tobytes() + found.lse.tobytes())
            assert bits == bits[:1] * size, f"{options}: bits differ between ranks"
alone, canonical = decode(MPI.COMM_SELF, np.arange(n), order="canonical"), decode(order="canonical")
assert (canonical.out.tobytes(), canonical.lse.tobytes()) == (alone.out.tobytes(), alone.lse.tobytes())

# Bound steps write into two memories in turn, of which other steps take some.
comm = as_communicator("tree_ways", world)
one, *held = (torch.from_numpy(x) for x in (q[:, :, :1].copy(), k[:, :, mine].copy(), v[:, :, mine].copy()))
prepared = prepare_decode(comm, one, like_kv=held)
bound = prepared.bind(*held)
for end in (0, 1, 40, 40, len(mine)):
    for _ in range(1 + end % 3):
        wanted = prepared.step(one, *(x[:, :, :end] for x in held))
    bound.begin(*StorageRun(0, end))
    assert torch.equal(bound.attend(one, None, {}), wanted), end
if rank == 0:
    print("in canonical order the bits of one rank")
