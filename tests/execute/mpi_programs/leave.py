"""Run by test_faults with how rank 1 leaves while the others wait for it: by sys.exit, or at the end of its program.

"caught": no rank leaves early, all catch the error that they all get, and end as usual.
"""

import sys

import numpy as np
from mpi4py import MPI

import topocomm
from topocomm import SUM

world = MPI.COMM_WORLD
comm = topocomm.Communicator.from_mpi(world)
x = np.ones(4)
comm.allreduce(x, SUM)
try:
    if sys.argv[1] == "caught":
        comm.allreduce(np.ones(4 + (world.rank == 1)), SUM)
    elif world.rank != 1:
        comm.allreduce(x, SUM)
    elif sys.argv[1] == "exit":
        sys.exit(0)
except topocomm.TopocommError as error:
    sys.stdout.write(f"[{world.rank}] {type(error).__name__}: {error}\n")
    sys.stdout.flush()
