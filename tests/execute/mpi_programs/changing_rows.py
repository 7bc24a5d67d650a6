"""Plain all-gathers, their rows the same or changed by one rank: every way that values go, every TOPOCOMM_CHECK."""

import os
from itertools import product

import numpy as np
from mpi4py import MPI

import topocomm
from tests.machines import ways

world = MPI.COMM_WORLD
ALIKE = [3] * world.size
for check, (how, topology) in product(("first", "always", "never"), ways(world.size).items()):
    os.environ["TOPOCOMM_CHECK"] = check
    comm = topocomm.Communicator.from_mpi(world, topology)
    assert comm.session.settings.check == check
    a_call = 2 if check == "always" else 1  # it is agreed upon anew
    random = np.random.default_rng(3)
    plan = [ALIKE] * 4
    for changing in range(world.size):
        other = [3 + 2 * (rank == changing) for rank in range(world.size)]
        plan += [other, other, ALIKE, ALIKE]
    plan += random.integers(0, 3, (15, world.size)).tolist() + [ALIKE] * 5
    for step, rows in enumerate(plan):
        before = comm.session.recorder.calls
        result = comm.allgather(np.full((rows[comm.rank], 2), 100.0 * step + comm.rank))
        calls = comm.session.recorder.calls - before
        expected = np.repeat([100.0 * step + rank for rank in range(world.size)], rows)
        assert result.tolist() == [[value] * 2 for value in expected], (check, how, step)
        counts = world.allgather(calls)
        assert len(set(counts)) == 1, (check, how, step, counts)
        if step in (1, 2, 3) or step >= len(plan) - 3:
            assert calls == a_call, (check, how, step, calls)
    comm.close()
if world.rank == 0:
    print("changing rows ok")
