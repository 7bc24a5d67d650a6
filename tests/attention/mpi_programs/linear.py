"""Linear attention over mpi4py's own communicator, against float64; prints one line on rank 0."""

import sys
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from attention.linear import linear_attention
from tests.attention.cases import cuts
from tests.attention.recurrences import arrays, check, first_state, recurrence, shard

torch.set_num_threads(1)
world = MPI.COMM_WORLD
rank, size = world.rank, world.size

for n, form in ((0, "gla"), (size - 1, "mamba"), (50 * size + 1, "gla"), (300, "mamba"), (301, "gla")):
    x, state = arrays(n + 3, form=form, seed=n), first_state(n)
    prompt, rest = shard(x, slice(0, n)), shard(x, slice(n, None))
    mine = shard(prompt, cuts(n, size, seed=n)[rank])
    for _ in range(2):
        out, end = linear_attention(*mine, world, initial_state=state if rank == 0 else None, return_state=True)
    bits = world.allgather(end.tobytes())
    assert bits == bits[:1] * size, "states differ between ranks"
    whole = np.concatenate(world.allgather(out), 2)
    check((whole, end), recurrence(*prompt, state), prompt, state)
    check(linear_attention(*rest, initial_state=end, return_state=True), recurrence(*rest, end), rest, end)

    tensors = [torch.from_numpy(array) for array in mine]
    again = linear_attention(*tensors, world, initial_state=torch.from_numpy(state))
    assert again.numpy().tobytes() == out.tobytes(), "tensors and arrays differ"

if rank == 0:
    print(f"{size} ranks: prefill as on one process, states equal, decoding goes on")
