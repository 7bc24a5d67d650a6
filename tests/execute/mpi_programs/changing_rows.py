"""Plain calls with rows, the same or changed by one rank: every way that values go, every TOPOCOMM_CHECK."""

import os
from itertools import product

import numpy as np
from mpi4py import MPI

import topocomm
from tests.machines import ways

world = MPI.COMM_WORLD
size = world.size
ALIKE = [3] * size


def value(src, rows, step):
    return np.full((rows, 2), 100.0 * step + src)


def allgather(comm, rows, step):
    """The result, and the ranks whose values it joins with their rows."""
    return comm.allgather(value(comm.rank, rows[comm.rank], step)), list(enumerate(rows))


def sendrecv(comm, rows, step):
    source = (comm.rank - 1) % size
    x = value(comm.rank, rows[comm.rank], step)
    out = np.empty((rows[source], 2)) if step % 3 == 1 and comm.rank else None
    got = comm.sendrecv(x, (comm.rank + 1) % size, out=out)
    assert out is None or got is out
    return got, [(source, rows[source])]


def alltoall(comm, rows, step):
    sent = [[max(n - (dst - src) % size, 0) for dst in range(size)] for src, n in enumerate(rows)]
    x = value(comm.rank, sum(sent[comm.rank]), step)
    return comm.alltoall(x, rows=sent[comm.rank]), [(src, some[comm.rank]) for src, some in enumerate(sent)]


for check, (how, topology) in product(("first", "always", "never"), ways(size).items()):
    os.environ["TOPOCOMM_CHECK"] = check
    comm = topocomm.Communicator.from_mpi(world, topology)
    assert comm.session.settings.check == check
    a_call = 2 if check == "always" else 1  # it is agreed upon anew
    for way in (allgather, sendrecv, alltoall):
        random = np.random.default_rng(3)
        plan = [ALIKE] * 4
        for changing in range(size):
            other = [3 + 2 * (rank == changing) for rank in range(size)]
            plan += [other, other, ALIKE, ALIKE]
        plan += random.integers(0, 3, (15, size)).tolist() + [ALIKE] * 5
        for step, rows in enumerate(plan):
            before = comm.session.recorder.calls
            result, parts = way(comm, rows, step)
            calls = comm.session.recorder.calls - before
            expected = np.concatenate([value(src, count, step) for src, count in parts])
            assert np.array_equal(result, expected), (check, how, way, step)
            counts = world.allgather(calls)
            assert len(set(counts)) == 1, (check, how, way, step, counts)
            if step in (1, 2, 3) or step >= len(plan) - 3:
                assert calls == a_call or (step == 1 and way is not allgather), (check, how, way, step, calls)
    comm.close()
if world.rank == 0:
    print("changing rows ok")
