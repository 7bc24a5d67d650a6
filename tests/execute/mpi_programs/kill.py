"""Run by test_faults: rank 1 kills itself in a stream of calls; the others go on without it where MPI survives that.

Arguments: how ranks exchange data, and "drop" where the program keeps nothing of the communicator that failed.
"""

import os
import signal
import sys

import numpy as np
from mpi4py import MPI

import topocomm
from tests.machines import ways
from topocomm import SUM

world = MPI.COMM_WORLD
comm = topocomm.Communicator.from_mpi(world, ways(world.size)[sys.argv[1]])
failed = [] if "drop" in sys.argv else [comm]
x = np.full(3, world.rank + 1.0)
everyone = world.size * (world.size + 1) / 2
for _ in range(3):
    assert comm.allreduce(x, SUM).tolist() == [everyone] * 3
if world.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    for _ in range(1000):
        assert comm.allreduce(x, SUM).tolist() == [everyone] * 3
except topocomm.RankFailedError as error:
    sys.stdout.write(f"[{world.rank}] {type(error).__name__}: {error}\n")
    sys.stdout.flush()
try:
    comm.allreduce(x, SUM)
except topocomm.TopocommError as error:
    sys.stdout.write(f"[{world.rank}] later {error}\n")
    sys.stdout.flush()
comm = comm.shrink()
left = [everyone - 2] * 3
for _ in range(5):
    assert comm.allreduce(x, SUM).tolist() == left
    assert comm.broadcast(x, root=comm.size - 1).tolist() == [world.size] * 3
sys.stdout.write(f"[{world.rank}] now {comm.rank} of {comm.size}, before {comm.parent_ranks}\n")
comm.close()
