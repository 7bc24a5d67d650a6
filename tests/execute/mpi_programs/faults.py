"""Run by test_mpi under mpirun, with what goes wrong as argument; ranks that notice print it and leave at once."""

import os
import sys
import time

import numpy as np
from mpi4py import MPI

import topocomm
from tests.machines import ways
from topocomm import SUM

what = sys.argv[1]
world = MPI.COMM_WORLD
comm = topocomm.Communicator.from_mpi(world, ways(world.size)[sys.argv[2]])
a, b = np.zeros(4), np.zeros(5)
comm.allreduce(a, SUM)
comm.allreduce(b, SUM)
odd = world.rank == 1
try:
    if what == "shape":
        comm.allreduce(np.zeros(7 if odd else 6), SUM)
    elif what == "disorder":
        comm.allreduce(a if odd else b, SUM)
    elif what == "new call":
        comm.allreduce(np.zeros(9) if odd else b, SUM)
    elif what == "absent":
        if odd:
            time.sleep(6)
            os._exit(0)
        comm.allreduce(a, SUM)
    elif what == "raise":
        if odd:
            raise RuntimeError("planted")
        comm.allreduce(a, SUM)
except topocomm.TopocommError as error:
    print(f"[{world.rank}] {type(error).__name__}: {error}", flush=True)
    time.sleep(1)
    os._exit(0)
