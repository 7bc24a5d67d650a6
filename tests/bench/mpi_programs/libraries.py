"""Run by test_library_kernels under mpirun: every call of both libraries, out of place and in place, against NumPy."""

import sys

import numpy as np
import torch.distributed as dist
from mpi4py import MPI

from topocomm.bench.libraries import MpiLibrary, TorchLibrary
from topocomm.planning.collectives import CARRYING

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=size)

ROWS = 6
VALUES = [np.random.default_rng(r).integers(1, 9, ROWS * size).astype(np.float64) for r in range(size)]
FOLDS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def fold(op, values):
    return FOLDS[op].reduce(np.stack(values))


def expected(name, op):
    if name in ("allgather", "gather"):
        return np.stack(VALUES) if name == "allgather" or rank == 0 else None
    if name == "broadcast":
        return VALUES[0]
    if name == "alltoall":
        return np.concatenate([value[rank * ROWS : (rank + 1) * ROWS] for value in VALUES])
    if name == "scatter":
        return VALUES[0][rank * ROWS : (rank + 1) * ROWS]
    if name == "scan":
        return fold(op, VALUES[: rank + 1])
    if name == "exscan":
        return fold(op, VALUES[:rank]) if rank else None
    whole = fold(op, VALUES)
    if name == "reduce_scatter":
        return whole[rank * ROWS : (rank + 1) * ROWS]
    return whole if name == "allreduce" or rank == 0 else None


def check(library, name, op, in_place):
    x = VALUES[rank].copy()
    out = x if in_place else np.full({"reduce_scatter": ROWS, "scatter": ROWS}.get(name, x.size), np.nan)
    if name in ("allgather", "gather"):
        out = np.full((size, x.size), np.nan)
    call = library.collective(name, x, out, op)
    if call is None:
        return 0
    call()
    wanted = expected(name, op)
    got = x if name == "broadcast" and rank == 0 else out
    if wanted is not None:
        np.testing.assert_array_equal(got, wanted, err_msg=f"{library.name} {name} {op} in place: {in_place}")
    return 1


for library in (MpiLibrary(world), TorchLibrary()):
    done = 0
    for name in ("allreduce", "reduce", "scan", "exscan", "reduce_scatter"):
        for op in FOLDS:
            for in_place in (False, True)[: 1 if name == "reduce_scatter" else 2]:
                done += check(library, name, op, in_place)
    done += sum(check(library, name, None, False) for name in CARRYING)
    assert library.collective("allreduce", VALUES[rank], VALUES[rank], "logaddexp") is None
    if rank == 0:
        print(f"{library.name}: {done} calls right")
dist.destroy_process_group()
